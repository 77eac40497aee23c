// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/poller.hpp"

#include <gtest/gtest.h>
#include <thread>

namespace {

using namespace gaudi;

TEST(poller_test, wakes_a_wait_before_and_while_it_runs) {
    auto events = expect(poller::make());
    events.wake();
    EXPECT_TRUE(events.wait(-1).empty()) << "the call before counts";
    std::jthread other([&] { events.wake(); });
    EXPECT_TRUE(events.wait(-1).empty());
}

TEST(poller_test, refuses_what_is_no_descriptor) {
    const auto events = expect(poller::make());
    EXPECT_EQ(events.add(-1, 0).error().code(), errc::system_call_failed);
}

} // namespace
