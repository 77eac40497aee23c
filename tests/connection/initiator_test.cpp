// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/initiator.hpp"

#include "tests/connection/fake_queue_pair.hpp"
#include "tests/connection/stream_pair.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace {

using namespace gaudi;

class initiator_test : public ::testing::Test {
protected:
    static constexpr std::uint32_t segment = 4096;
    static constexpr std::uint64_t longest_request = 2 * segment;
    static constexpr unsigned depth = 16;
    static constexpr auto room = depth - send_queue::kept_for_credits; // work requests for data

    std::uint32_t add(transfer_kind kind, std::uint64_t length, std::optional<std::uint32_t> immediate = {}) {
        const auto slot = operations.add({.kind = kind, .immediate = immediate}, nullptr);
        auto& added = operations[slot];
        added.address = 0x10000;
        added.length = length;
        added.remote_address = 0x80000;
        added.remote_key = 9;
        subject.add(slot);
        return slot;
    }
    std::uint32_t add_remote_staged(transfer_kind kind, std::uint64_t length) {
        const auto slot = add(kind, length);
        operations[slot].remote_staged = true;
        operations[slot].serial = ++serial_;
        return slot;
    }
    // Announces the credits of a receive that the peer posts.
    void grant_receive(std::uint64_t length) {
        credits_of_peer.announce(credit::kind::receive, length);
        std::uint64_t posted = 0;
        do {
            credits_of_peer.announce(credit::kind::part, std::min<std::uint64_t>(segment, length - posted));
            posted += segment;
        } while (posted < length);
    }
    void advance() {
        ASSERT_TRUE(subject.advance());
        ASSERT_TRUE(queue.flush());
    }
    void complete_all() { ASSERT_TRUE(subject.completed(qp.sends.back().wr.wr_id)); }
    [[nodiscard]] bool finished(std::uint32_t slot) {
        return operations[slot].state == operation::state::finished;
    }
    // Frames that the initiator sent to the peer over TCP.
    std::vector<frame> frames() { return *peer_end_.receive(); }

private:
    std::pair<stream, stream> streams_ = testing_support::stream_pair();
    control_channel control_{std::move(streams_.first), std::chrono::milliseconds(1000)};
    control_channel peer_end_{std::move(streams_.second), std::chrono::milliseconds(1000)};
    credit::ring words_{};
    std::uint32_t serial_ = 0;

protected:
    testing_support::fake_queue_pair qp;
    operation_table operations{8};
    std::array<std::uint64_t, 8> results{};
    local_credits credits_of_peer{words_};
    peer_credits credits{words_, segment};
    send_queue queue{qp.get(), depth, "peer:1"};
    device_flush flush{nullptr, {}, operations};
    initiator subject{
        {segment, longest_request, 64}, {results.data(), 3}, operations, queue, credits, control_, flush};
};

TEST_F(initiator_test, cuts_a_write_at_the_longest_request) {
    const auto slot = add(transfer_kind::write, 2 * longest_request + 100);
    advance();
    ASSERT_EQ(qp.sends.size(), 3U);
    for (unsigned part = 0; part < 3; ++part) {
        const auto& [wr, entry] = qp.sends[part];
        EXPECT_EQ(wr.opcode, IBV_WR_RDMA_WRITE);
        EXPECT_EQ(wr.wr.rdma.remote_addr, 0x80000 + part * longest_request);
        EXPECT_EQ(wr.wr.rdma.rkey, 9U);
        EXPECT_EQ(entry.addr, 0x10000 + part * longest_request);
        EXPECT_EQ(entry.length, part < 2 ? longest_request : 100);
        EXPECT_EQ(wr.send_flags & IBV_SEND_INLINE, 0U) << "100 bytes are more than the queue pair takes";
    }
    complete_all();
    EXPECT_TRUE(finished(slot));
    EXPECT_EQ(operations[slot].outcome.bytes, 2 * longest_request + 100);
}

TEST_F(initiator_test, sends_small_host_memory_inline_but_never_device_memory) {
    add(transfer_kind::write, 64);
    operations[add(transfer_kind::write, 64)].path = memory_path::zero_copy;
    advance();
    ASSERT_EQ(qp.sends.size(), 2U);
    EXPECT_NE(qp.sends[0].wr.send_flags & IBV_SEND_INLINE, 0U);
    EXPECT_EQ(qp.sends[1].wr.send_flags & IBV_SEND_INLINE, 0U) << "the processor would read device memory";
}

