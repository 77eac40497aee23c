// SPDX-License-Identifier: BSD-3-Clause
// Failing calls, cycles, threads.
#include "lab/hca/segment.hpp"
#include "tests/lab/hca/newer_verbs.h"
#include "tests/lab/hca/verbs_node.hpp"
#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <cstddef>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace {

using namespace testing_support;
using robust_test = test_lab;

// An injected fault may fail a destroy verb too; the second call must succeed.
template <typename T>
void twice(int (*destroy)(T*), T* handle) {
    if (handle != nullptr && destroy(handle) != 0) {
        EXPECT_EQ(destroy(handle), 0);
    }
}

// Runs the verbs of a typical program and handles every failure.
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

// Calls every verb that is new in rdma-core 65.
void every_newer_verb(ibv_context* context, ibv_pd* pd) {
    std::uint64_t speed = 0;
    (void)newer_query_port_speed(context, 1, &speed);
    EXPECT_EQ(newer_alloc_dmah(context, nullptr), nullptr);
    EXPECT_NE(newer_dealloc_dmah(nullptr), 0);
    EXPECT_EQ(newer_dm_export_dmabuf_fd(nullptr), -1);
    EXPECT_NE(newer_query_comp_cntr_caps(context, nullptr, 0), 0);
    EXPECT_EQ(newer_create_comp_cntr(context, nullptr), nullptr);
    EXPECT_NE(newer_destroy_comp_cntr(nullptr), 0);
    for (auto* change :
         {newer_set_comp_cntr, newer_set_err_comp_cntr, newer_inc_comp_cntr, newer_inc_err_comp_cntr})
        EXPECT_NE(change(nullptr, 1), 0);
    for (auto* read : {newer_read_comp_cntr, newer_read_err_comp_cntr})
        EXPECT_NE(read(nullptr, nullptr), 0);
    EXPECT_NE(newer_qp_attach_comp_cntr(nullptr, nullptr, nullptr), 0);
    void* buffer = nullptr;
    auto* memory = newer_alloc_buf(pd, 8192, &buffer);
    if (memory == nullptr)
        return;
    newer_mr_init_attr wanted{};
    wanted.comp_mask = newer_mr_addr | newer_mr_buf;
    wanted.addr = memory;
    wanted.length = 8192;
    wanted.access = local_access;
    wanted.buf = buffer;
    ibv_mr* regions[] = {newer_reg_buf_mr(pd, buffer, memory, 8192, local_access),
                         newer_reg_mr_ex(pd, &wanted)};
    EXPECT_EQ(newer_export_buf_dmabuf_fd(buffer), -1);
    for (auto* mr : regions)
        twice(ibv_dereg_mr, mr);
    newer_free_buf(buffer);
}

