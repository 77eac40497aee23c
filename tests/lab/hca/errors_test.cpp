// SPDX-License-Identifier: BSD-3-Clause
// Errors of the InfiniBand specification, one test each, checked at both sides.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

namespace {

using namespace testing_support;
using errors_test = test_lab;

// The responder refuses the request: the requester completes with `status`, both queue pairs enter the error
// state, receives are flushed, and the responder gets an asynchronous event.
void expect_refusal(two_nodes& both, request& bad, ibv_wc_status status,
                    std::optional<ibv_event_type> event) {
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}, 200), 0);
    ASSERT_EQ(bad.post(both.a.get()), 0);
    EXPECT_EQ(both.left.expect_wc(status).wr_id, 1U);
    EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
    EXPECT_TRUE(reaches(both.b.get(), IBV_QPS_ERR));
    EXPECT_EQ(both.right.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 200U);
    if (event) {
        EXPECT_EQ(next_event(both.right.context.get()), event);
    }
    ASSERT_EQ(request(IBV_WR_SEND, 77).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    EXPECT_EQ(both.left.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 77U) << "posted in the error state: flushed";
}

// The same for one request with a valid key to a responder with these options.
void expect_refusal(const connect_options& responder, ibv_wr_opcode opcode, ibv_wc_status status,
                    ibv_event_type event) {
    two_nodes both({}, {}, responder);
    const auto remote = both.right.address_of(both.b.get());
    request bad(opcode);
    bad.from(both.left.entry(0, 8)).at(remote.memory, remote.key);
    expect_refusal(both, bad, status, event);
}

