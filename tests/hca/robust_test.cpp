// SPDX-License-Identifier: BSD-3-Clause
// Failing calls, cycles, threads.
#include "tests/hca/verbs_node.hpp"
#include "tests/support/test_lab.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

namespace {

using namespace testing_support;
using robust_test = test_lab;

// The verbs that destroy may fail too; then once more.
template <typename T>
void twice(int (*destroy)(T*), T* handle) {
    if (handle != nullptr && destroy(handle) != 0) {
        EXPECT_EQ(destroy(handle), 0);
    }
}

// Everything a program does, coping with every failure.
bool whole_life() {
    int count = 0;
    auto** list = ibv_get_device_list(&count);
    if (list == nullptr)
        return false;
    const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> owned(list, ibv_free_device_list);
    struct cleanup {
        ibv_context* context = nullptr;
        ibv_pd* pd = nullptr;
        ibv_comp_channel* channel = nullptr;
        ibv_cq* cq = nullptr;
        ibv_mr* mr = nullptr;
        ibv_srq* srq = nullptr;
        ibv_qp* qp = nullptr;
        ibv_ah* ah = nullptr;
        ~cleanup() {
            twice(ibv_destroy_ah, ah);
            twice(ibv_destroy_qp, qp);
            twice(ibv_destroy_srq, srq);
            twice(ibv_dereg_mr, mr);
            twice(ibv_destroy_cq, cq);
            twice(ibv_destroy_comp_channel, channel);
            twice(ibv_dealloc_pd, pd);
            twice(ibv_close_device, context);
        }
    } made;
    std::vector<unsigned char> memory(4096);
    if ((made.context = ibv_open_device(list[0])) == nullptr ||
        (made.pd = ibv_alloc_pd(made.context)) == nullptr ||
        (made.channel = ibv_create_comp_channel(made.context)) == nullptr ||
        (made.cq = ibv_create_cq(made.context, 16, nullptr, made.channel, 0)) == nullptr ||
        (made.mr = ibv_reg_mr(made.pd, memory.data(), memory.size(), all_access)) == nullptr)
        return false;
    ibv_srq_init_attr srq_wanted{};
    srq_wanted.attr = {4, 1, 0};
    if ((made.srq = ibv_create_srq(made.pd, &srq_wanted)) == nullptr)
        return false;
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = made.cq;
    wanted.cap = {4, 4, 1, 1, 0};
    if ((made.qp = ibv_create_qp(made.pd, &wanted)) == nullptr)
        return false;
    ibv_port_attr port{};
    if (ibv_query_port(made.context, 1, &port) != 0)
        return false;
    ibv_ah_attr route{};
    route.dlid = port.lid;
    route.port_num = 1;
    if ((made.ah = ibv_create_ah(made.pd, &route)) == nullptr)
        return false;
    address own;
    own.qp_number = made.qp->qp_num;
    own.lid = port.lid;
    if (to_init(made.qp) != 0 || to_rtr(made.qp, own) != 0 || to_rts(made.qp, 0) != 0)
        return false;
    const ibv_sge entry{reinterpret_cast<std::uint64_t>(memory.data()), 8, made.mr->lkey};
    if (post_receive(made.qp, {entry}) != 0 || request(IBV_WR_SEND).from(entry).post(made.qp) != 0)
        return false;
    ibv_wc done[2];
    return ibv_poll_cq(made.cq, 2, done) == 2 && ibv_req_notify_cq(made.cq, 0) == 0;
}

TEST_F(robust_test, the_nth_call_fails) {
    ASSERT_TRUE(whole_life());
    const auto descriptors = open_descriptors();
    for (const auto* action : {"errno ENOMEM", "delay 1ms"}) {
        unsigned n = 1;
        for (;; ++n) {
            SCOPED_TRACE(fmt::format("call {} {}", n, action));
            ASSERT_EQ(gaudi_lab_hca_arm_faults(fmt::format("* {} {}", n, action).c_str()), 0);
            (void)whole_life();
            const auto fired = gaudi_lab_hca_faults_fired();
            gaudi_lab_hca_arm_faults("");
            if (fired == 0)
                break;
            ASSERT_LT(n, 200U);
        }
        EXPECT_GT(n, 20U);
        EXPECT_EQ(open_descriptors(), descriptors);
        EXPECT_TRUE(std::filesystem::is_empty(lab() / "hca"));
    }
    EXPECT_TRUE(whole_life());
}

TEST_F(robust_test, descriptors_run_out) {
    ASSERT_TRUE(whole_life());
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    for (rlim_t room = 0; room < 16; ++room) {
        rlimit tight = before;
        tight.rlim_cur = open_descriptors() + room;
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
        ::testing::internal::CaptureStderr();
        const bool worked = whole_life();
        (void)::testing::internal::GetCapturedStderr();
        ::setrlimit(RLIMIT_NOFILE, &before);
        EXPECT_TRUE(std::filesystem::is_empty(lab() / "hca")) << room;
        if (room < 2) {
            EXPECT_FALSE(worked);
        }
    }
    EXPECT_TRUE(whole_life());
}

TEST_F(robust_test, a_hundred_thousand_registrations_leave_nothing) {
    node here;
    const auto cycle = [&](int times) {
        for (int i = 0; i < times; ++i) {
            const mr_handle mr(ibv_reg_mr(here.pd.get(), here.memory.data(), here.memory.size(), all_access));
            ASSERT_TRUE(mr);
        }
    };
    cycle(1000);
    const auto stored = stored_bytes(lab());
    const auto mapped = mapped_regions();
    cycle(100000);
    EXPECT_EQ(stored_bytes(lab()), stored);
    EXPECT_LE(mapped_regions(), mapped + 1);
}

TEST_F(robust_test, queue_pairs_come_and_go_without_growth) {
    node here;
    const auto cycle = [&](int times) {
        for (int i = 0; i < times; ++i) {
            const auto qp = here.make_qp();
            connect(qp.get(), here.address_of(qp.get()), here.address_of(qp.get()));
        }
    };
    cycle(200);
    const auto stored = stored_bytes(lab());
    cycle(2000);
    EXPECT_EQ(stored_bytes(lab()), stored);
}

TEST_F(robust_test, several_threads_on_one_queue_pair_and_one_completion_queue) {
    constexpr int threads = 4, each = 500;
    node left(65536, 4096), right(65536, 4096);
    qp_options how;
    how.depth = 4096;
    const auto a = left.make_qp(how), b = right.make_qp(how);
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    const auto remote = right.address_of(b.get());
    std::atomic<int> completed{0}, received{0};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
        all.emplace_back([&, t] {
            for (int i = 0; i < each; ++i) {
                EXPECT_EQ(post_receive(b.get(), {right.entry(static_cast<std::size_t>(t) * 64, 8)}), 0);
                if (i % 2 == 0) {
                    EXPECT_EQ(request(IBV_WR_SEND)
                                  .from(left.entry(static_cast<std::size_t>(t) * 64, 8))
                                  .post(a.get()),
                              0);
                } else {
                    EXPECT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                                  .from(left.entry(4096 + static_cast<std::size_t>(t) * 8, 8))
                                  .atomic(remote.memory + 32768, remote.key, 1)
                                  .post(a.get()),
                              0);
                }
                ibv_wc done[4];
                completed += ibv_poll_cq(left.cq.get(), 4, done);
                received += ibv_poll_cq(right.cq.get(), 4, done);
                if (i % 50 == 0) { // a region comes and goes beside the traffic
                    std::vector<unsigned char> other(4096);
                    const mr_handle mr(ibv_reg_mr(right.pd.get(), other.data(), other.size(), all_access));
                    EXPECT_TRUE(mr);
                }
            }
        });
    for (auto& thread : all)
        thread.join();
    ibv_wc done[64];
    int more;
    while ((more = ibv_poll_cq(left.cq.get(), 64, done)) > 0)
        completed += more;
    while ((more = ibv_poll_cq(right.cq.get(), 64, done)) > 0)
        received += more;
    EXPECT_EQ(completed, threads * each);
    EXPECT_EQ(received, threads * each / 2);
    std::uint64_t counter = 0;
    std::memcpy(&counter, right.memory.data() + 32768, 8);
    EXPECT_EQ(counter, static_cast<std::uint64_t>(threads * each / 2));
}

} // namespace