TEST_F(initiator_test, keeps_the_order_of_the_calls) {
    const auto message = add(transfer_kind::send, 8);
    const auto write = add(transfer_kind::write, 8);
    advance();
    EXPECT_TRUE(qp.sends.empty()) << "the write is queued after a message without a receive";
    grant_receive(8);
    advance();
    ASSERT_EQ(qp.sends.size(), 2U);
    EXPECT_EQ(qp.sends[0].wr.opcode, IBV_WR_SEND);
    EXPECT_EQ(qp.sends[1].wr.opcode, IBV_WR_RDMA_WRITE);
    complete_all();
    EXPECT_TRUE(finished(message) && finished(write));
}

TEST_F(initiator_test, fills_the_peers_receive_to_its_end) {
    const auto slot = add(transfer_kind::send, 10, 77);
    grant_receive(2 * segment + 1);
    advance();
    ASSERT_EQ(qp.sends.size(), 3U) << "parts that the message does not need are sent empty";
    EXPECT_EQ(qp.sends[0].entry.length, 10U);
    EXPECT_EQ(qp.sends[1].wr.num_sge, 0);
    EXPECT_EQ(qp.sends[2].wr.opcode, IBV_WR_SEND_WITH_IMM);
    EXPECT_EQ(ntohl(qp.sends[2].wr.imm_data), 77U);
    complete_all();
    EXPECT_TRUE(finished(slot));
}

TEST_F(initiator_test, fails_a_message_that_does_not_fit_and_leaves_the_receive) {
    const auto slot = add(transfer_kind::send, 9);
    grant_receive(8);
    advance();
    EXPECT_TRUE(qp.sends.empty());
    ASSERT_TRUE(finished(slot));
    EXPECT_EQ(operations[slot].failure->code(), errc::message_too_long);
    add(transfer_kind::send, 8);
    advance();
    EXPECT_EQ(qp.sends.size(), 1U);
}

