// SPDX-License-Identifier: BSD-3-Clause
// Operations that wait for others: draining of a send queue, fences, destruction of objects with
// unacknowledged events; and the asynchronous event of a peer that did not wait.
#include "tests/lab/hca/two_hosts.hpp"

namespace {

using namespace testing_support;
using draining_test = test_lab;
using draining_between_hosts = two_hosts;

constexpr std::chrono::milliseconds moment(50);

int drain(ibv_qp* qp) {
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_SQD;
    values.en_sqd_async_notify = 1;
    return ibv_modify_qp(qp, &values, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

bool is_draining(ibv_qp* qp) {
    ibv_qp_attr values{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp, &values, IBV_QP_STATE, &init), 0);
    return values.sq_draining != 0;
}

TEST_F(draining_test, a_send_that_waits_for_its_receive_ends_first) {
    two_nodes both;
    for (std::uint64_t i = 1; i <= 2; ++i)
        ASSERT_EQ(request(IBV_WR_SEND, i).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    ASSERT_EQ(drain(both.a.get()), 0);
    EXPECT_EQ(next_event(both.left.context.get(), moment), std::nullopt) << "one has begun and waits";
    EXPECT_TRUE(is_draining(both.a.get()));
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    EXPECT_EQ(both.left.expect_wc().wr_id, 1U);
    EXPECT_EQ(next_event(both.left.context.get()), IBV_EVENT_SQ_DRAINED);
    EXPECT_FALSE(is_draining(both.a.get()));
    both.left.expect_none(); // the second send was not started
    ASSERT_EQ(to_state(both.a.get(), IBV_QPS_RTS), 0);
    EXPECT_EQ(both.left.expect_wc().wr_id, 2U);
    EXPECT_EQ(next_event(both.left.context.get(), moment), std::nullopt) << "one event a draining";
}

TEST_F(draining_test, a_send_that_fails_meanwhile_leaves_nothing_to_drain) {
    connect_options how;
    how.rnr_retry = 2;
    how.rnr_timer = 29; // 246 ms
    two_nodes both({}, how, how);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    ASSERT_EQ(drain(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_RNR_RETRY_EXC_ERR);
    EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
    EXPECT_EQ(next_event(both.left.context.get(), moment), std::nullopt);
}

TEST_F(draining_test, no_event_without_a_request) {
    two_nodes both;
    ASSERT_EQ(to_state(both.a.get(), IBV_QPS_SQD), 0);
    EXPECT_EQ(next_event(both.left.context.get(), moment), std::nullopt);
}

TEST_F(draining_between_hosts, outstanding_requests_complete_first) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      for (std::uint64_t i = 1; i <= 3; ++i)
                          EXPECT_EQ(request(IBV_WR_SEND, i).from(here.entry(0, 8)).post(qp), 0);
                      EXPECT_EQ(drain(qp), 0);
                      EXPECT_EQ(next_event(here.context.get(), moment), std::nullopt)
                          << "they are at the other host and wait for receives";
                      EXPECT_TRUE(is_draining(qp));
                      EXPECT_EQ(request(IBV_WR_SEND, 4).from(here.entry(0, 8)).post(qp), 0);
                      say(1);
                      EXPECT_EQ(next_event(here.context.get()), IBV_EVENT_SQ_DRAINED);
                      // The event follows the completions: those of the requests that had begun are there.
                      std::uint64_t ended = 0;
                      while (const auto done = here.wait(std::chrono::milliseconds(0)))
                          EXPECT_EQ(done->wr_id, ++ended);
                      EXPECT_GE(ended, 1U);
                      EXPECT_LE(ended, 3U) << "the last had not begun";
                      EXPECT_FALSE(here.wait(moment)) << "no request begins while the queue is drained";
                      EXPECT_EQ(to_state(qp, IBV_QPS_RTS), 0);
                      while (ended < 4)
                          EXPECT_EQ(here.expect_wc().wr_id, ++ended);
                      say(2);
                  },
                  [&](node& there, ibv_qp* qp) {
                      EXPECT_TRUE(is_said(1));
                      for (std::uint64_t i = 0; i < 4; ++i)
                          EXPECT_EQ(post_receive(qp, {there.entry(0, 8)}, i), 0);
                      for (std::uint64_t i = 0; i < 4; ++i)
                          EXPECT_EQ(there.expect_wc().wr_id, i);
                      EXPECT_TRUE(is_said(2));
                  }),
              0);
}

