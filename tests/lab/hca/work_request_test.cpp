// SPDX-License-Identifier: BSD-3-Clause
// Posting with ibv_wr_*.
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

namespace {

using namespace testing_support;

constexpr std::uint64_t reliable_operations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                              IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                              IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                              IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

class work_request_test : public test_lab {
protected:
    static qp_handle make_extended(const node& where, ibv_qp_type type, std::uint64_t operations,
                                   std::uint32_t depth = 16) {
        ibv_qp_init_attr_ex wanted{};
        wanted.qp_type = type;
        wanted.send_cq = wanted.recv_cq = where.cq.get();
        wanted.cap = {depth, depth, 2, 2, 64};
        wanted.pd = where.pd.get();
        wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        wanted.send_ops_flags = operations;
        return qp_handle(ibv_create_qp_ex(where.context.get(), &wanted));
    }
};

class connected_requests : public work_request_test {
protected:
    void SetUp() override {
        left.emplace();
        right.emplace();
        a = make_extended(*left, IBV_QPT_RC, reliable_operations, 4);
        ASSERT_TRUE(a);
        b = right->make_qp();
        connect(a.get(), left->address_of(a.get()), right->address_of(b.get()));
        connect(b.get(), right->address_of(b.get()), left->address_of(a.get()));
        remote = right->address_of(b.get());
        qp = ibv_qp_to_qp_ex(a.get());
        qp->wr_flags = IBV_SEND_SIGNALED;
    }
    void TearDown() override {
        a.reset();
        b.reset();
        left.reset();
        right.reset();
        work_request_test::TearDown();
    }
    void set_left(std::size_t offset, std::size_t length) {
        ibv_wr_set_sge(qp, left->mr->lkey, left->entry(offset, length).addr,
                       static_cast<std::uint32_t>(length));
    }
    [[nodiscard]] std::uint64_t left_word(std::size_t offset) const {
        std::uint64_t value = 0;
        std::memcpy(&value, &left->memory[offset], 8);
        return value;
    }

