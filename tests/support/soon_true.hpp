// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <thread>

namespace testing_support {

// Polls a condition for up to thirty seconds, for effects that no descriptor or signal announces.
template <typename F>
[[nodiscard]] bool soon_true(F&& condition) {
    using clock = std::chrono::steady_clock;
    const auto deadline = clock::now() + std::chrono::seconds(30);
    do {
        if (condition())
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } while (clock::now() < deadline);
    return condition();
}

} // namespace testing_support
