// SPDX-License-Identifier: BSD-3-Clause
// Leases: listing and revoking them, and the death of owner or importer.
#include "tests/ipc/ipc_test.hpp"

#include "src/ipc/handle.hpp"
#include "tests/support/gaudi_device.hpp"

#include <atomic>
#include <csignal>
#include <sys/mman.h>
#include <thread>

namespace {

using namespace testing_support;
using clock_type = std::chrono::steady_clock;

std::uint64_t code(errc value) {
    return static_cast<std::uint64_t>(value) + 1;
}

TEST_F(ipc_test, the_owner_sees_leases_and_waits_for_them) {
    owner other;
    const auto handle = other.share(4096, 1);
    EXPECT_EQ(other.leases(0), 0U);
    EXPECT_EQ(other.wait_for_leases(0, 0), 0U);
    {
        const auto imported = expect(import_memory(handle));
        EXPECT_EQ(other.leases(0), 1U);
        EXPECT_EQ(other.wait_for_leases(0, 20), code(errc::leased));
        EXPECT_EQ(other.free_unless_leased(0), code(errc::leased));
        EXPECT_TRUE(other.holds(0, 1)) << "it stays as it was";
    }
    EXPECT_EQ(other.leases(0), 1U) << "kept for the next import";
    stop_ipc();
    EXPECT_EQ(other.wait_for_leases(0, 5000), 0U);
    EXPECT_EQ(other.free_unless_leased(0), 0U);
    EXPECT_EQ(import_memory(handle).error().code(), errc::handle_stale);
}

TEST_F(ipc_test, revoked_memory_is_out_of_reach) {
    owner other;
    const auto handle = other.share(mebibyte, 1);
    auto imported = expect(import_memory(handle));
    std::vector<std::byte> seen(mebibyte);
    expect(expect(imported.read(seen)).wait());
    EXPECT_FALSE(imported.gone());
    EXPECT_EQ(other.revoke(0), 0U);
    EXPECT_TRUE(imported.gone());
    EXPECT_EQ(imported.read(seen).error().code(), errc::lease_revoked);
    EXPECT_EQ(import_memory(handle).error().code(), errc::handle_stale);
    // Sharing the memory again makes a new handle that works.
    auto again = expect(import_memory(other.share_again(0)));
    expect(expect(again.read(seen)).wait());
    EXPECT_EQ(seen, pattern(mebibyte, 1));
}

TEST_F(ipc_test, one_handle_is_taken_back_and_the_others_stay) {
    const auto own = expect(open_device(by_index{0}));
    const auto buffer = expect(own->heap().allocate(4096));
    const auto all = expect(share(buffer)), first = expect(share_separately(buffer.address(), 4096)),
               second = expect(share_separately(buffer.address(), 4096));
    gate opened, revoked;
    child importer([&] {
        std::vector<std::byte> seen(4096);
        auto by_all = expect(import_memory(all, {copy_path::owner_proxy})),
             by_first = expect(import_memory(first, {copy_path::owner_proxy})),
             by_second = expect(import_memory(second, {copy_path::owner_proxy}));
        opened.open();
        if (!revoked.wait())
            return 1;
        if (by_first.read(seen).error().code() != errc::lease_revoked ||
            import_memory(first).error().code() != errc::handle_stale)
            return 2;
        return expect(by_all.read(seen)).wait() && expect(by_second.read(seen)).wait() ? 0 : 3;
    });
    ASSERT_TRUE(opened.wait());
    EXPECT_EQ(leases_of(buffer.address()).size(), 3U);
    EXPECT_TRUE(revoke_handle(first));
    EXPECT_EQ(revoke_handle(all).error().code(), errc::handle_invalid) << "taken back only with all others";
    EXPECT_EQ(revoke_handle(first).error().code(), errc::handle_invalid);
    EXPECT_EQ(revoke_leases(device_address(64)).error().code(), errc::not_allocated);
    revoked.open();
    EXPECT_EQ(importer.wait(), 0);
}

TEST_F(ipc_test, freeing_waits_for_leases_on_request) {
    owner other;
    auto imported = expect(import_memory(other.share(mebibyte, 1)));
    EXPECT_EQ(other.free_when_unleased(0, 50), code(errc::leased));
    EXPECT_TRUE(other.holds(0, 1)) << "it stays as it was";
    std::vector<std::byte> seen(mebibyte);
    expect(expect(imported.read(seen)).wait());
    EXPECT_EQ(seen, pattern(mebibyte, 1)) << "and so does the lease";
    std::thread later([&] {
        std::this_thread::sleep_for(milliseconds(100));
        imported = {};
        stop_ipc(); // otherwise the lease stays cached for the next import
    });
    EXPECT_EQ(other.free_when_unleased(0, 10000), 0U);
    later.join();
}

constexpr copy_path to_another_process[] = {copy_path::owner_context, copy_path::peer_dmabuf,
                                            copy_path::nic_loopback, copy_path::staged,
                                            copy_path::owner_proxy};

class by_path : public ipc_test, public ::testing::WithParamInterface<copy_path> {
protected:
    by_path() { describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes"); }
};
INSTANTIATE_TEST_SUITE_P(leases, by_path, ::testing::ValuesIn(to_another_process), word_for);

TEST_P(by_path, revoke_waits_for_copies_in_flight) {
    owner other;
    // The owner copies in parts; with several parts, the revocation interrupts the copy.
    const std::size_t size = (GetParam() == copy_path::owner_proxy ? 64 : 16) * mebibyte;
    auto imported = expect(import_memory(other.share(size, 1), {GetParam()}));
    destination to(GetParam(), size);
    auto reading = expect(to.read(imported));
    std::atomic<bool> returned{false};
    std::jthread taking_back([&] {
        EXPECT_EQ(other.revoke(0), 0U);
        returned = true;
    });
    EXPECT_TRUE(soon_true([&] { return imported.gone(); }));
    EXPECT_EQ(to.read(imported).error().code(), errc::lease_revoked);
    if (GetParam() == copy_path::owner_proxy) { // the owner waits only for copies of its own
        const auto cut_short = reading.wait();
        ASSERT_FALSE(cut_short);
        EXPECT_EQ(cut_short.error().code(), errc::lease_revoked);
        return;
    }
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_FALSE(returned) << "the copy is not complete before a thread polls";
    EXPECT_TRUE(reading.wait());
    EXPECT_EQ(to.bytes(), pattern(size, 1)) << "what had begun was right";
}

// labels: no_tsan slow waits
TEST_F(ipc_test, a_copy_that_never_completes_keeps_its_memory_reserved) {
    const auto own = expect(open_device(by_index{0}));
    auto buffer = expect(own->heap().allocate(mebibyte));
    const auto address = buffer.address();
    const auto handle = expect(share(buffer));
    gate begun, over;
    child importer([&] {
        auto imported = expect(import_memory(handle, {copy_path::nic_loopback}));
        std::vector<std::byte> seen(mebibyte);
        auto reading = expect(imported.read(seen)); // started, and never polled
        begun.open();
        (void)over.wait();
        return 0;
    });
    ASSERT_TRUE(begun.wait());
    importer.stop();
    EXPECT_EQ(revoke_leases(address, milliseconds(50)).error().code(), errc::leased);
    buffer = {}; // waits up to five seconds
    EXPECT_EQ(own->heap().statistics().abandoned, mebibyte);
    const auto next = expect(own->heap().allocate(mebibyte));
    EXPECT_NE(next.address().value(), address.value());
}

TEST_P(by_path, a_handle_of_freed_memory_opens_nothing_of_a_later_owner) {
    owner other;
    const auto handle = other.share(mebibyte, 1);
    auto imported = expect(import_memory(handle, {GetParam()}));
    destination to(GetParam(), mebibyte);
    expect(expect(to.read(imported)).wait());
    other.free(0);
    const auto later = other.share(mebibyte, 2);
    const auto before = expect(read_handle(handle.bytes)), after = expect(read_handle(later.bytes));
    ASSERT_EQ(after.base, before.base);
    EXPECT_NE(after.generation, before.generation);
    EXPECT_EQ(to.read(imported).error().code(), errc::lease_revoked);
    EXPECT_EQ(to.write(imported).error().code(), errc::lease_revoked);
    const auto refused = import_memory(handle, {GetParam()});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::handle_stale);
    EXPECT_EQ(to.bytes(), pattern(mebibyte, 1)) << "nothing of the later allocation was seen";
    EXPECT_TRUE(other.holds(1, 2)) << "nor changed";
    auto again = expect(import_memory(later, {GetParam()}));
    expect(expect(to.read(again)).wait());
    EXPECT_EQ(to.bytes(), pattern(mebibyte, 2));
}

TEST_P(by_path, a_killed_owner_ends_leases_and_its_device_is_free) {
    std::optional<owner> other(std::in_place);
    auto imported = expect(import_memory(other->share(mebibyte, 1), {GetParam()}));
    const auto kept = expect(import_memory(other->share(mebibyte, 2), {GetParam()}));
    destination to(GetParam(), mebibyte);
    expect(expect(to.read(imported)).wait());
    other->process().kill_it();
    EXPECT_TRUE(soon_true([&] { return imported.gone() && kept.gone(); }));
    const auto refused = to.read(imported);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::peer_gone);
    EXPECT_TRUE(soon_true([] { return open_device(by_index{0}).has_value(); }))
        << "the lease held its device";
}