// Calls every verb that fault scripts cover once; most results are ignored.
void every_verb() {
    int count = 0;
    auto** list = ibv_get_device_list(&count);
    if (list == nullptr)
        return;
    auto* context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    if (context == nullptr)
        return;
    const auto close = [&] { twice(ibv_close_device, context); };
    ibv_device_attr attributes{};
    ibv_device_attr_ex extended{};
    ibv_port_attr port{};
    ibv_gid gid{};
    ibv_gid_entry entry{};
    __be16 pkey = 0;
    (void)ibv_query_device(context, &attributes);
    (void)ibv_query_device_ex(context, nullptr, &extended);
    (void)ibv_query_port(context, 1, &port);
    (void)ibv_query_gid(context, 1, 0, &gid);
    (void)ibv_query_gid_ex(context, 1, 0, &entry, 0);
    (void)ibv_query_pkey(context, 1, 0, &pkey);
    (void)ibv_get_pkey_index(context, 1, 0xffff);
    EXPECT_EQ(ibv_import_device(-1), nullptr);
    EXPECT_EQ(ibv_import_pd(context, 1), nullptr);
    EXPECT_EQ(ibv_import_dm(context, 1), nullptr);
    auto* pd = ibv_alloc_pd(context);
    if (pd == nullptr)
        return close();
    EXPECT_EQ(ibv_import_mr(pd, 1), nullptr);
    std::vector<unsigned char> memory(8192);
    const auto at = reinterpret_cast<std::uint64_t>(memory.data());
    unsigned access = all_access; // not a constant: verbs.h would call other functions
    ibv_mr* regions[] = {ibv_reg_mr(pd, memory.data(), 8192, local_access),
                         ibv_reg_mr_iova(pd, memory.data(), 8192, at, local_access),
                         ibv_reg_mr_iova2(pd, memory.data(), 8192, at, access), ibv_alloc_null_mr(pd)};
    EXPECT_EQ(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, all_access), nullptr);
    every_newer_verb(context, pd);
    if (regions[0] != nullptr) {
        EXPECT_NE(ibv_rereg_mr(regions[0], IBV_REREG_MR_CHANGE_ACCESS, pd, nullptr, 0, 0), 0);
    }
    auto* channel = ibv_create_comp_channel(context);
    auto* cq = ibv_create_cq(context, 16, nullptr, channel, 0);
    ibv_cq_init_attr_ex cq_wanted{};
    cq_wanted.cqe = 4;
    auto* cq_ex = ibv_create_cq_ex(context, &cq_wanted);
    ibv_srq_init_attr srq_wanted{};
    srq_wanted.attr = {4, 1, 0};
    auto* srq = ibv_create_srq(pd, &srq_wanted);
    ibv_srq_init_attr_ex srq_ex_wanted{};
    srq_ex_wanted.attr = {4, 1, 0};
    srq_ex_wanted.srq_type = IBV_SRQT_BASIC;
    srq_ex_wanted.pd = pd;
    srq_ex_wanted.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
    auto* srq_ex = ibv_create_srq_ex(context, &srq_ex_wanted);
    if (srq != nullptr) {
        ibv_srq_attr values{};
        (void)ibv_modify_srq(srq, &values, IBV_SRQ_LIMIT);
        (void)ibv_query_srq(srq, &values);
        (void)post_receive(srq, {});
    }
    ibv_ah_attr route{};
    route.dlid = 1;
    route.port_num = 1;
    ibv_wc wc{};
    ibv_grh grh{};
    ibv_ah* handles[] = {ibv_create_ah(pd, &route), ibv_create_ah_from_wc(pd, &wc, &grh, 1)};
    (void)ibv_init_ah_from_wc(context, 1, &wc, &grh, &route);
    ibv_qp* pairs[2] = {};
    if (cq != nullptr) {
        ibv_qp_init_attr wanted{};
        wanted.qp_type = IBV_QPT_RC;
        wanted.send_cq = wanted.recv_cq = cq;
        wanted.cap = {4, 4, 1, 1, 0};
        pairs[0] = ibv_create_qp(pd, &wanted);
        ibv_qp_init_attr_ex ex_wanted{};
        ex_wanted.qp_type = IBV_QPT_RC;
        ex_wanted.send_cq = ex_wanted.recv_cq = cq;
        ex_wanted.cap = {4, 4, 1, 1, 0};
        ex_wanted.pd = pd;
        ex_wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        ex_wanted.send_ops_flags = IBV_QP_EX_WITH_SEND;
        pairs[1] = ibv_create_qp_ex(context, &ex_wanted);
        (void)ibv_resize_cq(cq, 32);
        (void)ibv_req_notify_cq(cq, 0);
    }
    if (auto* qp = pairs[0]; qp != nullptr) {
        address own;
        own.qp_number = qp->qp_num;
        own.lid = 1;
        (void)to_init(qp);
        (void)to_rtr(qp, own);
        (void)to_rts(qp, 0);
        (void)post_receive(qp, {});
        (void)request(IBV_WR_SEND).post(qp);
        ibv_qp_attr values{};
        ibv_qp_init_attr init{};
        (void)ibv_query_qp(qp, &values, 0, &init);
        (void)ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0);
        EXPECT_NE(ibv_attach_mcast(qp, &gid, 0), 0);
        EXPECT_NE(ibv_detach_mcast(qp, &gid, 0), 0);
        ibv_ece ece{};
        EXPECT_NE(ibv_query_ece(qp, &ece), 0);
        EXPECT_NE(ibv_set_ece(qp, &ece), 0);
        (void)ibv_poll_cq(cq, 1, &wc);
    }
    if (auto* qp = pairs[1]; qp != nullptr) {
        auto* ex = ibv_qp_to_qp_ex(qp);
        ibv_wr_start(ex);
        ibv_wr_send(ex);
        (void)ibv_wr_complete(ex);
    }
    if (channel != nullptr && cq != nullptr) {
        pollfd waiting{channel->fd, POLLIN, 0};
        ibv_cq* which = nullptr;
        void* cookie = nullptr;
        if (::poll(&waiting, 1, 0) == 1 && ibv_get_cq_event(channel, &which, &cookie) == 0)
            ibv_ack_cq_events(which, 1);
    }
    (void)::fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    ibv_async_event event{};
    EXPECT_EQ(ibv_get_async_event(context, &event), -1);
    for (auto* qp : pairs)
        twice(ibv_destroy_qp, qp);
    for (auto* ah : handles)
        twice(ibv_destroy_ah, ah);
    for (auto* each : {srq, srq_ex})
        twice(ibv_destroy_srq, each);
    twice(ibv_destroy_cq, cq);
    if (cq_ex != nullptr)
        twice(ibv_destroy_cq, ibv_cq_ex_to_cq(cq_ex));
    twice(ibv_destroy_comp_channel, channel);
    for (auto* mr : regions)
        twice(ibv_dereg_mr, mr);
    twice(ibv_dealloc_pd, pd);
    close();
}

