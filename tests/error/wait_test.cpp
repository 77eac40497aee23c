// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/wait.hpp>

#include "src/os/deadline.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace {

using namespace gaudi;

// An operation that completes after `polls_left` polls.
struct counted_ticket {
    int polls_left = 0;
    bool fails = false;
    int polls = 0;

    bool done() {
        ++polls;
        return polls_left-- <= 0;
    }
    [[nodiscard]] result<void> wait() const {
        if (fails)
            return tl::unexpected(error(errc::peer_gone, "it failed"));
        return {};
    }
};

TEST(wait_all_test, waits_for_the_slowest) {
    std::vector<counted_ticket> tickets{{3}, {100}, {0}};
    ASSERT_TRUE(wait_all(std::span(tickets)));
    for (const auto& each : tickets)
        EXPECT_LE(each.polls_left, 0);
}

TEST(wait_all_test, drives_every_operation_in_each_turn) {
    std::vector<counted_ticket> tickets{{50}, {50}};
    ASSERT_TRUE(wait_all(std::span(tickets)));
    EXPECT_EQ(tickets[0].polls, tickets[1].polls) << "the first must not hold up the second";
}

TEST(wait_all_test, returns_the_first_failure_after_all_have_ended) {
    std::vector<counted_ticket> tickets{{0, true}, {20}};
    const auto outcome = wait_all(std::span(tickets));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::peer_gone);
    EXPECT_LE(tickets[1].polls_left, 0);
}

TEST(wait_all_test, of_nothing_is_done) {
    EXPECT_TRUE(wait_all(std::span<counted_ticket>()));
}

TEST(wait_any_test, returns_the_one_that_ended) {
    std::vector<counted_ticket> tickets{{1 << 30}, {7}, {1 << 30}};
    EXPECT_EQ(expect(wait_any(std::span(tickets))), 1U);
    EXPECT_EQ(wait_any(std::span<counted_ticket>()).error().code(), errc::size_zero);
}

TEST(wait_any_test, gives_up_after_its_limit) {
    std::vector<counted_ticket> tickets{{1 << 30}, {1 << 30}};
    for (const auto& outcome : {wait_any(std::span(tickets), std::chrono::milliseconds(1)).map([](auto) {}),
                                wait_all(std::span(tickets), std::chrono::milliseconds(1))}) {
        ASSERT_FALSE(outcome);
        EXPECT_EQ(outcome.error().code(), errc::wait_timeout);
        EXPECT_EQ(outcome.error().observed(), "1 ms for 2 operations");
    }
}

TEST(deadline, of_no_limit_never_comes) {
    using clock = std::chrono::steady_clock;
    EXPECT_EQ(deadline_after(no_limit), clock::time_point::max());
    EXPECT_GT(deadline_after(std::chrono::hours(1)), clock::now());
    const auto at_once = deadline_after(std::chrono::milliseconds(0));
    EXPECT_LE(at_once, clock::now());
}

TEST(failure_test, carries_the_error) {
    try {
        (void)expect(result<int>(tl::unexpected(error(errc::device_busy, "gaudi 3", 16))));
        FAIL() << "it must throw";
    } catch (const failure& caught) {
        const auto copy = caught;
        EXPECT_EQ(copy.code(), errc::device_busy);
        EXPECT_EQ(copy.kind(), error_kind::busy);
        EXPECT_EQ(copy.why().system_error(), 16);
        EXPECT_EQ(copy.what(), copy.why().message());
    }
    EXPECT_EQ(expect(result<int>(5)), 5);
}

} // namespace
