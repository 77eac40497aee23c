// SPDX-License-Identifier: BSD-3-Clause
// gaudi_dma, call by call: asynchrony, limits, queues. Runs in the lab, under either UCX.
#include "tests/ucx/in_process/uct_case.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <poll.h>
#include <set>

namespace {

using namespace testing_ucx;

class uct_dma : public ::testing::Test {
protected:
    memory_domain domain{"gaudi_copy", "gaudi_copy"};

    // Starts a copy and progresses it until it completes with UCS_OK.
    static void whole(copier& with, bool put, std::vector<std::byte>& bytes, uint64_t remote) {
        finished done;
        uct_iov_t iov{bytes.data(), bytes.size(), nullptr, 0, 1};
        const auto begun = put ? uct_ep_put_zcopy(with.ep, &iov, 1, remote, UCT_INVALID_RKEY, &done.comp)
                               : uct_ep_get_zcopy(with.ep, &iov, 1, remote, UCT_INVALID_RKEY, &done.comp);
        ASSERT_EQ(begun, UCS_INPROGRESS);
        while (done.times == 0)
            with.progress();
        EXPECT_EQ(done.comp.status, UCS_OK);
    }
};

TEST_F(uct_dma, every_size_arrives) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    for (const std::size_t size : {1UL, 8UL, 4099UL, 1UL << 20, (64UL << 20) + 17}) {
        const allocated memory(domain, size);
        auto out = numbered(size, 3), in = numbered(size, 4);
        whole(dma, true, out, memory.number());
        whole(dma, false, in, memory.number());
        EXPECT_EQ(in, out) << size;
    }
}

TEST_F(uct_dma, within_a_device_too) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const allocated one(domain, 1 << 20), other(domain, 1 << 20);
    auto out = numbered(1 << 20, 5), in = numbered(1 << 20, 6);
    whole(dma, true, out, one.number());
    finished done;
    uct_iov_t iov{one.memory.address, 1 << 20, nullptr, 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, other.number(), UCT_INVALID_RKEY, &done.comp),
              UCS_INPROGRESS);
    while (done.times == 0)
        dma.progress();
    whole(dma, false, in, other.number());
    EXPECT_EQ(in, out);
}

TEST_F(uct_dma, the_processor_works_on_while_the_device_copies) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const std::size_t size = 1 << 28;
    const allocated memory(domain, size);
    std::vector<std::byte> out(size, std::byte{7});
    finished done;
    uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp),
              UCS_INPROGRESS);
    ASSERT_EQ(done.times, 0);
    std::uint64_t computed = 0, state = 1;
    while (done.times == 0) {
        for (int i = 0; i < 10000; ++i, ++computed)
            state = state * 6364136223846793005 + 1;
        dma.progress();
    }
    EXPECT_NE(state, 0U);
    EXPECT_GT(computed, 100000U) << "it was over before much else could be done";
    std::vector<std::byte> seen(1 << 20);
    for (const auto at : {std::size_t{0}, size / 2 - 4096, size - seen.size()}) {
        whole(dma, false, seen, memory.number() + at);
        EXPECT_EQ(seen, std::vector<std::byte>(seen.size(), std::byte{7})) << at;
    }
}

// A pending request, and its result.
struct waiter {
    uct_pending_req_t request{go, {}};
    copier* with = nullptr;
    uint64_t remote = 0;
    uct_rkey_t key = UCT_INVALID_RKEY;
    std::vector<std::byte> bytes = numbered(4096, 1);
    finished done;
    int calls = 0;

    // Sets the target and the key of the put.
    void aim(copier& by, uint64_t at, const own_key& opened) {
        with = &by;
        remote = at;
        key = opened.rkey();
    }
    static ucs_status_t go(uct_pending_req_t* request) {
        auto& self = *reinterpret_cast<waiter*>(request);
        ++self.calls;
        uct_iov_t iov{self.bytes.data(), self.bytes.size(), nullptr, 0, 1};
        const auto begun = uct_ep_put_zcopy(self.with->ep, &iov, 1, self.remote, self.key, &self.done.comp);
        return begun == UCS_INPROGRESS ? UCS_OK : begun;
    }
};

