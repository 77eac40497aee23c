// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

namespace gaudi {

// When a limit that begins now is over; never, for limits that no clock can hold.
[[nodiscard]] inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds limit) {
    using clock = std::chrono::steady_clock;
    const auto now = clock::now();
    const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(clock::time_point::max() - now);
    return limit < most ? now + limit : clock::time_point::max();
}

} // namespace gaudi
