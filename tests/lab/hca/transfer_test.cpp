// SPDX-License-Identifier: BSD-3-Clause
// Successful transfers: every operation, on every type of queue pair.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

#include <numeric>
#include <poll.h>

namespace {

using namespace testing_support;
using transfer_test = test_lab;

void fill(std::vector<unsigned char>& bytes, unsigned seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<unsigned char>(i * 31 + seed);
}

TEST_F(transfer_test, send_and_receive) {
    two_nodes both;
    fill(both.left.memory, 1);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 5000)}, 7), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 3).from(both.left.entry(10, 4999)).post(both.a.get()), 0);
    const auto sent = both.left.expect_wc(), received = both.right.expect_wc();
    EXPECT_EQ(sent.wr_id, 3U);
    EXPECT_EQ(sent.opcode, IBV_WC_SEND);
    EXPECT_EQ(sent.qp_num, both.a->qp_num);
    EXPECT_EQ(received.wr_id, 7U);
    EXPECT_EQ(received.opcode, IBV_WC_RECV);
    EXPECT_EQ(received.byte_len, 4999U);
    EXPECT_EQ(received.qp_num, both.b->qp_num);
    EXPECT_EQ(std::memcmp(both.right.memory.data(), both.left.memory.data() + 10, 4999), 0);
    EXPECT_EQ(both.right.memory[4999], 0);
}

TEST_F(transfer_test, a_send_waits_for_its_receive) {
    two_nodes both;
    fill(both.left.memory, 2);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 100)).post(both.a.get()), 0);
    both.left.expect_none();
    both.right.expect_none();
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 100)}), 0);
    (void)both.left.expect_wc();
    (void)both.right.expect_wc();
    EXPECT_EQ(both.right.memory[99], both.left.memory[99]);
}

TEST_F(transfer_test, write_read_and_their_bounds) {
    two_nodes both;
    fill(both.left.memory, 3);
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(1, 1000))
                  .at(remote.memory + 64536, remote.key)
                  .post(both.a.get()),
              0);
    EXPECT_EQ(both.left.expect_wc().opcode, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(std::memcmp(both.right.memory.data() + 64536, both.left.memory.data() + 1, 1000), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_READ)
                  .from(both.left.entry(30000, 1000))
                  .at(remote.memory + 64536, remote.key)
                  .post(both.a.get()),
              0);
    const auto read = both.left.expect_wc();
    EXPECT_EQ(read.opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(read.byte_len, 1000U);
    EXPECT_EQ(std::memcmp(both.left.memory.data() + 30000, both.left.memory.data() + 1, 1000), 0);
    both.right.expect_none();
}

TEST_F(transfer_test, immediate_data) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    fill(both.left.memory, 4);
    ASSERT_EQ(post_receive(both.b.get(), {}, 1), 0);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}, 2), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE_WITH_IMM)
                  .from(both.left.entry(0, 16))
                  .at(remote.memory + 100, remote.key)
                  .immediate(0xabcd)
                  .post(both.a.get()),
              0);
    ASSERT_EQ(request(IBV_WR_SEND_WITH_IMM).from(both.left.entry(0, 8)).immediate(77).post(both.a.get()), 0);
    auto got = both.right.expect_wc();
    EXPECT_EQ(got.wr_id, 1U);
    EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(got.byte_len, 16U);
    EXPECT_EQ(got.imm_data, 0xabcdU);
    EXPECT_TRUE(got.wc_flags & IBV_WC_WITH_IMM);
    got = both.right.expect_wc();
    EXPECT_EQ(got.imm_data, 77U);
    EXPECT_EQ(got.byte_len, 8U);
    EXPECT_EQ(both.right.memory[115], both.left.memory[15]);
}

