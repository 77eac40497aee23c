// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/receive_queue.hpp"

#include "tests/connection/fake_queue_pair.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <gtest/gtest.h>

namespace {

using namespace gaudi;

struct receive_queue_test : ::testing::Test {
    static constexpr std::uint32_t segment = 4096;
    static constexpr unsigned depth = 4;
    testing_support::fake_queue_pair qp;
    credit::ring words{};
    operation_table operations{8};
    local_credits credits{words};
    peer_credits sender{words, segment}; // the view of the peer
    device_flush flush{nullptr, {}, operations};
    receive_queue queue{qp.get(), depth, "peer:1", segment, operations, credits, flush};

    std::uint32_t receive(std::uint64_t length) {
        const auto slot = operations.add({.kind = transfer_kind::receive}, nullptr);
        operations[slot].address = 0x10000;
        operations[slot].length = length;
        queue.add(slot);
        return slot;
    }
    static ibv_wc arrival(std::uint32_t bytes, ibv_wc_opcode opcode = IBV_WC_RECV) {
        ibv_wc entry{};
        entry.opcode = opcode;
        entry.byte_len = bytes;
        return entry;
    }
};

TEST_F(receive_queue_test, cuts_a_receive_into_parts_and_announces_each) {
    const auto slot = receive(2 * segment + 100);
    ASSERT_TRUE(queue.advance());
    ASSERT_EQ(qp.receives.size(), 3U);
    for (unsigned part = 0; part < 3; ++part) {
        EXPECT_EQ(qp.receives[part].entry.addr, 0x10000 + part * segment);
        EXPECT_EQ(qp.receives[part].entry.length, part < 2 ? segment : 100U);
        EXPECT_EQ(qp.receives[part].wr.wr_id, receive_queue::wr_id);
    }
    ASSERT_TRUE(sender.open_receive());
    EXPECT_EQ(sender.length(), 2 * segment + 100);
    for (unsigned part = 0; part < 3; ++part) {
        EXPECT_TRUE(sender.part_available());
        sender.use_part();
    }
    EXPECT_TRUE(operations[slot].fully_posted);
}

TEST_F(receive_queue_test, posts_no_more_than_the_queue_pair_takes) {
    receive((depth + 2) * segment);
    ASSERT_TRUE(queue.advance());
    EXPECT_EQ(qp.receives.size(), depth);
    ASSERT_TRUE(queue.completed(arrival(segment)));
    ASSERT_TRUE(queue.advance());
    EXPECT_EQ(qp.receives.size(), depth + 1);
}

TEST_F(receive_queue_test, finishes_with_the_bytes_that_arrived) {
    const auto slot = receive(2 * segment);
    ASSERT_TRUE(queue.advance());
    ASSERT_TRUE(queue.completed(arrival(10)));
    EXPECT_EQ(operations[slot].state, operation::state::pending);
    auto last = arrival(0);
    last.wc_flags = IBV_WC_WITH_IMM;
    last.imm_data = htonl(42);
    ASSERT_TRUE(queue.completed(last));
    EXPECT_EQ(operations[slot].state, operation::state::finished);
    EXPECT_EQ(operations[slot].outcome.bytes, 10U);
    EXPECT_EQ(operations[slot].outcome.immediate, 42U);
}

// The write places its bytes elsewhere: the outcome reports them, but the receive buffer got none.
TEST_F(receive_queue_test, counts_no_bytes_for_a_write_with_immediate) {
    const auto slot = receive(segment);
    ASSERT_TRUE(queue.advance());
    ASSERT_TRUE(queue.completed(arrival(64, IBV_WC_RECV_RDMA_WITH_IMM)));
    EXPECT_EQ(operations[slot].outcome.bytes, 64U);
    EXPECT_EQ(operations[slot].completed, 0U);
    EXPECT_EQ(operations.traffic().by(memory_path::host).bytes, 0U);
}

TEST_F(receive_queue_test, posts_an_empty_receive_once) {
    receive(0);
    ASSERT_TRUE(queue.advance());
    ASSERT_EQ(qp.receives.size(), 1U);
    EXPECT_EQ(qp.receives[0].wr.num_sge, 0);
}

TEST_F(receive_queue_test, announces_nothing_that_it_could_not_post) {
    qp.error = EINVAL;
    receive(8);
    const auto advanced = queue.advance();
    ASSERT_FALSE(advanced);
    EXPECT_EQ(advanced.error().code(), errc::connection_broken);
    EXPECT_EQ(advanced.error().system_error(), EINVAL);
    EXPECT_FALSE(sender.open_receive());
}

} // namespace
