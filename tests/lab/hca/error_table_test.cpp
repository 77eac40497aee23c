// SPDX-License-Identifier: BSD-3-Clause
// Errors that the requester detects locally, and errors with unreliable services and shared receive queues.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

namespace {

using namespace testing_support;
using error_table_test = test_lab;

request operation(const two_nodes& both, ibv_wr_opcode opcode, const ibv_sge& from) {
    const auto remote = both.right.address_of(both.b.get());
    request made(opcode);
    made.from(from);
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
        made.atomic(remote.memory, remote.key, 1);
    else
        made.at(remote.memory, remote.key);
    return made;
}

// The request fails at the requester: the peer gets no event and stays in RTS.
void expect_own_error(const two_nodes& both, request bad, ibv_wc_status status) {
    ASSERT_EQ(bad.post(both.a.get()), 0);
    EXPECT_EQ(both.left.expect_wc(status).wr_id, 1U);
    EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
    EXPECT_EQ(state_of(both.b.get()), IBV_QPS_RTS);
    EXPECT_EQ(next_event(both.right.context.get(), std::chrono::milliseconds(1)), std::nullopt);
}

TEST_F(error_table_test, requester_without_resources_for_reads) {
    connect_options none;
    none.rd_atomic = 0;
    for (const auto opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
        two_nodes both({}, none);
        expect_own_error(both, operation(both, opcode, both.left.entry(0, 8)), IBV_WC_LOC_QP_OP_ERR);
    }
}

TEST_F(error_table_test, responder_without_resources_for_atomics) {
    connect_options none;
    none.rd_atomic = 0;
    two_nodes both({}, {}, none);
    ASSERT_EQ(operation(both, IBV_WR_ATOMIC_FETCH_AND_ADD, both.left.entry(0, 8)).post(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(next_event(both.right.context.get()), IBV_EVENT_QP_REQ_ERR);
}

TEST_F(error_table_test, atomic_without_space_for_its_answer) {
    for (const std::size_t length : {0U, 7U}) {
        two_nodes both;
        expect_own_error(both, operation(both, IBV_WR_ATOMIC_FETCH_AND_ADD, both.left.entry(0, length)),
                         IBV_WC_LOC_LEN_ERR);
    }
}

TEST_F(error_table_test, queue_pair_without_the_right_to_be_read) {
    connect_options closed;
    closed.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    for (const auto opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
        two_nodes both({}, {}, closed);
        ASSERT_EQ(operation(both, opcode, both.left.entry(0, 8)).post(both.a.get()), 0);
        (void)both.left.expect_wc(IBV_WC_REM_ACCESS_ERR);
        EXPECT_EQ(next_event(both.right.context.get()), IBV_EVENT_QP_ACCESS_ERR);
        EXPECT_TRUE(reaches(both.b.get(), IBV_QPS_ERR));
    }
}

TEST_F(error_table_test, own_memory_with_a_key_that_is_not_good) {
    constexpr ibv_wr_opcode all[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                     IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (const auto opcode : all) {
        two_nodes both;
        auto unknown = both.left.entry(0, 8);
        unknown.lkey += 256;
        expect_own_error(both, operation(both, opcode, unknown), IBV_WC_LOC_PROT_ERR);
    }
    for (const auto opcode : all) {
        two_nodes both;
        const auto stale = both.left.entry(0, 8);
        both.left.mr.reset();
        both.left.mr.reset(
            ibv_reg_mr(both.left.pd.get(), both.left.memory.data(), both.left.memory.size(), all_access));
        expect_own_error(both, operation(both, opcode, stale), IBV_WC_LOC_PROT_ERR);
    }
    for (const auto opcode : all) {
        two_nodes both;
        const pd_handle other(ibv_alloc_pd(both.left.context.get()));
        const mr_handle foreign(ibv_reg_mr(other.get(), both.left.memory.data(), 4096, all_access));
        auto entry = both.left.entry(0, 8);
        entry.lkey = foreign->lkey;
        expect_own_error(both, operation(both, opcode, entry), IBV_WC_LOC_PROT_ERR);
    }
    for (const auto opcode : all) {
        two_nodes both;
        auto beyond = both.left.entry(65536 - 7, 8);
        expect_own_error(both, operation(both, opcode, beyond), IBV_WC_LOC_PROT_ERR);
    }
}

// Unreliable services: a receive with a wrong key or a short buffer causes no error at the sender.
class unreliable_receives : public test_lab, public ::testing::WithParamInterface<ibv_qp_type> {
protected:
    void expect_at_receiver(bool wrong_key, ibv_wc_status status) {
        qp_options how;
        how.type = GetParam();
        two_nodes both(how);
        ibv_ah_attr where{};
        where.dlid = both.right.address_of(both.b.get()).lid;
        where.port_num = 1;
        const ah_handle ah(ibv_create_ah(both.left.pd.get(), &where));
        auto entry = both.right.entry(0, wrong_key ? 200 : 99);
        if (wrong_key)
            entry.lkey += 256;
        ASSERT_EQ(post_receive(both.b.get(), {entry}, 1), 0);
        ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 200)}, 2), 0);
        request send(IBV_WR_SEND);
        send.from(both.left.entry(0, 100));
        if (GetParam() == IBV_QPT_UD)
            send.wr.wr.ud = {ah.get(), both.b->qp_num, 0x1111};
        ASSERT_EQ(send.post(both.a.get()), 0);
        (void)both.left.expect_wc();
        EXPECT_EQ(state_of(both.a.get()), IBV_QPS_RTS);
        EXPECT_EQ(both.right.expect_wc(status).wr_id, 1U);
        EXPECT_EQ(both.right.expect_wc(IBV_WC_WR_FLUSH_ERR).wr_id, 2U);
        EXPECT_TRUE(reaches(both.b.get(), IBV_QPS_ERR));
    }
};