TEST_F(ipc_test, a_killed_importer_ends_its_leases) {
    describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
    const auto own = expect(open_device(by_index{0}));
    auto buffer = expect(own->heap().allocate(64 * mebibyte));
    const auto handle = expect(share(buffer));
    for (const auto path : to_another_process) {
        SCOPED_TRACE(name_of(path));
        gate begun;
        child importer([&] {
            auto imported = expect(import_memory(handle, {path}));
            destination to(path, 64 * mebibyte);
            auto reading = expect(to.read(imported));
            begun.open();
            ::pause();
            return 0;
        });
        ASSERT_TRUE(begun.wait());
        EXPECT_EQ(leases_of(buffer.address()).size(), 1U);
        EXPECT_EQ(leases_of(buffer.address())[0].process, importer.pid());
        importer.kill_it();
        const auto ended = wait_for_leases(buffer.address(), std::chrono::seconds(10));
        EXPECT_TRUE(ended) << ended.error().message();
    }
    buffer = {};
    EXPECT_EQ(own->heap().statistics().abandoned, 0U);
}

// Where the owner cannot open a pidfd, as across pid namespaces, a closed socket means that it died.
// labels: waits
TEST_F(ipc_test, a_killed_importer_is_noticed_without_a_pidfd) {
    auto* const handle = static_cast<memory_handle*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    gate shared, begun, seen, killed;
    child holder([&] {
        if (!forbid(SCMP_SYS(pidfd_open), EPERM))
            return 77;
        const auto own = expect(open_device(by_index{0}));
        const auto buffer = expect(own->heap().allocate(64 * mebibyte));
        *handle = expect(share(buffer));
        shared.open();
        if (!begun.wait() || leases_of(buffer.address()).size() != 1)
            return 1;
        seen.open();
        if (!killed.wait())
            return 3;
        return wait_for_leases(buffer.address(), std::chrono::seconds(10)) ? 0 : 2;
    });
    ASSERT_TRUE(shared.wait());
    child importer([&] {
        auto imported = expect(import_memory(*handle, {copy_path::owner_context}));
        destination to(copy_path::owner_context, 64 * mebibyte);
        auto reading = expect(to.read(imported));
        begun.open();
        ::pause();
        return 0;
    });
    EXPECT_TRUE(seen.wait());
    importer.kill_it();
    killed.open();
    EXPECT_EQ(holder.wait(std::chrono::seconds(30)), 0);
    ::munmap(handle, 4096);
}

