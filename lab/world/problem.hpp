// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <tl/expected.hpp>

namespace lab {

// What went wrong, in a sentence that a user can act on.
struct problem {
    std::string text;
};

template <typename T>
using result = tl::expected<T, problem>;

} // namespace lab
