// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace testing_support {

struct counts {
    std::uint64_t allocations, locks, copied_bytes;
};
// Counts since the program started; all 0 under the sanitizers.
#ifdef COUNTING
[[nodiscard]] counts counts_now();
#else
[[nodiscard]] inline counts counts_now() {
    return {};
}
#endif

} // namespace testing_support
