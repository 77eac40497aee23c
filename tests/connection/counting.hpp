// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace testing_support {

struct counts {
    std::uint64_t allocations, locks, copied_bytes;
};
// Since the program began. Nothing is counted under the sanitizers.
#ifdef COUNTING
[[nodiscard]] counts counts_now();
#else
[[nodiscard]] inline counts counts_now() {
    return {};
}
#endif

} // namespace testing_support
