// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace testing_support {

struct counts {
    std::uint64_t allocations, locks, copied_bytes;
};
// Since the program began.
[[nodiscard]] counts counts_now();

} // namespace testing_support