TEST_P(unreliable_receives, too_small) {
    expect_at_receiver(false, IBV_WC_LOC_LEN_ERR);
}
TEST_P(unreliable_receives, with_a_wrong_key) {
    expect_at_receiver(true, IBV_WC_LOC_PROT_ERR);
}
INSTANTIATE_TEST_SUITE_P(services, unreliable_receives, ::testing::Values(IBV_QPT_UC, IBV_QPT_UD),
                         [](const auto& service) {
                             return std::string(service.param == IBV_QPT_UC ? "connection" : "datagrams");
                         });

TEST_F(error_table_test, receive_completions_that_overrun_their_queue) {
    node left, right(65536, 2);
    const auto a = left.make_qp(), b = right.make_qp();
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    for (std::uint64_t i = 0; i < 3; ++i)
        ASSERT_EQ(post_receive(b.get(), {right.entry(0, 8)}, i), 0);
    for (std::uint64_t i = 0; i < 3; ++i)
        ASSERT_EQ(request(IBV_WR_SEND, i).from(left.entry(0, 8)).post(a.get()), 0);
    EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_CQ_ERR);
    EXPECT_TRUE(reaches(b.get(), IBV_QPS_ERR));
    EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_QP_FATAL);
    for (std::uint64_t i = 0; i < 2; ++i)
        EXPECT_EQ(right.expect_wc().wr_id, i) << "what was there is not lost";
    right.expect_none();
    for (std::uint64_t i = 0; i < 3; ++i)
        EXPECT_EQ(left.expect_wc().wr_id, i);
    EXPECT_EQ(state_of(a.get()), IBV_QPS_RTS) << "the sender's queue is its own";
}

TEST_F(error_table_test, last_request_of_a_shared_queue_after_a_peers_error) {
    node left, right;
    ibv_srq_init_attr wanted{};
    wanted.attr = {16, 1, 0};
    const srq_handle srq(ibv_create_srq(right.pd.get(), &wanted));
    qp_options shared;
    shared.srq = srq.get();
    const auto a = left.make_qp(), b = right.make_qp(shared);
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    ASSERT_EQ(post_receive(srq.get(), {right.entry(0, 8)}), 0);
    const auto remote = right.address_of(b.get());
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(left.entry(0, 8)).at(remote.memory, remote.key + 256).post(a.get()),
        0);
    (void)left.expect_wc(IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(next_event(right.context.get()), IBV_EVENT_QP_LAST_WQE_REACHED);
    EXPECT_TRUE(reaches(b.get(), IBV_QPS_ERR));
    right.expect_none(); // the receive stays in the SRQ for other queue pairs
}

} // namespace