TEST_F(ipc_test, an_owners_forked_child_does_not_keep_its_leases_alive) {
    std::optional<owner> other(std::in_place);
    const auto imported = expect(import_memory(other->share(4096, 1), {copy_path::owner_proxy}));
    const auto left = other->fork_a_child(); // the child inherits the descriptor numbers, but not the sockets
    ASSERT_GT(left, 0);
    other->process().kill_it();
    EXPECT_TRUE(soon_true([&] { return imported.gone(); }));
    ::kill(left, SIGKILL);
}

TEST_F(ipc_test, a_forked_importer_has_no_leases) {
    owner other;
    const auto handle = other.share(4096, 1);
    auto imported = expect(import_memory(handle));
    child forked([&] {
        std::vector<std::byte> seen(4096);
        const auto refused = imported.read(seen);
        if (refused || refused.error().code() != errc::forked)
            return 1;
        auto again = import_memory(handle, {copy_path::owner_proxy}); // the child may open leases of its own
        if (!again || !expect(again->read(seen)).wait() || seen != pattern(4096, 1))
            return 2;
        return 0;
    });
    EXPECT_EQ(forked.wait(), 0);
    std::vector<std::byte> seen(4096);
    expect(expect(imported.read(seen)).wait());
    EXPECT_EQ(seen, pattern(4096, 1));
    EXPECT_TRUE(soon_true([&] { return other.leases(0) == 1; })) << "the child's ended with it";
}

TEST_F(ipc_test, imports_are_kept_and_the_oldest_go_first) {
    ipc_settings settings;
    settings.imports = 16;
    set_ipc(settings);
    owner other;
    std::vector<memory_handle> handles;
    for (unsigned i = 0; i < 100; ++i)
        handles.push_back(other.share(4096, i));
    std::vector<std::byte> seen(4096);
    const auto before = process_statistics().ipc;
    for (int round = 0; round < 10; ++round)
        for (unsigned i = 0; i < 100; ++i) {
            expect(expect(expect(import_memory(handles[i])).read(seen)).wait());
            ASSERT_EQ(seen, pattern(4096, i));
        }
    const auto counted = process_statistics().ipc;
    EXPECT_EQ(counted.imports, 16U);
    EXPECT_EQ(counted.misses - before.misses, 1000U);
    EXPECT_EQ(counted.evicted - before.evicted, 984U);
    for (unsigned i = 84; i < 100; ++i) // the last sixteen are cached
        (void)expect(import_memory(handles[i]));
    EXPECT_EQ(process_statistics().ipc.hits - counted.hits, 16U);
    std::uint64_t leases = 0;
    EXPECT_TRUE(soon_true([&] { // the last eviction reaches the owner asynchronously
        leases = 0;
        for (unsigned i = 0; i < 100; ++i)
            leases += other.leases(i);
        return leases == 16;
    })) << leases;
}

