// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tests/support/hlthunk_functions.h"

#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <string_view>

namespace testing_support {

// Runs `body` repeatedly: in run n the nth hl-thunk call fails, until no fault fires in a run. `body` must
// handle every failure and clean up. Returns the number of calls.
inline unsigned fail_every_call(std::string_view action, const std::function<void()>& body) {
    for (unsigned n = 1;; ++n) {
        SCOPED_TRACE(fmt::format("call {} fails with {}", n, action));
        EXPECT_EQ(gaudi_lab_arm_faults(fmt::format("* {} {}", n, action).c_str()), 0);
        body();
        const auto fired = gaudi_lab_faults_fired();
        gaudi_lab_arm_faults("");
        if (fired == 0 || n > 10000 || ::testing::Test::HasFatalFailure())
            return n - 1;
    }
}

} // namespace testing_support
