// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace tools::doctor {

// What a child process writes to its standard output in `body`, which may load libraries that this process
// must not have, or execute a program. nullopt: it did not end within the limit, and was killed.
[[nodiscard]] std::optional<std::string> child_output(const std::function<void()>& body,
                                                      std::chrono::milliseconds limit);

} // namespace tools::doctor
