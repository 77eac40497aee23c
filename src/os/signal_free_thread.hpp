// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <functional>
#include <string_view>
#include <thread>

namespace gaudi {

// Starts a thread with all signals blocked: the program's handlers must not run in the library's threads.
// `purpose` names the thread in the error: "the broker's thread".
[[nodiscard]] result<std::thread> signal_free_thread(std::string_view purpose, std::function<void()> body);

} // namespace gaudi
