// SPDX-License-Identifier: BSD-3-Clause
// Cost of an operation in the steady state, and proof that zero-copy copies no byte.
#include "tests/connection/counting.hpp"
#include "tests/rdma/rdma_test.hpp"
#include "tests/support/child.hpp"

#include <csignal>
#include <fmt/format.h>
#include <seccomp.h>
#include <ucontext.h>

namespace {

using namespace testing_support;

using steady_test = rdma_test;

// After trap_system_calls() the system calls of this thread are counted and return EAGAIN instead of running.
volatile std::sig_atomic_t trapped_calls = 0;

void count_call(int, siginfo_t*, void* context) {
    trapped_calls = trapped_calls + 1;
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -EAGAIN;
}

bool trap_system_calls() {
    struct sigaction action {};
    action.sa_sigaction = count_call;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSYS, &action, nullptr);
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_TRAP);
    for (const int allowed : {SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn), SCMP_SYS(write)})
        seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed, 0);
    return seccomp_load(filter) == 0;
}

// labels: no_tsan
TEST_F(steady_test, an_operation_costs_no_allocation_lock_or_system_call) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers make system calls of their own";
#endif
    child counted([this] {
        make_pair(memory_path::zero_copy, memory_path::zero_copy, 1 << 20);
        expect(right.link->offer(right.region, remote_access::all));
        const auto remote = expect(left.link->take_offer(soon));
        const auto small = expect(left.region.part(0, 64)), large = left.region;
        const auto remote_small = expect(remote.part(0, 64));
        const auto round = [&] {
            auto into = right.link->receive(right.region);
            auto out = left.link->send(small, 1);
            auto wrote = left.link->write(large, remote);
            auto read = left.link->read(small, remote_small);
            auto added = left.link->fetch_add(remote_small, 1);
            while (!into->done() || !out->done() || !wrote->done() || !read->done() || !added->done())
                right.link->poll();
        };
        for (int i = 0; i < 100; ++i)
            round();
        if (!trap_system_calls())
            return 2;
        const auto before = counts_now();
        constexpr int rounds = 2000;
        for (int i = 0; i < rounds; ++i)
            round();
        const auto after = counts_now();
        const auto allocations = after.allocations - before.allocations, locks = after.locks - before.locks;
        // The connection reads its TCP stream once per millisecond, independent of the number of operations.
        const bool cheap = allocations == 0 && locks == 0 && trapped_calls < rounds / 10;
        if (!cheap)
            fmt::print(stderr, "{} rounds of 5 operations: {} allocations, {} locks, {} system calls\n",
                       rounds, allocations, locks, static_cast<int>(trapped_calls));
        ::_exit(cheap ? 0 : 1);
    });
    EXPECT_EQ(counted.wait(), 0);
}

TEST_F(steady_test, a_live_key_is_returned_again_without_a_system_call) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers make system calls of their own";
#endif
    child counted([this] {
        equip(right, 0, memory_path::zero_copy, 4096);
        const auto first = expect(right.region.expose(remote_access::read));
        if (!trap_system_calls())
            return 2;
        bool same = true;
        for (int i = 0; i < 1000; ++i) {
            const auto again = right.region.expose(remote_access::read);
            same = same && again && again->region().key == first.region().key;
        }
        ::_exit(same && trapped_calls == 0 ? 0 : 1);
    });
    EXPECT_EQ(counted.wait(), 0);
}

struct cost {
    std::uint64_t copied_by_cpu, copied_by_engines;
};

class zero_copy_test : public rdma_test {
protected:
    // Sends 64 MiB and reads them back. Returns the bytes that this library copied; the lab is not counted.
    cost transfer_with(memory_path path) {
        constexpr std::size_t size = 64 << 20;
        make_pair(path, path, size);
        const auto data = pattern(size, 9);
        left.put(data);
        expect(right.link->offer(right.region, remote_access::all));
        const auto remote = expect(left.link->take_offer(soon));
        const auto engines = [&] {
            return expect(left.gaudi->copies()).statistics().bytes +
                   expect(right.gaudi->copies()).statistics().bytes;
        };
        const auto before = counts_now();
        const auto before_engines = engines();
        auto into = expect(right.link->receive(right.region));
        auto out = expect(left.link->send(left.region));
        finish_all(into, out);
        expect(into.wait(soon));
        auto back = expect(left.link->read(left.region, remote));
        finish_all(back);
        expect(back.wait(soon));
        const cost paid{counts_now().copied_bytes - before.copied_bytes, engines() - before_engines};
        EXPECT_EQ(right.get(), data);
        EXPECT_EQ(left.get(), data);
        EXPECT_EQ(left.link->statistics().by(path).bytes, 2 * size);
        return paid;
    }
};

TEST_F(zero_copy_test, nothing_is_copied_by_the_cpu) {
    const auto paid = transfer_with(memory_path::zero_copy);
    EXPECT_LT(paid.copied_by_cpu, 4096U);
    EXPECT_EQ(paid.copied_by_engines, 0U);
}

TEST_F(zero_copy_test, staged_every_byte_is_copied_at_both_ends) {
    const auto paid = transfer_with(memory_path::staged);
    EXPECT_EQ(paid.copied_by_engines, 4 * (64ULL << 20)) << "out and in, there and back";
    EXPECT_LT(paid.copied_by_cpu, 65536U) << "by the device's engines, not by the CPU";
}

TEST_F(steady_test, a_region_of_a_warm_heap_is_a_hit) {
    equip(left, 0, memory_path::zero_copy, 4096);
    const auto before = left.nic->statistics();
    for (int i = 0; i < 1000; ++i) {
        const auto buffer = expect(left.gaudi->heap().allocate(65536));
        const auto region = expect(left.nic->region(*left.gaudi, buffer));
        EXPECT_EQ(region.local_key(), left.region.local_key());
        EXPECT_EQ(region.address(), buffer.address().value());
    }
    const auto after = left.nic->statistics();
    EXPECT_EQ(after.hits, before.hits + 1000);
    EXPECT_EQ(after.misses, 1U);
    EXPECT_EQ(after.regions, 1U);
    EXPECT_EQ(after.bytes, 768ULL << 20);
}

} // namespace
