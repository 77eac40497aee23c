// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/send_queue.hpp"

#include "tests/connection/fake_queue_pair.hpp"

#include <cerrno>
#include <gtest/gtest.h>

namespace {

using namespace gaudi;

struct send_queue_test : ::testing::Test {
    static constexpr unsigned depth = 64;
    testing_support::fake_queue_pair qp;
    send_queue queue{qp.get(), depth, "peer:1"};

    void append(unsigned count) {
        for (unsigned i = 0; i < count; ++i)
            queue.append({i, 8, no_slab, i}, {0x1000 + i, 7}).opcode = IBV_WR_RDMA_WRITE;
    }
};

TEST_F(send_queue_test, posts_a_chain_of_which_the_last_asks_for_a_completion) {
    append(3);
    EXPECT_TRUE(queue.idle());
    EXPECT_EQ(qp.calls, 0U) << "nothing is posted before flush()";
    ASSERT_TRUE(queue.flush());
    EXPECT_EQ(qp.calls, 1U);
    ASSERT_EQ(qp.sends.size(), 3U);
    for (unsigned i = 0; i < 3; ++i) {
        EXPECT_EQ(qp.sends[i].entry.addr, 0x1000 + i);
        EXPECT_EQ(qp.sends[i].entry.lkey, 7U);
        EXPECT_EQ((qp.sends[i].wr.send_flags & IBV_SEND_SIGNALED) != 0, i == 2);
    }
    EXPECT_FALSE(queue.idle());
}

TEST_F(send_queue_test, posts_a_full_chain_by_itself) {
    append(send_queue::longest_chain);
    EXPECT_EQ(qp.calls, 0U);
    append(1);
    EXPECT_EQ(qp.sends.size(), send_queue::longest_chain);
    ASSERT_TRUE(queue.flush());
    EXPECT_EQ(qp.sends.size(), send_queue::longest_chain + 1);
}

TEST_F(send_queue_test, retires_everything_up_to_the_completion) {
    append(20); // two chains
    ASSERT_TRUE(queue.flush());
    const auto first = qp.sends[send_queue::longest_chain - 1].wr.wr_id, last = qp.sends.back().wr.wr_id;
    for (unsigned i = 0; i < send_queue::longest_chain; ++i) {
        const auto request = queue.retire(first);
        ASSERT_TRUE(request) << i;
        EXPECT_EQ(request->slot, i);
        EXPECT_EQ(request->offset, i);
    }
    EXPECT_FALSE(queue.retire(first));
    unsigned rest = 0;
    while (queue.retire(last))
        ++rest;
    EXPECT_EQ(rest, 20 - send_queue::longest_chain);
    EXPECT_TRUE(queue.empty());
}

TEST_F(send_queue_test, reserves_entries_for_credits) {
    append(depth - send_queue::kept_for_credits - 1);
    EXPECT_TRUE(queue.has_room());
    append(1);
    EXPECT_FALSE(queue.has_room());
    for (unsigned i = 0; i < send_queue::kept_for_credits; ++i) {
        EXPECT_TRUE(queue.has_room_for_credits());
        append(1);
    }
    EXPECT_FALSE(queue.has_room_for_credits());
}

TEST_F(send_queue_test, sends_no_entry_for_an_empty_request) {
    queue.append({0, 0}, {}).opcode = IBV_WR_SEND;
    ASSERT_TRUE(queue.flush());
    EXPECT_EQ(qp.sends[0].wr.num_sge, 0);
}

// This includes a failure inside append(), which returns no error itself.
TEST_F(send_queue_test, reports_a_failure_at_every_later_flush) {
    qp.error = ENOMEM;
    append(2 * send_queue::longest_chain + 1);
    qp.error = 0;
    for (int again = 0; again < 2; ++again) {
        const auto flushed = queue.flush();
        ASSERT_FALSE(flushed);
        EXPECT_EQ(flushed.error().code(), errc::connection_broken);
        EXPECT_EQ(flushed.error().system_error(), ENOMEM);
        EXPECT_NE(flushed.error().message().find("peer:1"), std::string::npos);
    }
    EXPECT_TRUE(qp.sends.empty());
}

} // namespace