// A fenced send starts after the preceding read has placed its data.
void read_and_pass_on(const node& here, ibv_qp* qp, const address& remote) {
    constexpr std::size_t bytes = 60000;
    EXPECT_EQ(request(IBV_WR_RDMA_READ, 1).from(here.entry(0, bytes)).at(remote.memory, remote.key).post(qp),
              0);
    EXPECT_EQ(request(IBV_WR_SEND, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE)
                  .from(here.entry(bytes - 100, 100))
                  .post(qp),
              0);
    EXPECT_EQ(here.expect_wc().wr_id, 1U);
    EXPECT_EQ(here.expect_wc().wr_id, 2U);
}

TEST_F(draining_test, a_fence_waits_for_reads) {
    two_nodes both;
    std::fill_n(both.right.memory.begin(), 60000, 42);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(61000, 100)}), 0);
    read_and_pass_on(both.left, both.a.get(), both.right.address_of(both.b.get()));
    EXPECT_EQ(both.right.memory[61099], 42);
}

// labels: no_tsan
TEST_F(draining_between_hosts, a_fence_waits_for_reads) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      EXPECT_TRUE(is_said(1));
                      read_and_pass_on(here, qp, remote());
                  },
                  [&](node& there, ibv_qp* qp) {
                      std::fill_n(there.memory.begin(), 60000, 42);
                      say(1);
                      EXPECT_EQ(post_receive(qp, {there.entry(61000, 100)}), 0);
                      (void)there.expect_wc();
                      EXPECT_EQ(there.memory[61099], 42);
                  }),
              0);
}

// Calls `destroy` in a thread; it must not return before `acknowledge` was called.
void expect_to_wait(const std::function<void()>& destroy, const std::function<void()>& acknowledge) {
    std::atomic<bool> gone{false};
    std::thread destroyer([&] {
        destroy();
        gone = true;
    });
    std::this_thread::sleep_for(moment);
    EXPECT_FALSE(gone);
    acknowledge();
    destroyer.join();
}

TEST_F(draining_test, a_completion_queue_waits_for_its_completion_events) {
    node here(65536, 256, true);
    auto* cq = ibv_create_cq(here.context.get(), 16, nullptr, here.channel.get(), 0);
    ASSERT_NE(cq, nullptr);
    qp_options how;
    how.cq = cq;
    {
        const auto qp = here.make_qp(how);
        const auto where = here.address_of(qp.get());
        connect(qp.get(), where, where);
        ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
        ASSERT_EQ(
            request(IBV_WR_RDMA_WRITE).from(here.entry(0, 8)).at(where.memory, where.key).post(qp.get()), 0);
        ibv_cq* which = nullptr;
        void* cookie = nullptr;
        ASSERT_EQ(ibv_get_cq_event(here.channel.get(), &which, &cookie), 0);
        EXPECT_EQ(which, cq);
    }
    expect_to_wait([&] { EXPECT_EQ(ibv_destroy_cq(cq), 0); }, [&] { ibv_ack_cq_events(cq, 1); });
}

TEST_F(draining_test, a_completion_queue_waits_for_its_error_event) {
    node here;
    auto* cq = ibv_create_cq(here.context.get(), 1, nullptr, nullptr, 0);
    ASSERT_NE(cq, nullptr);
    qp_options how;
    how.cq = cq;
    ibv_async_event event{};
    {
        const auto qp = here.make_qp(how);
        const auto where = here.address_of(qp.get());
        connect(qp.get(), where, where);
        for (int i = 0; i < 2; ++i)
            ASSERT_EQ(
                request(IBV_WR_RDMA_WRITE).from(here.entry(0, 8)).at(where.memory, where.key).post(qp.get()),
                0);
        ASSERT_EQ(ibv_get_async_event(here.context.get(), &event), 0);
        ASSERT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
        EXPECT_EQ(event.element.cq, cq);
    }
    expect_to_wait([&] { EXPECT_EQ(ibv_destroy_cq(cq), 0); }, [&] { ibv_ack_async_event(&event); });
}