TEST_F(errors_test, write_with_a_wrong_key) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    request bad(IBV_WR_RDMA_WRITE);
    bad.from(both.left.entry(0, 8)).at(remote.memory, remote.key ^ 0x100);
    expect_refusal(both, bad, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(errors_test, stale_key) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    both.right.mr.reset();
    both.right.mr.reset(
        ibv_reg_mr(both.right.pd.get(), both.right.memory.data(), both.right.memory.size(), all_access));
    EXPECT_NE(both.right.mr->rkey, remote.key);
    request bad(IBV_WR_RDMA_READ);
    bad.from(both.left.entry(0, 8)).at(remote.memory, remote.key);
    expect_refusal(both, bad, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(errors_test, beyond_the_end_of_the_region) {
    for (const std::int64_t offset : {65536 - 7, -1, 1 << 20}) {
        two_nodes both;
        const auto remote = both.right.address_of(both.b.get());
        request bad(IBV_WR_RDMA_WRITE);
        bad.from(both.left.entry(0, 8)).at(remote.memory + static_cast<std::uint64_t>(offset), remote.key);
        expect_refusal(both, bad, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    }
}

TEST_F(errors_test, region_without_the_right) {
    for (const auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
        two_nodes both;
        std::vector<unsigned char> plain(4096);
        const mr_handle mr(ibv_reg_mr(both.right.pd.get(), plain.data(), plain.size(), local_access));
        request bad(opcode);
        bad.from(both.left.entry(0, 8));
        const auto at = (reinterpret_cast<std::uint64_t>(plain.data()) + 7) / 8 * 8;
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            bad.atomic(at, mr->rkey, 1);
        else
            bad.at(at, mr->rkey);
        expect_refusal(both, bad, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    }
}

TEST_F(errors_test, queue_pair_without_the_right) {
    connect_options closed;
    closed.access = IBV_ACCESS_LOCAL_WRITE;
    expect_refusal(closed, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(errors_test, region_of_another_domain) {
    two_nodes both;
    const pd_handle other(ibv_alloc_pd(both.right.context.get()));
    const mr_handle mr(ibv_reg_mr(other.get(), both.right.memory.data(), 4096, all_access));
    request bad(IBV_WR_RDMA_WRITE);
    bad.from(both.left.entry(0, 8)).at(reinterpret_cast<std::uint64_t>(both.right.memory.data()), mr->rkey);
    expect_refusal(both, bad, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(errors_test, misaligned_atomic) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    request bad(IBV_WR_ATOMIC_FETCH_AND_ADD);
    bad.from(both.left.entry(0, 8)).atomic(remote.memory + 4, remote.key, 1);
    expect_refusal(both, bad, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

TEST_F(errors_test, read_of_a_responder_without_resources) {
    connect_options none;
    none.rd_atomic = 0;
    expect_refusal(none, IBV_WR_RDMA_READ, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

TEST_F(errors_test, receive_too_small) {
    two_nodes both;
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 99)}, 1), 0);
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 99)}, 2), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 100)).post(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(both.right.expect_wc(IBV_WC_LOC_LEN_ERR).wr_id, 1U);
    EXPECT_EQ(both.right.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
    EXPECT_TRUE(reaches(both.b.get(), IBV_QPS_ERR));
    EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
}

TEST_F(errors_test, receive_with_a_wrong_key) {
    two_nodes both;
    auto wrong = both.right.entry(0, 100);
    wrong.lkey += 256;
    ASSERT_EQ(post_receive(both.b.get(), {wrong}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 100)).post(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_REM_OP_ERR);
    (void)both.right.expect_wc(IBV_WC_LOC_PROT_ERR);
    EXPECT_TRUE(reaches(both.b.get(), IBV_QPS_ERR));
}

TEST_F(errors_test, send_with_a_wrong_key) {
    two_nodes both;
    auto wrong = both.left.entry(0, 100);
    wrong.lkey += 256;
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 100)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(wrong).post(both.a.get()), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 2, 0).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    EXPECT_EQ(both.left.expect_wc(IBV_WC_LOC_PROT_ERR).wr_id, 1U);
    EXPECT_EQ(both.left.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U) << "unsignalled ones too";
    both.right.expect_none();
    EXPECT_EQ(state_of(both.b.get()), IBV_QPS_RTS) << "the peer has not seen anything";
}

TEST_F(errors_test, read_into_a_region_that_is_not_writable) {
    two_nodes both;
    std::vector<unsigned char> plain(4096);
    const mr_handle mr(ibv_reg_mr(both.left.pd.get(), plain.data(), plain.size(), 0));
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_READ)
                  .from({reinterpret_cast<std::uint64_t>(plain.data()), 8, mr->lkey})
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc(IBV_WC_LOC_PROT_ERR);
}

TEST_F(errors_test, receiver_not_ready) {
    connect_options patient;
    patient.rnr_retry = 2;
    patient.rnr_timer = 24; // 41 ms
    two_nodes both({}, patient, patient);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    ASSERT_EQ(request(IBV_WR_SEND, 2).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    EXPECT_EQ(both.left.expect_wc(IBV_WC_RNR_RETRY_EXC_ERR).wr_id, 1U);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(80));
    EXPECT_EQ(both.left.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
    EXPECT_EQ(state_of(both.b.get()), IBV_QPS_RTS);
}

TEST_F(errors_test, receiver_not_ready_and_no_retries) {
    connect_options hasty;
    hasty.rnr_retry = 0;
    two_nodes both({}, hasty, hasty);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(errors_test, peer_that_is_not_there) {
    node alone;
    const auto qp = alone.make_qp();
    auto unknown_peer = alone.address_of(qp.get());
    unknown_peer.qp_number = 0x3fc123;
    connect(qp.get(), alone.address_of(qp.get()), unknown_peer);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(request(IBV_WR_SEND).from(alone.entry(0, 8)).post(qp.get()), 0);
    alone.expect_none();
    (void)alone.expect_wc(IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(2 * 4194))
        << "twice 4.096 us * 2^10";
    EXPECT_EQ(state_of(qp.get()), IBV_QPS_ERR);
}

TEST_F(errors_test, peer_that_comes_late) {
    node left, right;
    const auto a = left.make_qp(), b = right.make_qp();
    connect_options patient;
    patient.timeout = 20; // 4 s
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()), patient);
    ASSERT_EQ(to_init(b.get()), 0);
    ASSERT_EQ(post_receive(b.get(), {right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(left.entry(0, 8)).post(a.get()), 0);
    left.expect_none();
    ASSERT_EQ(to_rtr(b.get(), left.address_of(a.get())), 0);
    (void)left.expect_wc();
    (void)right.expect_wc();
}

TEST_F(errors_test, packet_numbers_that_do_not_match) {
    node left, right;
    const auto a = left.make_qp(), b = right.make_qp();
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    auto wrong = left.address_of(a.get());
    wrong.psn += 1;
    connect(b.get(), right.address_of(b.get()), wrong);
    ASSERT_EQ(post_receive(b.get(), {right.entry(0, 8)}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(left.entry(0, 8)).post(a.get()), 0);
    (void)left.expect_wc(IBV_WC_RETRY_EXC_ERR);
}

TEST_F(errors_test, wrong_lid) {
    node left, right;
    const auto a = left.make_qp(), b = right.make_qp();
    auto elsewhere = right.address_of(b.get());
    elsewhere.lid = 99;
    connect(a.get(), left.address_of(a.get()), elsewhere);
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(left.entry(0, 8)).at(elsewhere.memory, elsewhere.key).post(a.get()),
        0);
    (void)left.expect_wc(IBV_WC_RETRY_EXC_ERR);
}

TEST_F(errors_test, moved_to_error_by_hand_flushes_in_order) {
    connect_options how;
    two_nodes both({}, how, how);
    for (std::uint64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(post_receive(both.a.get(), {both.left.entry(0, 8)}, 100 + i), 0);
        ASSERT_EQ(request(IBV_WR_SEND, i, 0).from(both.left.entry(0, 8)).post(both.a.get()),
                  0); // the peer posts no receive
    }
    ASSERT_EQ(to_state(both.a.get(), IBV_QPS_ERR), 0);
    std::vector<std::uint64_t> sends, receives;
    for (int i = 0; i < 6; ++i) {
        const auto done = both.left.expect_wc(IBV_WC_WR_FLUSH_ERR);
        (done.wr_id < 100 ? sends : receives).push_back(done.wr_id);
    }
    EXPECT_EQ(sends, (std::vector<std::uint64_t>{0, 1, 2}));
    EXPECT_EQ(receives, (std::vector<std::uint64_t>{100, 101, 102}));
    ASSERT_EQ(post_receive(both.a.get(), {both.left.entry(0, 8)}, 103), 0);
    EXPECT_EQ(both.left.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 103U);
}

TEST_F(errors_test, last_request_of_a_shared_queue) {
    node left, right;
    ibv_srq_init_attr wanted{};
    wanted.attr = {16, 1, 0};
    const srq_handle srq(ibv_create_srq(right.pd.get(), &wanted));
    qp_options shared;
    shared.srq = srq.get();
    const auto b = right.make_qp(shared);
    connect(b.get(), right.address_of(b.get()), right.address_of(b.get()));
    ASSERT_EQ(post_receive(srq.get(), {right.entry(0, 8)}), 0);
    ASSERT_EQ(to_state(b.get(), IBV_QPS_ERR), 0);
    EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_QP_LAST_WQE_REACHED);
    right.expect_none(); // receives in the SRQ are not flushed
}

TEST_F(errors_test, completion_queue_overrun) {
    node left(65536, 4), right;
    qp_options how;
    const auto a = left.make_qp(how), b = right.make_qp(how);
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    const auto remote = right.address_of(b.get());
    for (std::uint64_t i = 0; i < 5; ++i)
        ASSERT_EQ(
            request(IBV_WR_RDMA_WRITE, i).from(left.entry(0, 8)).at(remote.memory, remote.key).post(a.get()),
            0);
    EXPECT_EQ(next_event(left.context.get()), IBV_EVENT_CQ_ERR);
    EXPECT_TRUE(reaches(a.get(), IBV_QPS_ERR));
    EXPECT_EQ(next_event(left.context.get()), IBV_EVENT_QP_FATAL);
    for (std::uint64_t i = 0; i < 4; ++i)
        EXPECT_EQ(left.expect_wc().wr_id, i) << "what was there is not lost";
}

TEST_F(errors_test, reset_forgets_everything) {
    two_nodes both;
    ASSERT_EQ(post_receive(both.a.get(), {both.left.entry(0, 8)}), 0);
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    ASSERT_EQ(to_state(both.a.get(), IBV_QPS_RESET), 0);
    both.left.expect_none(); // the reset removed old completions
    connect(both.a.get(), both.left.address_of(both.a.get()), remote);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 5)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    EXPECT_EQ(both.left.expect_wc().wr_id, 5U);
}

TEST_F(errors_test, send_queue_drained_and_resumed) {
    two_nodes both;
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_SQD;
    values.en_sqd_async_notify = 1;
    ASSERT_EQ(ibv_modify_qp(both.a.get(), &values, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    EXPECT_EQ(next_event(both.left.context.get()), IBV_EVENT_SQ_DRAINED);
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key)
                  .post(both.a.get()),
              0);
    both.left.expect_none(); // not started while drained
    ASSERT_EQ(to_state(both.a.get(), IBV_QPS_RTS), 0);
    (void)both.left.expect_wc();
}

TEST_F(errors_test, destroying_waits_for_acknowledged_events) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(0, 8))
                  .at(remote.memory, remote.key + 256)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc(IBV_WC_REM_ACCESS_ERR);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(both.right.context.get(), &event), 0);
    EXPECT_EQ(event.element.qp, both.b.get());
    std::atomic<bool> gone{false};
    std::thread destroyer([&] {
        both.b.reset();
        gone = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(gone);
    ibv_ack_async_event(&event);
    destroyer.join();
    EXPECT_TRUE(gone);
}

} // namespace