TEST_F(transfer_test, atomics) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    auto& there = *reinterpret_cast<std::uint64_t*>(both.right.memory.data() + 64);
    auto& here = *reinterpret_cast<std::uint64_t*>(both.left.memory.data() + 8);
    there = 40;
    ASSERT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                  .from(both.left.entry(8, 8))
                  .atomic(remote.memory + 64, remote.key, 2)
                  .post(both.a.get()),
              0);
    EXPECT_EQ(both.left.expect_wc().opcode, IBV_WC_FETCH_ADD);
    EXPECT_EQ(here, 40U);
    EXPECT_EQ(there, 42U);
    ASSERT_EQ(request(IBV_WR_ATOMIC_CMP_AND_SWP)
                  .from(both.left.entry(8, 8))
                  .atomic(remote.memory + 64, remote.key, 42, 7)
                  .post(both.a.get()),
              0);
    EXPECT_EQ(both.left.expect_wc().opcode, IBV_WC_COMP_SWAP);
    EXPECT_EQ(there, 7U);
    ASSERT_EQ(request(IBV_WR_ATOMIC_CMP_AND_SWP)
                  .from(both.left.entry(8, 8))
                  .atomic(remote.memory + 64, remote.key, 42, 9)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    EXPECT_EQ(here, 7U);
    EXPECT_EQ(there, 7U) << "compared unequal";
}

TEST_F(transfer_test, scatter_and_gather) {
    two_nodes both;
    fill(both.left.memory, 5);
    ASSERT_EQ(post_receive(both.b.get(),
                           {both.right.entry(0, 3), both.right.entry(100, 500), both.right.entry(1000, 50)}),
              0);
    ASSERT_EQ(request(IBV_WR_SEND)
                  .from(both.left.entry(0, 100))
                  .from(both.left.entry(200, 1))
                  .from(both.left.entry(300, 420))
                  .post(both.a.get()),
              0);
    EXPECT_EQ(both.right.expect_wc().byte_len, 521U);
    (void)both.left.expect_wc();
    std::vector<unsigned char> sent(both.left.memory.begin(), both.left.memory.begin() + 100);
    sent.push_back(both.left.memory[200]);
    sent.insert(sent.end(), both.left.memory.begin() + 300, both.left.memory.begin() + 720);
    const auto* got = both.right.memory.data();
    EXPECT_EQ(std::memcmp(got, sent.data(), 3), 0);
    EXPECT_EQ(std::memcmp(got + 100, sent.data() + 3, 500), 0);
    EXPECT_EQ(std::memcmp(got + 1000, sent.data() + 503, 18), 0);
    EXPECT_EQ(got[1018], 0);
}

TEST_F(transfer_test, inline_data_is_taken_at_once) {
    two_nodes both;
    both.left.memory[0] = 11;
    request send(IBV_WR_SEND, 1, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    send.from({both.left.entry(0, 64).addr, 64, 0}); // inline data needs no lkey
    ASSERT_EQ(send.post(both.a.get()), 0);
    both.left.memory[0] = 99; // after the post: no effect on inline data
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 64)}), 0);
    (void)both.right.expect_wc();
    EXPECT_EQ(both.right.memory[0], 11);
}

TEST_F(transfer_test, messages_without_bytes) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(post_receive(both.b.get(), {}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).post(both.a.get()), 0);
    EXPECT_EQ(both.right.expect_wc().byte_len, 0U);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE).at(remote.memory, remote.key).post(both.a.get()), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_READ).at(0, 0).post(both.a.get()), 0);
    for (int i = 0; i < 3; ++i)
        (void)both.left.expect_wc();
}

TEST_F(transfer_test, unsignalled_requests_complete_in_silence_and_hold_their_place) {
    qp_options how;
    how.depth = 4;
    two_nodes both(how);
    const auto remote = both.right.address_of(both.b.get());
    const auto write = [&](unsigned flags) {
        return request(IBV_WR_RDMA_WRITE, 5, flags)
            .from(both.left.entry(0, 8))
            .at(remote.memory, remote.key)
            .post(both.a.get());
    };
    for (int i = 0; i < 3; ++i)
        ASSERT_EQ(write(0), 0);
    ASSERT_EQ(write(IBV_SEND_SIGNALED), 0);
    EXPECT_EQ(write(0), ENOMEM) << "places are free again when a completion was polled, not before";
    (void)both.left.expect_wc();
    both.left.expect_none();
    EXPECT_EQ(write(0), 0);
}