TEST_F(draining_test, a_shared_receive_queue_waits_for_its_events) {
    node left, right;
    ibv_srq_init_attr wanted{};
    wanted.attr = {16, 1, 0};
    auto* srq = ibv_create_srq(right.pd.get(), &wanted);
    ASSERT_NE(srq, nullptr);
    ibv_async_event event{};
    {
        qp_options shared;
        shared.srq = srq;
        const auto a = left.make_qp(), b = right.make_qp(shared);
        connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
        connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
        ASSERT_EQ(post_receive(srq, {right.entry(0, 8)}), 0);
        ibv_srq_attr limit{};
        limit.srq_limit = 1;
        ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
        ASSERT_EQ(request(IBV_WR_SEND).from(left.entry(0, 8)).post(a.get()), 0);
        (void)left.expect_wc();
        ASSERT_EQ(ibv_get_async_event(right.context.get(), &event), 0);
        ASSERT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
        EXPECT_EQ(event.element.srq, srq);
    }
    expect_to_wait([&] { EXPECT_EQ(ibv_destroy_srq(srq), 0); }, [&] { ibv_ack_async_event(&event); });
}

TEST_F(draining_test, a_request_before_rts_raises_communication_established) {
    for (const auto type : {IBV_QPT_RC, IBV_QPT_UC})
        for (const auto opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE}) {
            SCOPED_TRACE(fmt::format("type {} opcode {}", static_cast<int>(type), static_cast<int>(opcode)));
            node left, right;
            qp_options how;
            how.type = type;
            const auto a = left.make_qp(how), b = right.make_qp(how);
            const auto local_side = left.address_of(a.get()), remote_side = right.address_of(b.get());
            connect(a.get(), local_side, remote_side);
            const auto once = [&] {
                ASSERT_EQ(post_receive(b.get(), {right.entry(0, 8)}), 0);
                ASSERT_EQ(request(opcode)
                              .from(left.entry(0, 8))
                              .at(remote_side.memory, remote_side.key)
                              .post(a.get()),
                          0);
                (void)left.expect_wc();
            };
            for (int life = 0; life < 2; ++life) {
                ASSERT_EQ(to_init(b.get()), 0);
                ASSERT_EQ(to_rtr(b.get(), local_side), 0);
                once();
                EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_COMM_EST);
                once();
                ASSERT_EQ(to_rts(b.get(), remote_side.psn), 0);
                once();
                EXPECT_EQ(next_event(right.context.get(), moment), std::nullopt) << "it is reported once";
                ASSERT_EQ(to_state(b.get(), IBV_QPS_RESET), 0);
            }
        }
}

TEST_F(draining_between_hosts, a_request_before_rts_raises_communication_established) {
    EXPECT_EQ(on_both(
                  [&](node& here, ibv_qp* qp) {
                      ASSERT_TRUE(is_said(1));
                      ASSERT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp), 0);
                      (void)here.expect_wc();
                      say(2);
                  },
                  [&](node& there, ibv_qp* qp) {
                      ASSERT_EQ(to_state(qp, IBV_QPS_RESET), 0);
                      ASSERT_EQ(to_init(qp), 0);
                      ASSERT_EQ(to_rtr(qp, shared[0]), 0);
                      ASSERT_EQ(post_receive(qp, {there.entry(0, 8)}), 0);
                      say(1);
                      EXPECT_EQ(next_event(there.context.get()), IBV_EVENT_COMM_EST);
                      EXPECT_EQ(there.expect_wc().byte_len, 8U);
                      EXPECT_TRUE(is_said(2));
                  }),
              0);
}

} // namespace