volatile std::sig_atomic_t calls_made = 0;

TEST_F(ipc_test, an_import_that_is_kept_costs_no_system_call) {
    if (under_a_sanitizer)
        GTEST_SKIP() << "it makes calls of its own";
    owner other;
    const auto handle = other.share(4096, 1);
    child importer([&] {
        const auto first = expect(import_memory(handle));
        for (int i = 0; i < 3; ++i)
            (void)expect(import_memory(handle)); // later imports allocate nothing new
        struct sigaction counts {};
        counts.sa_handler = [](int) { calls_made = calls_made + 1; };
        ::sigaction(SIGSYS, &counts, nullptr);
        auto* const filter = ::seccomp_init(SCMP_ACT_TRAP);
        for (const int call : {SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn)})
            ::seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
        if (::seccomp_load(filter) != 0)
            return 77;
        for (int i = 0; i < 100; ++i)
            (void)expect(import_memory(handle));
        std::_Exit(calls_made == 0 ? 0 : 1);
    });
    const int status = importer.wait();
    if (status == 77)
        GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(status, 0);
}

TEST_F(ipc_test, cycles_and_deaths_leave_nothing) {
    const char* wanted = std::getenv("GAUDI_TEST_CYCLES");
    const unsigned cycles = wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted)) : 200;
    owner other;
    std::vector<std::byte> seen(4096);
    const auto cycle = [&](unsigned i) {
        const auto handle = i == 0 ? other.share(4096, 1) : other.share_again(0);
        expect(expect(expect(import_memory(handle)).read(seen)).wait());
        EXPECT_EQ(other.revoke(0), 0U);
    };
    { // opens what stays open for each device
        owner brief(1);
        expect(expect(expect(import_memory(brief.share(4096, 2))).read(seen)).wait());
    }
    const auto owner_dies = [&] {
        const auto held = open_descriptors();
        {
            owner brief(1);
            auto imported = expect(import_memory(brief.share(4096, 2)));
            expect(expect(imported.read(seen)).wait());
            brief.process().kill_it();
            (void)brief.process().wait();
            ASSERT_TRUE(soon_true([&] { return imported.gone(); }));
        }
        ASSERT_TRUE(soon_true([&] { return open_descriptors() <= held; })) << "its device is free again";
    };
    const auto die = [&] {
        const auto handle = other.share_again(0);
        gate begun;
        child importer([&] {
            std::vector<std::byte> local(4096);
            expect(expect(expect(import_memory(handle)).read(local)).wait());
            begun.open();
            ::pause();
            return 0;
        });
        ASSERT_TRUE(begun.wait());
        importer.kill_it();
        (void)importer.wait();
    };
    for (unsigned i = 0; i < 3; ++i)
        cycle(i);
    die();
    owner_dies();
    ASSERT_TRUE(soon_true([&] { return other.leases(0) <= 1; }));
    const auto before = open_descriptors(), mappings = mapped_regions(), resident = resident_bytes();
    const auto owners_descriptors = other.descriptors();
    const auto owners_mappings = other.mappings();
    const auto owners_resident = other.resident();
    for (unsigned i = 0; i < cycles; ++i)
        cycle(i + 1);
    for (unsigned i = 0; i < cycles / 10; ++i)
        i % 2 == 0 ? die() : owner_dies();
    EXPECT_TRUE(soon_true([&] { return other.leases(0) <= 1; }));
    EXPECT_TRUE(soon_true([&] { return open_descriptors() <= before; })) << open_descriptors();
    EXPECT_TRUE(soon_true([&] { return other.descriptors() <= owners_descriptors; })) << other.descriptors();
    constexpr unsigned arenas = 16; // of malloc, at most one a thread
    EXPECT_TRUE(soon_true([&] { return other.mappings() <= owners_mappings + arenas; }));
    EXPECT_TRUE(soon_true([&] { return mapped_regions() <= mappings + arenas; }))
        << mappings << " before, now " << mapped_regions() << ":\n"
        << mappings_by_file();
    if (!under_a_sanitizer) { // a sanitizer keeps freed memory
        EXPECT_TRUE(soon_true([&] { return other.resident() <= owners_resident + 2 * mebibyte; }));
        EXPECT_TRUE(soon_true([&] { return resident_bytes() <= resident + 2 * mebibyte; }));
    }
}

} // namespace