    std::optional<node> left, right;
    qp_handle a, b;
    address remote;
    ibv_qp_ex* qp = nullptr;
};

TEST_F(connected_requests, write_and_inline_send_in_one_list) {
    ASSERT_EQ(post_receive(b.get(), {right->entry(0, 64)}), 0);
    unsigned char text[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    left->memory[100] = 42;
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = 0;
    ibv_wr_rdma_write(qp, remote.key, remote.memory + 200);
    set_left(100, 1);
    qp->wr_id = 2;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(qp);
    ibv_wr_set_inline_data(qp, text, sizeof(text));
    right->expect_none(); // nothing is posted before ibv_wr_complete
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(left->expect_wc().wr_id, 2U);
    EXPECT_EQ(right->expect_wc().byte_len, 8U);
    EXPECT_EQ(right->memory[200], 42);
    EXPECT_EQ(right->memory[7], 8);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_abort(qp);
    left->expect_none();
}

TEST_F(connected_requests, immediate_data) {
    ASSERT_EQ(post_receive(b.get(), {right->entry(0, 64)}), 0);
    ASSERT_EQ(post_receive(b.get(), {}), 0);
    left->memory[0] = 7;
    ibv_wr_start(qp);
    ibv_wr_send_imm(qp, 1234);
    set_left(0, 8);
    ibv_wr_rdma_write_imm(qp, remote.key, remote.memory + 100, 5678);
    set_left(0, 1);
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    const auto sent = right->expect_wc();
    EXPECT_EQ(sent.opcode, IBV_WC_RECV);
    EXPECT_TRUE(sent.wc_flags & IBV_WC_WITH_IMM);
    EXPECT_EQ(sent.imm_data, 1234U);
    const auto written = right->expect_wc();
    EXPECT_EQ(written.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(written.imm_data, 5678U);
    EXPECT_EQ(right->memory[0], 7);
    EXPECT_EQ(right->memory[100], 7);
    EXPECT_EQ(left->expect_wc().opcode, IBV_WC_SEND);
    EXPECT_EQ(left->expect_wc().opcode, IBV_WC_RDMA_WRITE);
}

TEST_F(connected_requests, read_and_both_atomics) {
    const std::uint64_t begin = 40;
    const auto cell = (remote.memory + 7) / 8 * 8;
    std::memcpy(reinterpret_cast<void*>(cell), &begin, 8);
    ibv_wr_start(qp);
    ibv_wr_rdma_read(qp, remote.key, cell);
    set_left(0, 8);
    ibv_wr_atomic_fetch_add(qp, remote.key, cell, 2);
    set_left(8, 8);
    ibv_wr_atomic_cmp_swp(qp, remote.key, cell, 42, 77);
    set_left(16, 8);
    ibv_wr_atomic_cmp_swp(qp, remote.key, cell, 42, 99);
    set_left(24, 8);
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    for (const auto opcode : {IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP, IBV_WC_COMP_SWAP})
        EXPECT_EQ(left->expect_wc().opcode, opcode);
    EXPECT_EQ(left_word(0), 40U);
    EXPECT_EQ(left_word(8), 40U);
    EXPECT_EQ(left_word(16), 42U) << "equal: exchanged";
    EXPECT_EQ(left_word(24), 77U) << "not equal: left alone";
}

TEST_F(connected_requests, lists_of_entries_and_of_inline_data) {
    left->memory[10] = 1;
    left->memory[20] = 2;
    ASSERT_EQ(post_receive(b.get(), {right->entry(0, 64)}), 0);
    ASSERT_EQ(post_receive(b.get(), {right->entry(64, 64)}), 0);
    const ibv_sge entries[] = {left->entry(10, 1), left->entry(20, 1)};
    unsigned char first[2] = {3, 4}, second[1] = {5};
    const ibv_data_buf buffers[] = {{first, sizeof(first)}, {second, sizeof(second)}};
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    ibv_wr_set_sge_list(qp, 2, entries);
    ibv_wr_send(qp);
    ibv_wr_set_inline_data_list(qp, 2, buffers);
    first[0] = 99; // the data was copied above
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    EXPECT_EQ(right->expect_wc().byte_len, 2U);
    EXPECT_EQ(right->expect_wc().byte_len, 3U);
    EXPECT_EQ(right->memory[0], 1);
    EXPECT_EQ(right->memory[1], 2);
    EXPECT_EQ(right->memory[64], 3);
    EXPECT_EQ(right->memory[66], 5);
}

// With a bad request at any position none of the list runs; the next list runs.
TEST_F(connected_requests, a_list_with_a_bad_request_does_nothing) {
    left->memory[0] = 42;
    unsigned char many[65]{};
    const auto write = [&] {
        ibv_wr_rdma_write(qp, remote.key, remote.memory);
        set_left(0, 1);
    };
    ibv_wr_start(qp);
    write();
    ibv_wr_send(qp);
    ibv_wr_set_inline_data(qp, many, sizeof(many)); // 64 bytes were granted
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
    const ibv_sge entries[] = {left->entry(0, 1), left->entry(0, 1), left->entry(0, 1)};
    ibv_wr_start(qp);
    write();
    ibv_wr_send(qp);
    ibv_wr_set_sge_list(qp, 3, entries); // 2 entries were granted
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
    ibv_wr_start(qp);
    write();
    qp->wr_local_inv(qp, 1);
    EXPECT_EQ(ibv_wr_complete(qp), EOPNOTSUPP);
    ibv_wr_start(qp);
    ibv_wr_set_inline_data(qp, many, 1); // no request was started
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL);
    left->expect_none();
    EXPECT_EQ(right->memory[0], 0);
    ibv_wr_start(qp);
    write();
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    (void)left->expect_wc();
    EXPECT_EQ(right->memory[0], 42);
}

TEST_F(connected_requests, a_list_longer_than_the_queue_does_nothing) {
    left->memory[0] = 42;
    const auto post = [&](int count) {
        ibv_wr_start(qp);
        for (int i = 0; i < count; ++i) {
            ibv_wr_rdma_write(qp, remote.key, remote.memory);
            set_left(0, 1);
        }
        return ibv_wr_complete(qp);
    };
    EXPECT_EQ(post(5), ENOMEM);
    left->expect_none();
    EXPECT_EQ(right->memory[0], 0);
    EXPECT_EQ(post(3), 0);
    EXPECT_EQ(post(2), ENOMEM) << "nothing was polled: one place is left";
    EXPECT_EQ(post(1), 0);
    for (int i = 0; i < 4; ++i)
        (void)left->expect_wc();
    left->expect_none();
}

TEST_F(work_request_test, datagrams) {
    node left, right;
    const auto a = make_extended(left, IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
    ASSERT_TRUE(a);
    qp_options how;
    how.type = IBV_QPT_UD;
    const auto b = right.make_qp(how);
    connect(a.get(), left.address_of(a.get()), {});
    connect(b.get(), right.address_of(b.get()), {});
    ibv_ah_attr where{};
    where.dlid = right.address_of(b.get()).lid;
    where.port_num = 1;
    const ah_handle ah(ibv_create_ah(left.pd.get(), &where));
    ASSERT_TRUE(ah);
    ASSERT_EQ(post_receive(b.get(), {right.entry(0, 200)}), 0);
    auto* qp = ibv_qp_to_qp_ex(a.get());
    left.memory[0] = 9;
    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send_imm(qp, 77);
    ibv_wr_set_ud_addr(qp, ah.get(), b->qp_num, 0x1111);
    ibv_wr_set_sge(qp, left.mr->lkey, left.entry(0, 10).addr, 10);
    ASSERT_EQ(ibv_wr_complete(qp), 0);
    (void)left.expect_wc();
    const auto got = right.expect_wc();
    EXPECT_EQ(got.byte_len, 50U);
    EXPECT_EQ(got.imm_data, 77U);
    EXPECT_EQ(right.memory[40], 9);
    ibv_wr_start(qp);
    ibv_wr_send(qp);
    EXPECT_EQ(ibv_wr_complete(qp), EINVAL) << "to whom?";
}

TEST_F(work_request_test, operations_that_a_service_does_not_have) {
    node here;
    for (const auto& [type, operations] : {std::pair{IBV_QPT_RC, std::uint64_t{IBV_QP_EX_WITH_SEND_WITH_INV}},
                                           std::pair{IBV_QPT_UC, std::uint64_t{IBV_QP_EX_WITH_RDMA_READ}},
                                           std::pair{IBV_QPT_UD, std::uint64_t{IBV_QP_EX_WITH_RDMA_WRITE}}}) {
        EXPECT_FALSE(make_extended(here, type, operations));
        EXPECT_EQ(errno, EOPNOTSUPP);
    }
}

} // namespace
