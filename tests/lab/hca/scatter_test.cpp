// SPDX-License-Identifier: BSD-3-Clause
// Scatter to CQE, as libmlx5 does it: a few bytes come with the completion, and the processor that polls
// copies them.
#include "tests/lab/hca/gaudi_region.hpp"
#include "tests/lab/hca/two_hosts.hpp"

#include <csignal>
#include <cstdlib>
#include <infiniband/mlx5dv.h>

namespace {

using namespace testing_support;

qp_handle make_by_mlx5(const node& where, std::uint32_t flags) {
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = where.cq.get();
    wanted.cap = {64, 64, 4, 4, 128};
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
    wanted.pd = where.pd.get();
    mlx5dv_qp_init_attr provider{};
    provider.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    provider.create_flags = flags;
    return qp_handle(mlx5dv_create_qp(where.context.get(), &wanted, &provider));
}

// A receive of few bytes, and where its bytes are before the receiver polls.
class scatter_test : public dmabuf_test {
protected:
    static void connect_both(node& left, ibv_qp* a, node& right, ibv_qp* b) {
        connect(a, left.address_of(a), right.address_of(b));
        connect(b, right.address_of(b), left.address_of(a));
    }
    // Sends so many bytes of value 9; whether they were in memory before the receiver polled.
    static bool arrives_before_the_poll(const node& left, ibv_qp* a, node& right, ibv_qp* b,
                                        std::size_t length) {
        right.memory.assign(right.memory.size(), 1);
        std::vector<unsigned char> expected(length, 9);
        EXPECT_EQ(post_receive(b, {right.entry(0, 3), right.entry(100, 4096)}), 0);
        std::memset(const_cast<unsigned char*>(left.memory.data()), 9, length);
        EXPECT_EQ(request(IBV_WR_SEND).from(left.entry(0, length)).post(a), 0);
        (void)left.expect_wc();
        const bool early = right.memory[0] == 9;
        EXPECT_EQ(right.expect_wc().byte_len, length);
        std::vector<unsigned char> seen(right.memory.begin(), right.memory.begin() + 3);
        seen.insert(seen.end(), right.memory.begin() + 100,
                    right.memory.begin() + 100 + static_cast<std::ptrdiff_t>(length) - 3);
        EXPECT_EQ(seen, expected);
        return early;
    }
};

TEST_F(scatter_test, brings_up_to_32_bytes_with_the_completion) {
    for (const auto type : {IBV_QPT_RC, IBV_QPT_UC}) {
        qp_options how;
        how.type = type;
        two_nodes both(how);
        for (const std::size_t length : {4UL, 32UL, 33UL, 4000UL})
            EXPECT_EQ(arrives_before_the_poll(both.left, both.a.get(), both.right, both.b.get(), length),
                      length > 32)
                << length;
    }
}

TEST_F(scatter_test, is_forbidden_by_setting_by_queue_pair_and_by_other_nics) {
    ::setenv("MLX5_SCATTER_TO_CQE", "0", 1);
    {
        two_nodes both;
        EXPECT_TRUE(arrives_before_the_poll(both.left, both.a.get(), both.right, both.b.get(), 8));
    }
    ::unsetenv("MLX5_SCATTER_TO_CQE");
    for (const auto flags :
         {MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE}) {
        node left, right;
        EXPECT_TRUE(mlx5dv_is_supported(left.context->device));
        const auto a = left.make_qp(), b = make_by_mlx5(right, flags);
        ASSERT_TRUE(b);
        connect_both(left, a.get(), right, b.get());
        EXPECT_EQ(arrives_before_the_poll(left, a.get(), right, b.get(), 8),
                  flags == MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE);
    }
    node refusing;
    EXPECT_FALSE(make_by_mlx5(refusing, MLX5DV_QP_CREATE_TUNNEL_OFFLOADS));
    EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(scatter_test, is_not_what_other_drivers_do) {
    ::close(std::exchange(fd, -1));
    gaudi.reset();
    describe("gaudis = 1\nhbm_pages = 1\nscatter_to_cqe = no\n");
    two_nodes both;
    EXPECT_FALSE(mlx5dv_is_supported(both.left.context->device));
    EXPECT_TRUE(arrives_before_the_poll(both.left, both.a.get(), both.right, both.b.get(), 8));
}

TEST_F(scatter_test, is_how_reads_arrive_where_every_request_is_signalled) {
    for (const bool all : {false, true}) {
        qp_options how;
        how.signal_all = all;
        two_nodes both(how);
        const auto there = both.right.address_of(both.b.get());
        both.right.memory.assign(both.right.memory.size(), 6);
        both.left.memory[0] = 1;
        ASSERT_EQ(request(IBV_WR_RDMA_READ)
                      .from(both.left.entry(0, 8))
                      .at(there.memory, there.key)
                      .post(both.a.get()),
                  0);
        EXPECT_EQ(both.left.memory[0], all ? 1 : 6) << "read by the time that post_send returns";
        (void)both.left.expect_wc();
        EXPECT_EQ(both.left.memory[7], 6);
    }
}

TEST_F(scatter_test, leaves_out_the_fence_of_ucx_which_reads_nothing) {
    ::setenv("GAUDI_LAB_HCA_QUIRKS", "ucx-fence", 1);
    qp_options how;
    how.signal_all = true;
    two_nodes both(how);
    ::unsetenv("GAUDI_LAB_HCA_QUIRKS");
    both.left.memory[0] = 77;
    ASSERT_EQ(request(IBV_WR_RDMA_READ).from(both.left.entry(0, 8)).at(0, 0xff).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.left.memory[0], 77);
}

// The CPU cannot reach device memory: what crashes a program on the first day with a ConnectX.
TEST_F(scatter_test, crashes_a_program_that_receives_few_bytes_into_device_memory) {
    for (const auto flags :
         {MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE}) {
        child victim([&] {
            ::signal(SIGSEGV, SIG_DFL); // not the sanitizer's handler
            node left, right;
            const auto a = left.make_qp(), b = make_by_mlx5(right, flags);
            connect_both(left, a.get(), right, b.get());
            const auto region = register_it(right);
            if (post_receive(b.get(), {{at, 4096, region->lkey}}) != 0 ||
                request(IBV_WR_SEND).from(left.entry(0, 8)).post(a.get()) != 0)
                return 1;
            (void)left.expect_wc();
            (void)right.expect_wc();
            return ::testing::Test::HasFailure() ? 2 : 0;
        });
        const bool allowed = flags == MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE;
        EXPECT_EQ(victim.wait(), allowed ? 128 + SIGSEGV : 0);
    }
}

class scatter_between_hosts : public two_hosts {};

TEST_F(scatter_between_hosts, brings_receives_and_reads_with_the_completion) {
    qp_options how;
    how.signal_all = true;
    const auto status = on_both(
        [&](node& here, ibv_qp* qp) {
            EXPECT_EQ(post_receive(qp, {here.entry(0, 4096)}), 0);
            (void)here.expect_wc();
            EXPECT_EQ(here.memory[7], 9);
            EXPECT_EQ(request(IBV_WR_RDMA_READ)
                          .from(here.entry(64, 8))
                          .at(shared[1].memory, shared[1].key)
                          .post(qp),
                      0);
            (void)here.expect_wc();
            EXPECT_EQ(here.memory[71], 9);
            EXPECT_EQ(request(IBV_WR_SEND).from(here.entry(0, 8)).post(qp), 0);
            (void)here.expect_wc();
        },
        [&](node& there, ibv_qp* qp) {
            there.memory.assign(there.memory.size(), 9);
            EXPECT_EQ(post_receive(qp, {there.entry(4096, 8)}), 0);
            EXPECT_EQ(request(IBV_WR_SEND).from(there.entry(0, 8)).post(qp), 0);
            (void)there.expect_wc();
            (void)there.expect_wc();
        },
        how);
    EXPECT_EQ(status, 0);
}

} // namespace