TEST_F(transfer_test, order_within_a_queue_pair) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    for (std::uint64_t i = 0; i < 20; ++i) {
        ASSERT_EQ(request(i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i)
                      .from(both.left.entry(i * 8, 8))
                      .at(remote.memory, remote.key)
                      .post(both.a.get()),
                  0);
    }
    for (std::uint64_t i = 0; i < 20; ++i)
        EXPECT_EQ(both.left.expect_wc().wr_id, i);
}

TEST_F(transfer_test, unreliable_connection_drops_in_silence) {
    qp_options how;
    how.type = IBV_QPT_UC;
    two_nodes both(how);
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 2)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key + 1)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    both.left.memory[0] = 5;
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 3).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    (void)both.right.expect_wc();
    EXPECT_EQ(both.right.memory[0], 5);
    EXPECT_EQ(request(IBV_WR_RDMA_READ).post(both.a.get()), EINVAL) << "unreliable connections cannot read";
}

qp_handle make_datagram_qp(const node& owner) {
    qp_options how;
    how.type = IBV_QPT_UD;
    auto qp = owner.make_qp(how);
    connect(qp.get(), owner.address_of(qp.get()), {});
    return qp;
}

TEST_F(transfer_test, datagrams) {
    node left, right;
    const auto a = make_datagram_qp(left), b = make_datagram_qp(right);
    ibv_ah_attr where{};
    where.dlid = right.address_of(b.get()).lid;
    where.port_num = 1;
    const ah_handle ah(ibv_create_ah(left.pd.get(), &where));
    const auto send = [&](std::size_t bytes, std::uint32_t qkey) {
        request made(IBV_WR_SEND);
        made.from(left.entry(0, bytes));
        made.wr.wr.ud = {ah.get(), b->qp_num, qkey};
        return made.post(a.get());
    };
    left.memory[0] = 9;
    ASSERT_EQ(send(10, 0x1111), 0);
    (void)left.expect_wc();
    right.expect_none(); // no receive was posted: dropped
    ASSERT_EQ(post_receive(b.get(), {right.entry(0, 200)}), 0);
    ASSERT_EQ(send(10, 0x2222), 0); // wrong Q_Key: dropped
    (void)left.expect_wc();
    right.expect_none();
    ASSERT_EQ(send(10, 0x1111), 0);
    (void)left.expect_wc();
    const auto got = right.expect_wc();
    EXPECT_EQ(got.byte_len, 50U) << "40 bytes of header come first";
    EXPECT_EQ(got.src_qp, a->qp_num);
    EXPECT_EQ(got.slid, left.address_of(a.get()).lid);
    EXPECT_FALSE(got.wc_flags & IBV_WC_GRH);
    EXPECT_EQ(right.memory[40], 9);
    ASSERT_EQ(send(4097, 0x1111), 0);
    (void)left.expect_wc(IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(state_of(a.get()), IBV_QPS_SQE);
}

TEST_F(transfer_test, datagrams_by_gid_carry_a_header_that_leads_back) {
    node left, right;
    const auto a = make_datagram_qp(left), b = make_datagram_qp(right);
    ibv_ah_attr where{};
    where.is_global = 1;
    where.grh.dgid = right.address_of(b.get()).gid;
    where.port_num = 1;
    const ah_handle ah(ibv_create_ah(left.pd.get(), &where));
    ASSERT_EQ(post_receive(b.get(), {right.entry(0, 200)}), 0);
    request made(IBV_WR_SEND);
    made.from(left.entry(0, 4));
    made.wr.wr.ud = {ah.get(), b->qp_num, 0x1111};
    ASSERT_EQ(made.post(a.get()), 0);
    auto got = right.expect_wc();
    EXPECT_TRUE(got.wc_flags & IBV_WC_GRH);
    const ah_handle back(
        ibv_create_ah_from_wc(right.pd.get(), &got, reinterpret_cast<ibv_grh*>(right.memory.data()), 1));
    ASSERT_TRUE(back);
    ASSERT_EQ(post_receive(a.get(), {left.entry(0, 200)}, 55), 0);
    request reply(IBV_WR_SEND);
    reply.from(right.entry(0, 4));
    reply.wr.wr.ud = {back.get(), got.src_qp, 0x1111};
    ASSERT_EQ(reply.post(b.get()), 0);
    EXPECT_EQ(left.expect_wc().opcode, IBV_WC_SEND);
    EXPECT_EQ(left.expect_wc().wr_id, 55U);
}

TEST_F(transfer_test, shared_receive_queue_serves_all_in_order_of_arrival) {
    node left, right;
    ibv_srq_init_attr wanted{};
    wanted.attr = {16, 1, 0};
    const srq_handle srq(ibv_create_srq(right.pd.get(), &wanted));
    ASSERT_TRUE(srq);
    qp_options shared;
    shared.srq = srq.get();
    const auto a1 = left.make_qp(), a2 = left.make_qp();
    const auto b1 = right.make_qp(shared), b2 = right.make_qp(shared);
    connect(a1.get(), left.address_of(a1.get()), right.address_of(b1.get()));
    connect(b1.get(), right.address_of(b1.get()), left.address_of(a1.get()));
    connect(a2.get(), left.address_of(a2.get()), right.address_of(b2.get()));
    connect(b2.get(), right.address_of(b2.get()), left.address_of(a2.get()));
    EXPECT_EQ(post_receive(b1.get(), {}), EINVAL) << "it has no queue of its own";
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(left.entry(0, 8)).post(a2.get()), 0); // waits for a receive
    for (std::uint64_t i = 0; i < 3; ++i)
        ASSERT_EQ(post_receive(srq.get(), {right.entry(i * 8, 8)}, i), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 2).from(left.entry(0, 8)).post(a1.get()), 0);
    auto got = right.expect_wc();
    EXPECT_EQ(got.wr_id, 0U);
    EXPECT_EQ(got.qp_num, b2->qp_num);
    got = right.expect_wc();
    EXPECT_EQ(got.wr_id, 1U);
    EXPECT_EQ(got.qp_num, b1->qp_num);
    ibv_srq_attr limit{};
    limit.srq_limit = 1;
    ASSERT_EQ(ibv_modify_srq(srq.get(), &limit, IBV_SRQ_LIMIT), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 3).from(left.entry(0, 8)).post(a1.get()), 0);
    EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_SRQ_LIMIT_REACHED);
    ASSERT_EQ(ibv_query_srq(srq.get(), &limit), 0);
    EXPECT_EQ(limit.srq_limit, 0U) << "one event an arming";
    for (int i = 0; i < 3; ++i)
        (void)left.expect_wc();
    (void)right.expect_wc();
}