TEST_F(uct_dma, beyond_the_limit_operations_return_no_resource_and_wait) {
    const setting limit("UCX_GAUDI_DMA_IN_FLIGHT", "4");
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const allocated memory(domain, 64 << 20);
    const own_key key(domain, memory);
    waiter late, never;
    for (auto* each : {&late, &never})
        each->aim(dma, memory.number(), key);
    EXPECT_EQ(uct_ep_pending_add(dma.ep, &late.request, 0), UCS_ERR_BUSY) << "there is room: try again now";
    auto out = numbered(16 << 20, 8);
    finished four[4];
    uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
    for (auto& each : four)
        ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), key.rkey(), &each.comp), UCS_INPROGRESS);
    finished fifth;
    EXPECT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), key.rkey(), &fifth.comp),
              UCS_ERR_NO_RESOURCE);
    ASSERT_EQ(uct_ep_pending_add(dma.ep, &late.request, 0), UCS_OK);
    ASSERT_EQ(uct_ep_pending_add(dma.ep, &never.request, 0), UCS_OK);
    EXPECT_EQ(late.calls, 0);
    int purged = 0;
    uct_ep_pending_purge(
        dma.ep,
        [](uct_pending_req_t* request, void* arg) {
            ++*static_cast<int*>(arg);
            EXPECT_EQ(reinterpret_cast<waiter*>(request)->calls, 0);
        },
        &purged);
    EXPECT_EQ(purged, 2);
    ASSERT_EQ(uct_ep_pending_add(dma.ep, &late.request, 0), UCS_OK);
    while (late.done.times == 0)
        dma.progress();
    EXPECT_GE(late.calls, 1);
    EXPECT_EQ(never.calls, 0);
    while (uct_iface_flush(dma.iface, 0, nullptr) == UCS_INPROGRESS)
        dma.progress();
    for (const auto& each : four)
        EXPECT_EQ(each.times, 1);
}

TEST_F(uct_dma, endpoints_take_turns) {
    const setting limit("UCX_GAUDI_DMA_IN_FLIGHT", "1");
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    uct_ep_h second = nullptr;
    uint64_t address = 0;
    check(uct_iface_get_address(dma.iface, reinterpret_cast<uct_iface_addr_t*>(&address)), "address");
    uct_ep_params_t params{};
    params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface = dma.iface;
    params.iface_addr = reinterpret_cast<uct_iface_addr_t*>(&address);
    check(uct_ep_create(&params, &second), "uct_ep_create");
    const allocated memory(domain, 1 << 20);
    const own_key key(domain, memory);
    auto bytes = numbered(4096, 1);
    finished first;
    uct_iov_t iov{bytes.data(), bytes.size(), nullptr, 0, 1};
    ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), key.rkey(), &first.comp), UCS_INPROGRESS);
    waiter many[8], single;
    for (auto& each : many) {
        each.aim(dma, memory.number() + 4096, key);
        ASSERT_EQ(uct_ep_pending_add(dma.ep, &each.request, 0), UCS_OK);
    }
    single.aim(dma, memory.number() + 8192, key);
    ASSERT_EQ(uct_ep_pending_add(second, &single.request, 0), UCS_OK);
    while (single.done.times == 0)
        dma.progress();
    const auto before =
        std::count_if(std::begin(many), std::end(many), [](auto& each) { return each.done.times != 0; });
    EXPECT_LE(before, 2) << "it came last, and is not the last";
    while (uct_iface_flush(dma.iface, 0, nullptr) == UCS_INPROGRESS || many[7].done.times == 0)
        dma.progress();
    uct_ep_destroy(second);
}

// UCX stages with endpoints that have no pending queue: it would take a refused copy for a complete one.
TEST_F(uct_dma, copies_that_ucx_stages_are_always_accepted) {
    const setting limit("UCX_GAUDI_DMA_IN_FLIGHT", "2");
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    constexpr std::size_t copies = 100, each = 65536;
    const allocated memory(domain, copies * each);
    const own_key key(domain, memory);
    auto out = numbered(copies * each, 1), in = numbered(copies * each, 2);
    std::vector<finished> done(copies);
    waiter patient;
    patient.aim(dma, memory.number(), key);
    patient.bytes.assign(out.begin(), out.begin() + 4096);
    for (std::size_t i = 0; i < copies; ++i) {
        uct_iov_t iov{out.data() + i * each, each, nullptr, 0, 1};
        ASSERT_EQ(
            uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number() + i * each, UCT_INVALID_RKEY, &done[i].comp),
            UCS_INPROGRESS)
            << i;
        if (i == copies / 2) {
            ASSERT_EQ(uct_ep_pending_add(dma.ep, &patient.request, 0), UCS_OK);
        }
    }
    while (uct_iface_flush(dma.iface, 0, nullptr) == UCS_INPROGRESS || patient.done.times == 0)
        dma.progress();
    whole(dma, false, in, memory.number());
    EXPECT_EQ(in, out);
}