TEST_F(initiator_test, puts_the_immediate_on_the_last_part_of_a_write) {
    add(transfer_kind::write, longest_request + 5, 4);
    advance();
    EXPECT_EQ(qp.sends.size(), 1U) << "the rest waits for a receive";
    grant_receive(0);
    advance();
    ASSERT_EQ(qp.sends.size(), 2U);
    EXPECT_EQ(qp.sends[1].wr.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
    EXPECT_EQ(qp.sends[1].entry.length, 5U);
    EXPECT_EQ(qp.sends[1].wr.wr.rdma.remote_addr, 0x80000 + longest_request);
}

TEST_F(initiator_test, continues_when_the_queue_has_free_entries) {
    const auto slot = add(transfer_kind::read, (room + 3) * longest_request);
    advance();
    EXPECT_EQ(qp.sends.size(), room);
    complete_all();
    EXPECT_FALSE(finished(slot));
    advance();
    EXPECT_EQ(qp.sends.size(), room + 3);
    complete_all();
    EXPECT_TRUE(finished(slot));
}

TEST_F(initiator_test, returns_what_an_atomic_operation_found) {
    const auto add_slot = add(transfer_kind::fetch_add, 0), swap_slot = add(transfer_kind::compare_swap, 0);
    operations[add_slot].operand = 5;
    operations[swap_slot].compare = 6;
    operations[swap_slot].operand = 7;
    advance();
    ASSERT_EQ(qp.sends.size(), 2U);
    EXPECT_EQ(qp.sends[0].wr.opcode, IBV_WR_ATOMIC_FETCH_AND_ADD);
    EXPECT_EQ(qp.sends[0].wr.wr.atomic.compare_add, 5U);
    EXPECT_EQ(qp.sends[1].wr.opcode, IBV_WR_ATOMIC_CMP_AND_SWP);
    EXPECT_EQ(qp.sends[1].wr.wr.atomic.compare_add, 6U);
    EXPECT_EQ(qp.sends[1].wr.wr.atomic.swap, 7U);
    EXPECT_EQ(qp.sends[1].entry.addr, reinterpret_cast<std::uintptr_t>(&results[swap_slot]));
    results[add_slot] = 40;
    results[swap_slot] = 41;
    complete_all();
    EXPECT_EQ(operations[add_slot].outcome.value, 40U);
    EXPECT_EQ(operations[swap_slot].outcome.value, 41U);
}

TEST_F(initiator_test, writes_the_slabs_that_the_peer_grants) {
    const auto slot = add_remote_staged(transfer_kind::write, segment + 1);
    advance();
    EXPECT_TRUE(subject.awaits_frame());
    EXPECT_TRUE(qp.sends.empty());
    const auto asked = frames();
    ASSERT_EQ(asked.size(), 1U);
    const auto request = decode_frame<access_request>(asked[0].body);
    ASSERT_TRUE(request);
    EXPECT_EQ(request->id, operations.id_of(slot));
    EXPECT_TRUE(request->writing);
    EXPECT_EQ(request->length, segment + 1);

    const auto id = operations.id_of(slot);
    ASSERT_TRUE(subject.slab_granted({id, 0, 0x7000, segment, 21, 4}));
    ASSERT_TRUE(subject.slab_granted({id, segment, 0x9000, 1, 22, 5}));
    advance();
    ASSERT_EQ(qp.sends.size(), 2U);
    EXPECT_EQ(qp.sends[1].wr.wr.rdma.remote_addr, 0x9000U);
    EXPECT_EQ(qp.sends[1].wr.wr.rdma.rkey, 22U);
    EXPECT_EQ(qp.sends[1].entry.addr, 0x10000 + segment);
    complete_all();
    const auto returned = frames();
    ASSERT_EQ(returned.size(), 2U);
    EXPECT_EQ(decode_frame<slab_return>(returned[1].body)->slab, 5U);
    EXPECT_FALSE(finished(slot)) << "the peer still copies";
    ASSERT_TRUE(subject.access_ended({id}));
    advance();
    EXPECT_TRUE(finished(slot));
    EXPECT_FALSE(operations[slot].failure);
}

TEST_F(initiator_test, fails_an_access_that_the_peer_refuses) {
    const auto slot = add_remote_staged(transfer_kind::read, 8);
    advance();
    ASSERT_TRUE(subject.access_ended({operations.id_of(slot), "the buffer was freed"}));
    advance();
    ASSERT_TRUE(finished(slot));
    EXPECT_EQ(operations[slot].failure->code(), errc::remote_access);
    EXPECT_NE(operations[slot].failure->message().find("the buffer was freed"), std::string::npos);
}

// The peer grants slabs and then refuses the access: the next operation must not use these slabs.
TEST_F(initiator_test, leaves_no_slab_of_a_refused_access_to_the_next) {
    const auto filler = add(transfer_kind::write, room * longest_request);
    advance(); // the send queue is full
    const auto refused = add_remote_staged(transfer_kind::write, 2 * segment);
    ASSERT_TRUE(subject.advance());
    // The initiator requested the access when the operation reached the head of the queue.
    const auto id = operations.id_of(refused);
    ASSERT_TRUE(subject.slab_granted({id, segment, 0x7000, segment, 21, 4}));
    ASSERT_TRUE(subject.access_ended({id, "changed my mind"}));
    const auto next = add_remote_staged(transfer_kind::write, 8);
    advance();
    EXPECT_FALSE(finished(refused)) << "what was granted is not posted yet";
    complete_all();
    EXPECT_TRUE(finished(filler));
    advance();
    complete_all();
    EXPECT_TRUE(finished(refused));
    for (const auto& [wr, entry] : qp.sends)
        EXPECT_LE(entry.addr + entry.length, 0x10000 + room * longest_request);
    const auto posted = qp.sends.size();
    advance();
    EXPECT_EQ(qp.sends.size(), posted) << "nothing is granted to the next one";
    EXPECT_FALSE(finished(next));
}

TEST_F(initiator_test, refuses_slabs_that_it_did_not_request) {
    const auto plain = add(transfer_kind::send, 8);
    advance();
    EXPECT_FALSE(subject.access_ended({operations.id_of(plain), "x"})) << "an ordinary message";
    EXPECT_FALSE(operations[plain].failure);
    grant_receive(8);
    advance();

    const auto slot = add_remote_staged(transfer_kind::read, 100);
    advance();
    const auto id = operations.id_of(slot);
    for (const auto& wrong : {slab_grant{id + 1, 0, 0x7000, 8}, slab_grant{id, 0, 0x7000, 0},
                              slab_grant{id, 0, 0x7000, segment + 1}, slab_grant{id, 101, 0x7000, 1},
                              slab_grant{id, 96, 0x7000, 5}, slab_grant{id, ~0ULL, 0x7000, 8}}) {
        const auto refused = subject.slab_granted(wrong);
        ASSERT_FALSE(refused) << wrong.offset;
        EXPECT_EQ(refused.error().code(), errc::protocol_violated);
    }
    EXPECT_TRUE(subject.slab_granted({id, 95, 0x7000, 5, 1, 1}));
}

} // namespace