TEST_F(robust_test, every_verb_fails_in_turn_and_nothing_is_left) {
    every_verb();
    const auto descriptors = open_descriptors();
    unsigned n = 1;
    for (;; ++n) {
        SCOPED_TRACE(fmt::format("call {}", n));
        ASSERT_EQ(gaudi_lab_hca_arm_faults(fmt::format("* {} errno EIO", n).c_str()), 0);
        every_verb();
        const auto fired = gaudi_lab_hca_faults_fired();
        gaudi_lab_hca_arm_faults("");
        ASSERT_EQ(open_descriptors(), descriptors);
        ASSERT_TRUE(std::filesystem::is_empty(lab() / "hca"));
        if (fired == 0)
            break;
        ASSERT_LT(n, 500U);
    }
    EXPECT_GT(n, 60U) << "verbs were called";
    EXPECT_EQ(gaudi_lab_hca_arm_faults("ibv_nosuch 1 errno EIO"), -EINVAL);
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
    for (rlim_t room = 0; room < 16; ++room) {
        ::testing::internal::CaptureStderr();
        bool worked = false;
        {
            const descriptors_left few(room);
            worked = whole_life();
        }
        (void)::testing::internal::GetCapturedStderr();
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
    EXPECT_LE(mapped_regions(), mapped + 64) << "an allocator may take some";
}

TEST_F(robust_test, regions_of_several_threads_are_all_known) {
    node left, right;
    const auto a = left.make_qp(), b = right.make_qp();
    connect(a.get(), left.address_of(a.get()), right.address_of(b.get()));
    connect(b.get(), right.address_of(b.get()), left.address_of(a.get()));
    constexpr int threads = 4, each = 200;
    std::vector<mr_handle> regions(threads * each);
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
        all.emplace_back([&, t] {
            for (int i = 0; i < each; ++i)
                regions[static_cast<std::size_t>(t * each + i)] =
                    mr_handle(ibv_reg_mr(right.pd.get(), right.memory.data(), 4096, all_access));
        });
    for (auto& thread : all)
        thread.join();
    for (const auto& region : regions) {
        ASSERT_TRUE(region);
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                      .from(left.entry(0, 8))
                      .at(reinterpret_cast<std::uint64_t>(right.memory.data()), region->rkey)
                      .post(a.get()),
                  0);
        ASSERT_EQ(left.expect_wc().status, IBV_WC_SUCCESS);
    }
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

// The producer is killed after it counted a completion and before it published the entry to the poller.
// labels: no_tsan
TEST_F(robust_test, a_killed_producer_leaves_a_completion_that_is_found) {
    struct place {
        std::uint32_t qp, cq;
    };
    auto* where = static_cast<place*>(
        ::mmap(nullptr, sizeof(place), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    gate begin;
    child producer([&] {
        using namespace lab::hca;
        const node self; // registers this process, so that others detect its death
        const auto qp = self.make_qp();
        if (!begin.wait())
            return 90;
        const auto own = segment::open(lab() / "hca", slot_of(qp->qp_num));
        const auto theirs = segment::open(lab() / "hca", slot_of(where->qp));
        if (!own || !theirs)
            return 91;
        shared_lock::self = (*own)->party();
        auto& cq = (**theirs)->cqs[where->cq];
        cq.producers.lock();
        const auto at = cq.produced.load();
        completion entry{};
        entry.wr_id = 77;
        entry.qp_number = where->qp;
        entry.of_send_queue = 1;
        entry.place = UINT32_MAX; // belongs to no request: no place is released
        std::memcpy((*theirs)->at<completion>(cq.ring + (at & (cq.capacity - 1)) * sizeof(completion)),
                    &entry, offsetof(completion, turn));
        cq.produced = at + 1;
        ::raise(SIGKILL);
        return 92;
    });
    const two_nodes both;
    *where = {both.a->qp_num, both.left.cq->handle};
    begin.open();
    ASSERT_EQ(producer.wait(), 128 + SIGKILL);
    EXPECT_EQ(both.left.expect_wc().wr_id, 77U);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 78)
                  .from(both.left.entry(0, 8))
                  .at(both.right.address_of(both.b.get()).memory, both.right.mr->rkey)
                  .post(both.a.get()),
              0);
    EXPECT_EQ(both.left.expect_wc().wr_id, 78U) << "and the queue goes on";
    ::munmap(where, sizeof(place));
}

// A producer raised the event and was stopped before it cleared signal_owed. The owner raises a second event,
// which must not disarm the queue if the program armed it again in the meantime.
TEST_F(robust_test, a_slow_producer_does_not_disarm_a_completion_queue) {
    const two_nodes both({}, {}, {}, true);
    const auto& left = both.left;
    const auto next_event_of_the_queue = [&] {
        pollfd waiting{left.channel->fd, POLLIN, 0};
        if (::poll(&waiting, 1, 10000) != 1)
            return false;
        ibv_cq* which = nullptr;
        void* cookie = nullptr;
        EXPECT_EQ(ibv_get_cq_event(left.channel.get(), &which, &cookie), 0);
        ibv_ack_cq_events(which, 1);
        return true;
    };
    const auto own = lab::hca::segment::open(lab() / "hca", lab::hca::slot_of(both.a->qp_num));
    ASSERT_TRUE(own);
    ASSERT_EQ(ibv_req_notify_cq(left.cq.get(), 0), 0);
    (**own)->cqs[left.cq->handle].signal_owed = 1;
    ASSERT_TRUE(next_event_of_the_queue()) << "it is paid by the owner";
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE, 1)
                  .from(left.entry(0, 8))
                  .at(both.right.address_of(both.b.get()).memory, both.right.mr->rkey)
                  .post(both.a.get()),
              0);
    EXPECT_TRUE(next_event_of_the_queue()) << "the queue was armed";
    EXPECT_EQ(left.expect_wc().wr_id, 1U);
}

TEST_F(robust_test, several_threads_on_one_queue_pair_and_one_completion_queue) {
    constexpr int threads = 4, each = 500;
    two_nodes both({.depth = 4096});
    auto &left = both.left, &right = both.right;
    const auto &a = both.a, &b = both.b;
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
                if (i % 50 == 0) { // register and deregister during the traffic
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