TEST_F(uct_dma, more_than_the_driver_takes_is_queued_here) {
    const setting limit("UCX_GAUDI_DMA_BATCH", "1");
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    constexpr std::size_t copies = 200, each = 4096;
    const allocated memory(domain, copies * each);
    auto out = numbered(copies * each, 1), in = numbered(copies * each, 2);
    std::vector<finished> done(copies);
    for (std::size_t i = 0; i < copies; ++i) { // without progress in between
        uct_iov_t iov{out.data() + i * each, each, nullptr, 0, 1};
        ASSERT_EQ(
            uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number() + i * each, UCT_INVALID_RKEY, &done[i].comp),
            UCS_INPROGRESS);
    }
    while (uct_iface_flush(dma.iface, 0, nullptr) == UCS_INPROGRESS)
        dma.progress();
    EXPECT_LE(engine_at(memory.number()).statistics().most_in_flight, 64U)
        << "the driver's library spins where there are more";
    whole(dma, false, in, memory.number());
    EXPECT_EQ(in, out);
}

// Starts its next copy from each completion callback, as long as copies are left.
struct greedy {
    uct_completion_t comp{};
    copier* with = nullptr;
    uint64_t remote = 0;
    uct_rkey_t key = UCT_INVALID_RKEY;
    std::vector<std::byte>* bytes = nullptr;
    int ended = 0;
    bool refused = false;

    void begin() {
        uct_iov_t iov{bytes->data(), bytes->size(), nullptr, 0, 1};
        comp.func = [](uct_completion_t* of) {
            auto& self = *reinterpret_cast<greedy*>(of);
            ++self.ended;
            if (self.ended < 1000)
                self.begin();
        };
        comp.count = 1;
        comp.status = UCS_OK;
        refused = uct_ep_put_zcopy(with->ep, &iov, 1, remote, key, &comp) != UCS_INPROGRESS;
    }
};

TEST_F(uct_dma, a_pending_request_is_not_overtaken) {
    const setting limit("UCX_GAUDI_DMA_IN_FLIGHT", "2");
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const allocated memory(domain, 1 << 20);
    const own_key key(domain, memory);
    auto bytes = numbered(65536, 1);
    greedy two[2];
    for (auto& each : two) {
        each.with = &dma;
        each.remote = memory.number();
        each.bytes = &bytes;
        each.key = key.rkey();
        each.begin();
        ASSERT_FALSE(each.refused);
    }
    waiter patient;
    patient.aim(dma, memory.number() + (1 << 19), key);
    ASSERT_EQ(uct_ep_pending_add(dma.ep, &patient.request, 0), UCS_OK);
    while (patient.calls == 0)
        dma.progress();
    EXPECT_LE(two[0].ended + two[1].ended, 2) << "their next ones had to queue after it";
    while (patient.done.times == 0)
        dma.progress();
    while (uct_iface_flush(dma.iface, 0, nullptr) == UCS_INPROGRESS)
        dma.progress();
}

TEST_F(uct_dma, a_sleeper_is_woken_by_the_end_of_a_copy) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    int event = -1;
    ASSERT_EQ(uct_iface_event_fd_get(dma.iface, &event), UCS_OK);
    const allocated memory(domain, 32 << 20);
    auto out = numbered(32 << 20, 9);
    for (int round = 0; round < 5; ++round) {
        finished done;
        uct_iov_t iov{out.data(), out.size(), nullptr, 0, 1};
        ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp),
                  UCS_INPROGRESS);
        while (done.times == 0) {
            if (uct_iface_event_arm(dma.iface, UCT_EVENT_SEND_COMP) == UCS_OK) {
                pollfd waiting{event, POLLIN, 0};
                ASSERT_EQ(::poll(&waiting, 1, 10000), 1) << "nothing woke the sleeper";
            }
            dma.progress();
        }
    }
}

