// SPDX-License-Identifier: BSD-3-Clause
// Small writes, which are carried out without a place in the ring: nothing else may differ.
#include "tests/hca/verbs_node.hpp"

#include <thread>

namespace {

using namespace testing_support;
using short_write_test = test_lab;

TEST_F(short_write_test, stays_behind_a_send_that_waits) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    both.left.memory[0] = 5;
    both.right.memory[100] = 1;
    ASSERT_EQ(request(IBV_WR_SEND, 1).from(both.left.entry(8, 8)).post(both.a.get()), 0);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 2)
                  .from(both.left.entry(0, 1))
                  .at(remote.memory + 100, remote.key)
                  .post(both.a.get()),
              0);
    both.left.expect_none();
    EXPECT_EQ(both.right.memory[100], 1) << "nothing overtakes";
    ASSERT_EQ(post_receive(both.b.get(), {both.right.entry(0, 8)}), 0);
    EXPECT_EQ(both.left.expect_wc().wr_id, 1U);
    EXPECT_EQ(both.left.expect_wc().wr_id, 2U);
    EXPECT_EQ(both.right.memory[100], 5);
}

TEST_F(short_write_test, of_a_list_with_others_between_them) {
    two_nodes both;
    const auto remote = both.right.address_of(both.b.get());
    for (unsigned char i = 0; i < 3; ++i)
        both.left.memory[i] = static_cast<unsigned char>(10 + i);
    ibv_sge entries[3] = {both.left.entry(0, 1), both.left.entry(16, 1), both.left.entry(2, 1)};
    ibv_send_wr list[3] = {}, *bad = nullptr;
    for (unsigned i = 0; i < 3; ++i) {
        list[i].wr_id = i;
        list[i].sg_list = &entries[i];
        list[i].num_sge = 1;
        list[i].send_flags = IBV_SEND_SIGNALED;
        list[i].next = i < 2 ? &list[i + 1] : nullptr;
        list[i].opcode = i == 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        list[i].wr.rdma = {remote.memory + 200, remote.key}; // written, read back, written again
    }
    ASSERT_EQ(ibv_post_send(both.a.get(), list, &bad), 0);
    for (unsigned i = 0; i < 3; ++i)
        EXPECT_EQ(both.left.expect_wc().wr_id, i);
    EXPECT_EQ(both.left.memory[16], 10) << "the read saw the first";
    EXPECT_EQ(both.right.memory[200], 12);
}

TEST_F(short_write_test, inline_data_is_as_it_was_when_posted) {
    node own;
    const auto qp = own.make_qp({});
    connect(qp.get(), own.address_of(qp.get()), own.address_of(qp.get()));
    for (unsigned i = 0; i < 32; ++i)
        own.memory[i] = static_cast<unsigned char>(i);
    const auto target = own.address_of(qp.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED | IBV_SEND_INLINE)
                  .from(own.entry(0, 24))
                  .at(target.memory + 4, target.key) // over part of itself
                  .post(qp.get()),
              0);
    (void)own.expect_wc();
    for (unsigned i = 0; i < 24; ++i)
        ASSERT_EQ(own.memory[4 + i], i) << i;
}

TEST_F(short_write_test, of_several_threads_on_one_queue_pair) {
    constexpr unsigned threads = 4, each = 2000;
    node left(65536, 16384), right(65536, 16384);
    qp_options how;
    how.depth = 16384;
    const auto a = left.make_qp(how), b = right.make_qp(how);
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    const auto remote = right.address_of(b.get());
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; ++t)
        all.emplace_back([&, t] {
            for (unsigned i = 1; i <= each; ++i) {
                const std::size_t at = t * 64;
                std::memcpy(left.memory.data() + at, &i, sizeof(i));
                EXPECT_EQ(request(IBV_WR_RDMA_WRITE, t, i % 4 == 0 ? unsigned{IBV_SEND_SIGNALED} : 0)
                              .from(left.entry(at, sizeof(i)))
                              .at(remote.memory + at, remote.key)
                              .post(a.get()),
                          0);
            }
        });
    for (auto& thread : all)
        thread.join();
    unsigned completed = 0;
    ibv_wc done[64];
    for (int more; (more = ibv_poll_cq(left.cq.get(), 64, done)) > 0;
         completed += static_cast<unsigned>(more))
        for (int i = 0; i < more; ++i)
            EXPECT_EQ(done[i].status, IBV_WC_SUCCESS);
    EXPECT_EQ(completed, threads * each / 4);
    for (unsigned t = 0; t < threads; ++t) {
        unsigned seen = 0;
        std::memcpy(&seen, right.memory.data() + t * 64, sizeof(seen));
        EXPECT_EQ(seen, each) << "each thread's own come in order";
    }
}

TEST_F(short_write_test, a_full_queue_is_full_for_it_too) {
    qp_options how;
    how.depth = 16;
    two_nodes both(how);
    const auto remote = both.right.address_of(both.b.get());
    const auto post = [&](unsigned flags) {
        return request(IBV_WR_RDMA_WRITE, 1, flags)
            .from(both.left.entry(0, 4))
            .at(remote.memory, remote.key)
            .post(both.a.get());
    };
    unsigned taken = 0;
    while (taken < 1000 && post(0) == 0)
        ++taken;
    EXPECT_GE(taken, 16U);
    EXPECT_LT(taken, 1000U) << "unsignalled requests hold their places";
    EXPECT_EQ(post(0), ENOMEM);
}

} // namespace