TEST_F(transfer_test, completion_events) {
    two_nodes both({}, {}, {}, true);
    const auto event_waits = [](const node& where) {
        pollfd waiting{where.channel->fd, POLLIN, 0};
        return ::poll(&waiting, 1, 0) == 1;
    };
    const auto take = [](const node& where) {
        ibv_cq* cq = nullptr;
        void* cookie = nullptr;
        EXPECT_EQ(ibv_get_cq_event(where.channel.get(), &cq, &cookie), 0);
        EXPECT_EQ(cq, where.cq.get());
        ibv_ack_cq_events(cq, 1);
    };
    for (int i = 0; i < 6; ++i)
        ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    const auto send = [&](unsigned flags) {
        ASSERT_EQ(
            request(IBV_WR_SEND, 1, IBV_SEND_SIGNALED | flags).from(both.left.entry(0, 8)).post(both.a.get()),
            0);
    };
    send(0);
    EXPECT_FALSE(event_waits(both.right)) << "not armed";
    (void)both.right.expect_wc();
    ASSERT_EQ(ibv_req_notify_cq(both.right.cq.get(), 1), 0);
    send(0);
    EXPECT_FALSE(event_waits(both.right)) << "armed for solicited ones only";
    send(IBV_SEND_SOLICITED);
    ASSERT_TRUE(event_waits(both.right));
    take(both.right);
    (void)both.right.expect_wc();
    ASSERT_EQ(ibv_req_notify_cq(both.right.cq.get(), 0), 0);
    EXPECT_FALSE(event_waits(both.right)) << "an event has reported the completion that waits there";
    (void)both.right.expect_wc();
    send(0);
    ASSERT_TRUE(event_waits(both.right));
    take(both.right);
    send(0);
    EXPECT_FALSE(event_waits(both.right)) << "not armed";
    ASSERT_EQ(ibv_req_notify_cq(both.right.cq.get(), 0), 0);
    ASSERT_TRUE(event_waits(both.right)) << "one came since the last event";
    take(both.right);
    (void)both.right.expect_wc();
    (void)both.right.expect_wc();
    ASSERT_EQ(ibv_req_notify_cq(both.right.cq.get(), 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(both.right.cq.get(), 1), 0); // solicited only: does not weaken the first
    send(0);
    ASSERT_TRUE(event_waits(both.right));
    take(both.right);
    EXPECT_FALSE(event_waits(both.right)) << "one event an arming";
}

TEST_F(transfer_test, extended_completion_queue_with_timestamps) {
    node left, right;
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = 16;
    wanted.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    auto* extended = ibv_create_cq_ex(left.context.get(), &wanted);
    ASSERT_NE(extended, nullptr);
    {
        const cq_handle owned(ibv_cq_ex_to_cq(extended));
        qp_options how;
        how.cq = owned.get();
        const auto a = left.make_qp(how), b = right.make_qp();
        connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
        connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
        ibv_poll_cq_attr none{};
        EXPECT_EQ(ibv_start_poll(extended, &none), ENOENT);
        const auto remote = right.address_of(b.get());
        for (std::uint64_t i = 0; i < 2; ++i)
            ASSERT_EQ(request(IBV_WR_RDMA_WRITE, i)
                          .from(left.entry(0, 8))
                          .at(remote.memory, remote.key)
                          .post(a.get()),
                      0);
        ASSERT_EQ(ibv_start_poll(extended, &none), 0);
        EXPECT_EQ(extended->wr_id, 0U);
        EXPECT_EQ(extended->status, IBV_WC_SUCCESS);
        EXPECT_EQ(ibv_wc_read_opcode(extended), IBV_WC_RDMA_WRITE);
        EXPECT_EQ(ibv_wc_read_qp_num(extended), a->qp_num);
        const auto first = ibv_wc_read_completion_ts(extended);
        EXPECT_GT(first, 0U);
        ASSERT_EQ(ibv_next_poll(extended), 0);
        EXPECT_EQ(extended->wr_id, 1U);
        EXPECT_GE(ibv_wc_read_completion_ts(extended), first);
        EXPECT_EQ(ibv_next_poll(extended), ENOENT);
        ibv_end_poll(extended);
    }
    wanted.wc_flags = IBV_WC_EX_WITH_FLOW_TAG;
    EXPECT_EQ(ibv_create_cq_ex(left.context.get(), &wanted), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(transfer_test, a_pair_may_be_its_own_peer) {
    node alone;
    const auto qp = alone.make_qp();
    const auto where = alone.address_of(qp.get());
    connect(qp.get(), where, where);
    alone.memory[0] = 3;
    ASSERT_EQ(post_receive(qp.get(), {alone.entry(100, 8)}, 9), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 8).from(alone.entry(0, 8)).post(qp.get()), 0);
    EXPECT_EQ(alone.expect_wc().wr_id, 9U);
    EXPECT_EQ(alone.expect_wc().wr_id, 8U);
    EXPECT_EQ(alone.memory[100], 3);
}

TEST_F(transfer_test, ethernet_needs_a_gid_and_goes_by_it) {
    describe("hcas = 1\nlink_layer = ethernet\naddress = 127.0.0.1");
    two_nodes both;
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(both.left.context.get(), 1, &port), 0);
    EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    EXPECT_EQ(port.lid, 0);
    const auto where = both.left.address_of(both.a.get());
    EXPECT_EQ(where.gid.raw[10], 0xff);
    EXPECT_EQ(where.gid.raw[12], 127);
    ibv_gid_entry entry{};
    ASSERT_EQ(ibv_query_gid_ex(both.left.context.get(), 1, 0, &entry, 0), 0);
    EXPECT_EQ(entry.gid_type, static_cast<std::uint32_t>(IBV_GID_TYPE_ROCE_V2));
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.right.expect_wc();
    const auto third = both.left.make_qp();
    ASSERT_EQ(to_init(third.get()), 0);
    auto without = both.right.address_of(both.b.get());
    without.by_gid = false;
    EXPECT_EQ(to_rtr(third.get(), without), EINVAL) << "RoCE has no LIDs";
}

} // namespace