TEST_F(uct_dma, a_fence_keeps_the_order_and_a_flush_waits) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const allocated memory(domain, 32 << 20);
    auto first = numbered(32 << 20, 1), second = numbered(4096, 2), seen = numbered(4096, 3);
    finished one, two, all;
    uct_iov_t large{first.data(), first.size(), nullptr, 0, 1},
        small{second.data(), second.size(), nullptr, 0, 1};
    for (int round = 0; round < 10; ++round) {
        one = {};
        two = {};
        all = {};
        ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &large, 1, memory.number(), UCT_INVALID_RKEY, &one.comp),
                  UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_fence(dma.ep, 0), UCS_OK);
        ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &small, 1, memory.number(), UCT_INVALID_RKEY, &two.comp),
                  UCS_INPROGRESS);
        ASSERT_EQ(uct_ep_flush(dma.ep, 0, &all.comp), UCS_INPROGRESS);
        while (all.times == 0)
            dma.progress();
        EXPECT_EQ(one.times + two.times, 2);
        ASSERT_EQ(uct_ep_get_short(dma.ep, seen.data(), 4096, memory.number(), UCT_INVALID_RKEY), UCS_OK);
        ASSERT_EQ(seen, second);
    }
}

TEST_F(uct_dma, large_copies_use_several_queues_and_say_so) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const allocated memory(domain, 64 << 20);
    auto out = numbered(64 << 20, 1);
    whole(dma, true, out, memory.number());
    auto engine = engine_at(memory.number());
    std::set<std::uint32_t> used;
    std::uint64_t bytes = 0;
    for (const auto& queue : engine.queues()) {
        if (queue.bytes != 0)
            used.insert(queue.queue);
        bytes += queue.bytes;
        EXPECT_EQ(queue.depth, 0U);
        EXPECT_GT(queue.busy_ns, 0U);
    }
    EXPECT_GE(used.size(), 2U);
    EXPECT_EQ(bytes, out.size());
}

TEST_F(uct_dma, settings_say_how_a_copy_is_spread_over_queues) {
    const std::size_t size = 1 << 20;
    const allocated memory(domain, size), other(domain, size);
    const auto within = [&](const char* queues, const char* stripe) {
        const setting first("UCX_GAUDI_DMA_QUEUES", queues), second("UCX_GAUDI_DMA_STRIPE", stripe);
        copier dma(domain, "gaudi_dma", "gaudi_dma");
        return queues_used(memory.number(),
                           [&] {
                               finished done;
                               uct_iov_t iov{other.memory.address, size, nullptr, 0, 1};
                               ASSERT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY,
                                                          &done.comp),
                                         UCS_INPROGRESS);
                               while (done.times == 0)
                                   dma.progress();
                           })
            .size();
    };
    EXPECT_EQ(within("4", "2m"), 1U) << "it is smaller than a stripe";
    EXPECT_EQ(within("1", "64k"), 1U);
    EXPECT_EQ(within("2", "64k"), 2U);
    EXPECT_GT(within("4", "64k"), 2U);
}

TEST_F(uct_dma, settings_say_how_many_copies_share_a_submission) {
    const allocated memory(domain, 1 << 20);
    auto bytes = numbered(4096, 1);
    constexpr unsigned copies = 48;
    const auto submissions = [&](const char* batch) {
        const setting limit("UCX_GAUDI_DMA_BATCH", batch);
        copier dma(domain, "gaudi_dma", "gaudi_dma");
        auto engine = engine_at(memory.number());
        const auto before = engine.statistics();
        finished done;
        done.comp.count = copies;
        uct_iov_t iov{bytes.data(), bytes.size(), nullptr, 0, 1};
        for (unsigned i = 0; i < copies; ++i)
            EXPECT_EQ(
                uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number() + i * 4096, UCT_INVALID_RKEY, &done.comp),
                UCS_INPROGRESS);
        while (uct_iface_flush(dma.iface, 0, nullptr) == UCS_INPROGRESS)
            dma.progress();
        const auto after = engine.statistics();
        EXPECT_EQ(after.packets - before.packets, copies);
        return after.submissions - before.submissions;
    };
    EXPECT_EQ(submissions("1"), copies);
    EXPECT_GE(submissions("4"), copies / 4);
    const auto shared = submissions("16");
    EXPECT_LT(shared, copies / 2) << "after the first few they wait for company";
}

TEST_F(uct_dma, what_it_cannot_copy_is_refused) {
    copier dma(domain, "gaudi_dma", "gaudi_dma");
    const allocated memory(domain, 4096);
    auto host = numbered(4096, 1), other = numbered(4096, 2);
    finished done;
    uct_iov_t iov{host.data(), host.size(), nullptr, 0, 1};
    EXPECT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, reinterpret_cast<uint64_t>(other.data()), UCT_INVALID_RKEY,
                               &done.comp),
              UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(uct_ep_put_zcopy(dma.ep, &iov, 1, memory.number() + 1, UCT_INVALID_RKEY, &done.comp),
              UCS_ERR_INVALID_ADDR);
    EXPECT_EQ(done.times, 0);
}

} // namespace
