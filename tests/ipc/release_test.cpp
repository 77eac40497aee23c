// SPDX-License-Identifier: BSD-3-Clause
// What importers release when the owner revokes a lease, and how long the owner waits for it.
#include "tests/ipc/ipc_test.hpp"

#include <csignal>
#include <sys/mman.h>

namespace {

using namespace testing_support;
using clock_type = std::chrono::steady_clock;

// A stopped importer cannot release its leases: the owner gives up on it after one timeout, not one a lease.
TEST_F(ipc_test, an_importer_that_is_stopped_is_waited_for_once) {
    describe("gaudis = 1\nhcas = 1");
    ipc_settings settings;
    settings.give = ipc_give::dmabuf;
    set_ipc(settings);
    const auto own = expect(open_device(by_index{0}));
    std::vector<device_buffer> buffers;
    std::vector<memory_handle> handles;
    for (unsigned i = 0; i < 40; ++i) {
        buffers.push_back(expect(own->heap().allocate(4096)));
        handles.push_back(expect(share(buffers.back())));
    }
    gate imported;
    child stopped([&] {
        std::vector<std::byte> host(4096);
        for (const auto& handle : handles)
            expect(expect(expect(import_memory(handle)).read(host)).wait());
        imported.open();
        ::raise(SIGSTOP);
        return 0;
    });
    ASSERT_TRUE(imported.wait());
    ASSERT_TRUE(soon_true([&] {
        int status = 0;
        return ::waitpid(stopped.pid(), &status, WUNTRACED | WNOHANG) == stopped.pid() && WIFSTOPPED(status);
    }));
    const auto begin = clock_type::now();
    buffers.clear();
    EXPECT_LT(clock_type::now() - begin, std::chrono::seconds(10)) << "half a second for each is 20 s";
    stopped.kill_it();
    (void)stopped.wait();
}

// Both sides send more revocations than a socket holds: neither waits for the other to read.
TEST_F(ipc_test, two_processes_take_everything_back_at_once) {
    describe("gaudis = 2\nhcas = 1");
    constexpr unsigned many = 300;
    ipc_settings settings;
    settings.give = ipc_give::dmabuf;
    settings.imports = 2 * many;
    struct both_sides {
        memory_handle of[2][many];
    };
    auto* const handles = static_cast<both_sides*>(
        ::mmap(nullptr, sizeof(both_sides), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(handles, MAP_FAILED);
    gate shared[2], imported[2], freed[2];
    const auto play = [&](unsigned me) {
        set_ipc(settings);
        const auto own = expect(open_device(by_index{me}));
        std::vector<device_buffer> buffers;
        for (auto& each : handles->of[me]) {
            buffers.push_back(expect(own->heap().allocate(4096)));
            each = expect(share(buffers.back()));
        }
        shared[me].open();
        if (!shared[1 - me].wait())
            return false;
        std::vector<imported_buffer> kept;
        std::vector<std::byte> host(4096);
        for (const auto& each : handles->of[1 - me]) {
            kept.push_back(expect(import_memory(each)));
            expect(expect(kept.back().read(host)).wait());
        }
        imported[me].open();
        if (!imported[1 - me].wait())
            return false;
        const auto begin = clock_type::now();
        for (const auto& each : buffers)
            expect(revoke_leases(each.address()));
        buffers.clear();
        const auto taken = clock_type::now() - begin;
        freed[me].open();
        return taken < std::chrono::seconds(60) && // half a second for each is 150 s
               freed[1 - me].wait() &&
               std::all_of(kept.begin(), kept.end(), [](const auto& each) { return each.gone(); });
    };
    child other([&] { return play(1) ? 0 : 1; });
    EXPECT_TRUE(play(0));
    EXPECT_EQ(other.wait(), 0);
    EXPECT_TRUE(soon_true([] { return process_statistics().ipc.leases == 0; }));
    ::munmap(handles, sizeof(both_sides));
}

} // namespace
