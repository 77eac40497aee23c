// SPDX-License-Identifier: BSD-3-Clause
// Devices: enumeration, opening, selection, ownership, failure.
#include <gaudi/gaudi.hpp>

#include "src/hl/discovery.hpp"
#include "src/memory/heap_core.hpp"
#include "src/os/internals.hpp"
#include "tests/support/child.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/nth_call.hpp"
#include "tests/support/soon_true.hpp"
#include "tests/support/test_lab.hpp"

#include <cstdlib>
#include <sched.h>
#include <sys/resource.h>
#include <thread>

namespace {

using namespace gaudi;
using namespace testing_support;
using device_test = test_lab;

TEST_F(device_test, lists_without_opening) {
    const auto all = list_devices();
    ASSERT_TRUE(all) << all.error().message();
    ASSERT_EQ(all->size(), 2U);
    EXPECT_EQ((*all)[1].bus_id, "0000:1a:00.0");
    EXPECT_EQ((*all)[0].generation, generation::gaudi2);
    EXPECT_EQ((*all)[0].product, "HL225");
    EXPECT_EQ((*all)[0].allocation_page, 768ULL << 20);
    EXPECT_TRUE((*all)[0].operational);
    const int fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:19:00.0");
    EXPECT_GE(fd, 0) << "still free";
    hlthunk_close(fd);
}

// Without that, a device is busy for the process that has just let its own thread close it.
TEST_F(device_test, opening_waits_for_a_thread_that_closes_the_device) {
    auto first = expect(open_device(by_index{0}));
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_close 1 delay 300ms"), 0);
    std::thread closing([&] { first.reset(); });
    EXPECT_TRUE(soon_true([] { return gaudi_lab_faults_fired() == 1; }));
    const auto again = open_device(by_index{0});
    EXPECT_TRUE(again) << again.error().message();
    closing.join();
}

TEST_F(device_test, the_topology_for_hwloc_has_the_numa_node) {
    describe("gaudis = 2\n[gaudi 1]\nnuma_node = 3");
    EXPECT_NE((*list_devices())[1].numa_node, 3);
    ::setenv("HWLOC_XMLFILE", (lab() / "topology.xml").c_str(), 1);
    const auto all = list_devices();
    ::unsetenv("HWLOC_XMLFILE");
    ASSERT_TRUE(all && all->size() == 2);
    EXPECT_EQ((*all)[0].numa_node, 0);
    EXPECT_EQ((*all)[1].numa_node, 3);
}

TEST_F(device_test, by_index_bus_id_and_module) {
    describe("gaudis = 3\n[gaudi 2]\nmodule_id = 8\nbus_id = 0000:44:00.0");
    EXPECT_EQ((*open_device(by_index{1}))->info().index, 1U);
    EXPECT_EQ((*open_device(by_bus_id{"0000:44:00.0"}))->info().index, 2U);
    EXPECT_EQ((*open_device(by_bus_id{"44:00.0"}))->info().index, 2U);
    const auto letters = (*open_device(by_index{0}))->info();
    auto capital = letters.bus_id;
    std::transform(capital.begin(), capital.end(), capital.begin(),
                   [](char each) { return each == 'a' ? 'A' : each; });
    EXPECT_EQ((*open_device(by_bus_id{capital}))->info().index, letters.index);
    EXPECT_EQ((*open_device(by_module_id{8}))->info().index, 2U);
}

TEST_F(device_test, a_device_that_synapseai_has_not_acquired_has_no_pool) {
    const auto pool = (*open_device(by_index{0}))->synapse_pool();
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().observed(), "SynapseAI's pool on 0000:19:00.0: the device is not SynapseAI's");
}

TEST_F(device_test, unknown_devices_are_named_with_those_that_exist) {
    const auto opened = open_device(by_index{9});
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), errc::device_unknown);
    EXPECT_EQ(opened.error().kind(), error_kind::invalid);
    EXPECT_EQ(opened.error().observed(),
              "index 9; there are: 0 (0000:19:00.0, module 0), 1 (0000:1a:00.0, module 1)");
    EXPECT_EQ(open_device(by_bus_id{"0000:00:00.0"}).error().code(), errc::device_unknown);
    EXPECT_EQ(open_device(by_module_id{99}).error().code(), errc::device_unknown);
}

TEST_F(device_test, an_unknown_generation_is_listed_and_refused) {
    const auto loaded = hlthunk_api::load();
    ASSERT_TRUE(loaded) << loaded.error().message();
    auto newer = std::make_shared<hlthunk_api>(**loaded);
    newer->get_device_name_from_fd = [](int) { return static_cast<hlthunk_device_name>(15); };
    const auto all = discover(*newer);
    ASSERT_TRUE(all);
    ASSERT_EQ(all->size(), 2U);
    EXPECT_FALSE((*all)[0].generation);
    EXPECT_EQ((*all)[0].status, "operational, of a generation that this library does not know");
    const auto opened = open_for_compute(newer, (*all)[0]);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), errc::generation_unknown);
    EXPECT_EQ(opened.error().observed(), "device 0 (0000:19:00.0), product 'HL225'");
}

TEST_F(device_test, optional_functions_may_be_missing) {
    ::setenv("GAUDI_DIRECT_HLTHUNK", BARE_HLTHUNK, 1);
    const auto loaded = hlthunk_api::load();
    ASSERT_TRUE(loaded) << loaded.error().message();
    EXPECT_EQ((*loaded)->missing().size(), 12U) << fmt::format("{}", fmt::join((*loaded)->missing(), " "));
    const auto all = discover(**loaded);
    ASSERT_TRUE(all && all->size() == 2);
    const auto context = open_for_compute(*loaded, (*all)[0]);
    ASSERT_TRUE(context) << context.error().message();
    editable_address_map map;
    ASSERT_TRUE(map.add_window((*context)->slice().begin(), (*context)->slice().size(), 0));
    const auto opened = internals::wrap_shared<device>(*context, std::make_shared<heap_core>(*context, map));
    auto& bare = *opened;
    const auto buffer = bare.heap().allocate(4096);
    ASSERT_TRUE(buffer) << buffer.error().message();
    const auto window = buffer->dmabuf();
    ASSERT_FALSE(window);
    EXPECT_EQ(window.error().code(), errc::symbol_missing);
    EXPECT_EQ(window.error().observed(),
              BARE_HLTHUNK " has no hlthunk_device_mapped_memory_export_dmabuf_fd");
    const auto engine = bare.copies();
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code(), errc::copies_absent);
    EXPECT_EQ(engine.error().observed(), BARE_HLTHUNK " has no submission functions");
}

TEST_F(device_test, one_object_for_all_users_in_the_process) {
    const auto first = open_device(by_index{0}), again = open_device(by_index{0}), any = open_device();
    ASSERT_TRUE(first && again && any);
    EXPECT_EQ(first->get(), again->get());
    EXPECT_EQ(first->get(), any->get()) << "first_free prefers what is open here";
}

// In the lab's topology processor N belongs to NUMA node N.
TEST_F(device_test, first_free_prefers_a_device_close_to_its_processor) {
    for (const int nearer : {0, 1}) {
        describe(fmt::format("gaudis = 2\n[gaudi {}]\nnuma_node = 0\n[gaudi {}]\nnuma_node = 1\n", nearer,
                             1 - nearer));
        child bound([&] {
            ::setenv("HWLOC_XMLFILE", (lab() / "topology.xml").c_str(), 1);
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(0, &one);
            if (::sched_setaffinity(0, sizeof(one), &one) != 0)
                return 77;
            return static_cast<int>(expect(open_device())->info().index);
        });
        const int chosen = bound.wait();
        if (chosen == 77)
            GTEST_SKIP() << "not allowed to run on processor 0";
        EXPECT_EQ(chosen, nearer);
    }
}

TEST_F(device_test, busy_names_the_holder) {
    gate ready;
    child holder([&] {
        if (hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:19:00.0") < 0)
            return 1;
        ready.open();
        ::pause();
        return 0;
    });
    ASSERT_TRUE(ready.wait());
    const auto opened = open_device(by_index{0});
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), errc::device_busy);
    EXPECT_NE(opened.error().message().find(fmt::format("held by process {} (", holder.pid())),
              std::string::npos)
        << opened.error().message();
    const auto next = open_device();
    ASSERT_TRUE(next) << next.error().message();
    EXPECT_EQ((*next)->info().index, 1U) << "first_free passes over the busy one";
}

TEST_F(device_test, two_processes_get_one_each) {
    gate first_has, done;
    child other([&] {
        const auto opened = open_device();
        if (!opened || (*opened)->info().index != 0)
            return 1;
        first_has.open();
        return done.wait() ? 0 : 2;
    });
    ASSERT_TRUE(first_has.wait());
    const auto mine = open_device();
    ASSERT_TRUE(mine);
    EXPECT_EQ((*mine)->info().index, 1U);
    done.open();
    EXPECT_EQ(other.wait(), 0);
}

TEST_F(device_test, environment_hides_and_chooses) {
    ::setenv("HABANA_VISIBLE_DEVICES", "1", 1);
    EXPECT_EQ(list_devices()->size(), 1U);
    EXPECT_EQ(open_device(by_index{0}).error().code(), errc::device_hidden);
    EXPECT_EQ((*open_device())->info().index, 1U);
    ::unsetenv("HABANA_VISIBLE_DEVICES");
    ::setenv("HLS_MODULE_ID", "1", 1);
    EXPECT_EQ((*open_device())->info().index, 1U);
    ::setenv("HLS_MODULE_ID", "one", 1);
    EXPECT_EQ(open_device().error().code(), errc::selection_malformed);
    ::unsetenv("HLS_MODULE_ID");
}

TEST_F(device_test, try_again_is_tried_again) {
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_open 1 errno EAGAIN; hlthunk_open 2 errno EAGAIN"), 0);
    EXPECT_TRUE(open_device(by_index{0}));
    EXPECT_EQ(gaudi_lab_faults_fired(), 2U);
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_open every errno EAGAIN"), 0);
    EXPECT_EQ(open_device(by_index{0}).error().code(), errc::device_busy) << "but not for ever";
}

TEST_F(device_test, a_broken_device_and_no_devices) {
    describe("gaudis = 1\nbroken = yes");
    EXPECT_EQ(open_device(by_index{0}).error().code(), errc::device_broken);
    ASSERT_EQ(list_devices()->size(), 1U) << "it is there, and says why it cannot be used";
    EXPECT_EQ((*list_devices())[0].status, "disabled by the driver");
    describe("gaudis = 0");
    EXPECT_EQ(open_device().error().code(), errc::no_device);
    EXPECT_TRUE(list_devices()->empty());
}

TEST_F(device_test, no_descriptor_left) {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    (void)list_devices(); // opens the descriptors that the lab keeps open
    const int first_free_fd = ::dup(0);
    ::close(first_free_fd);
    // Each attempt allows one more descriptor, until opening succeeds.
    auto limit = static_cast<rlim_t>(first_free_fd);
    const auto open_within_limit = [&] {
        const rlimit small{limit, before.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &small);
        auto outcome = open_device(by_index{0});
        ::setrlimit(RLIMIT_NOFILE, &before);
        return outcome;
    };
    auto opened = open_within_limit();
    for (; !opened && limit < before.rlim_cur; opened = open_within_limit()) {
        EXPECT_EQ(opened.error().code(), errc::descriptors_exhausted) << opened.error().message();
        ++limit;
    }
    ASSERT_TRUE(opened) << opened.error().message();
    EXPECT_GE(limit, static_cast<rlim_t>(first_free_fd + 2))
        << "it was refused without and with a single one";
    auto buffer = (*opened)->heap().allocate(4096);
    ASSERT_TRUE(buffer);
    const int lowest_free = ::dup(0);
    ::close(lowest_free);
    const rlimit none{static_cast<rlim_t>(lowest_free), before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    const auto window = buffer->dmabuf();
    ::setrlimit(RLIMIT_NOFILE, &before);
    ASSERT_FALSE(window);
    EXPECT_EQ(window.error().code(), errc::descriptors_exhausted) << window.error().message();
    EXPECT_TRUE(buffer->dmabuf()) << "and works when there is one again";
}

TEST_F(device_test, every_call_may_fail_and_nothing_leaks) {
    for (const auto* action : {"errno ENOMEM", "errno EINVAL", "errno EIO"}) {
        const auto calls = fail_every_call(action, [] {
            const auto opened = open_device(by_index{0});
            if (!opened)
                return;
            auto buffer = (*opened)->heap().allocate(100000);
            if (!buffer)
                return;
            (void)buffer->dmabuf();
            auto engine = (*opened)->copies();
            if (!engine)
                return;
            std::vector<std::byte> data(100000);
            if (auto ticket = engine->write(buffer->address(), data))
                (void)ticket->wait(std::chrono::seconds(10));
        });
        EXPECT_GT(calls, 15U);
    }
    const auto opened = open_device(by_index{0});
    EXPECT_TRUE(opened) << opened.error().message();
}

TEST_F(device_test, every_call_of_a_copy_across_may_fail) {
    for (const auto* import : {"yes", "no"}) {
        describe(fmt::format("gaudis = 2\ndmabuf_import = {}", import));
        const auto calls = fail_every_call("errno ENOMEM", [] {
            const auto first = open_device(by_index{0}), second = open_device(by_index{1});
            if (!first || !second)
                return;
            auto from = (*first)->heap().allocate(100000), to = (*second)->heap().allocate(100000);
            if (from && to)
                if (auto ticket = copier().copy(place(to->address(), 100000), place(from->address(), 100000)))
                    (void)ticket->wait(std::chrono::seconds(10));
        });
        EXPECT_GT(calls, 30U);
    }
}

TEST_F(device_test, every_call_may_fail_on_gen1) {
    describe("gaudis = 1\ngeneration = gaudi");
    const auto calls = fail_every_call("errno EIO", [] {
        const auto opened = open_device(by_index{0});
        if (!opened)
            return;
        auto buffer = (*opened)->heap().allocate(100000);
        auto engine = (*opened)->copies();
        std::vector<std::byte> data(100000);
        if (buffer && engine)
            if (auto ticket = engine->read(data, buffer->address()))
                (void)ticket->wait(std::chrono::seconds(10));
    });
    EXPECT_GT(calls, 60U) << "a command buffer for each slot";
}

TEST_F(device_test, a_lost_device_fails_fast_and_comes_back) {
    auto opened = *open_device(by_index{0});
    auto engine = *opened->copies();
    auto buffer = *opened->heap().allocate(1 << 20);
    std::vector<std::byte> data(1 << 20);
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_command_submission 1 reset"), 0);
    auto ticket = engine.write(buffer.address(), data);
    const auto outcome = ticket ? ticket->wait() : tl::unexpected(ticket.error());
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::device_lost) << outcome.error().message();
    EXPECT_TRUE(opened->lost());
    EXPECT_EQ(engine.write(buffer.address(), data).error().code(), errc::device_lost);
    EXPECT_EQ(opened->heap().allocate(64).error().code(), errc::device_lost);
    EXPECT_EQ(open_device(by_index{0}).error().code(), errc::device_lost) << "still open here";
    ticket = tl::unexpected(error(errc::device_lost, ""));
    buffer = {};
    engine = *(*open_device(by_index{1}))->copies();
    opened.reset();
    const auto again = open_device(by_index{0});
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_TRUE((*again)->heap().allocate(4096));
}

TEST_F(device_test, a_page_fault_comes_back_on_the_ticket) {
    auto opened = *open_device(by_index{0});
    auto engine = *opened->copies();
    auto buffer = *opened->heap().allocate(1 << 20);
    std::vector<std::byte> data(1 << 20);
    // Unmap the memory without the library: only the device detects the access.
    ASSERT_EQ(hlthunk_memory_unmap(opened->descriptor(),
                                   buffer.address().value() / (768ULL << 20) * (768ULL << 20)),
              -EINVAL);
    ASSERT_EQ(hlthunk_memory_unmap(opened->descriptor(), buffer.address().value()), 0);
    auto ticket = engine.write(buffer.address(), data);
    ASSERT_TRUE(ticket);
    const auto outcome = ticket->wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::device_lost);
    EXPECT_NE(outcome.error().message().find("page fault"), std::string::npos) << outcome.error().message();
}

TEST_F(device_test, a_child_leaves_its_parents_device_alone) {
    auto opened = *open_device(by_index{0});
    auto buffer = *opened->heap().allocate(4096);
    child forked([&] {
        buffer = {};
        opened.reset();
        const auto own = open_device(by_index{0});
        return !own && own.error().code() == errc::device_busy ? 0 : 1;
    });
    EXPECT_EQ(forked.wait(), 0);
    auto engine = *opened->copies();
    std::array<std::byte, 4096> data{};
    auto ticket = engine.write(buffer.address(), data);
    ASSERT_TRUE(ticket) << ticket.error().message();
    EXPECT_TRUE(ticket->wait()) << "the child freed the parent's memory";
}

TEST_F(device_test, one_gen1_device_per_process_because_addresses_are_physical) {
    describe("gaudis = 2\ngeneration = gaudi");
    auto first = open_device(by_index{0});
    ASSERT_TRUE(first) << first.error().message();
    auto buffer = (*first)->heap().allocate(1 << 20);
    ASSERT_TRUE(buffer);
    EXPECT_TRUE(buffer->dmabuf());
    EXPECT_EQ(open_device(by_index{1}).error().code(), errc::address_collision);
}

TEST_F(device_test, cycles_leave_nothing) {
    (void)open_device(by_index{0}); // allocates what the first use keeps
    const auto cycle = [] {
        const auto opened = open_device(by_index{0});
        ASSERT_TRUE(opened) << opened.error().message();
        auto buffer = (*opened)->heap().allocate(65536);
        ASSERT_TRUE(buffer && buffer->dmabuf());
        auto engine = (*opened)->copies();
        std::vector<std::byte> data(65536);
        auto ticket = engine->write(buffer->address(), data);
        ASSERT_TRUE(ticket && ticket->wait());
    };
    for (int i = 0; i < 20; ++i) // fills the caches of thread stacks and malloc arenas
        cycle();
    const auto descriptors = open_descriptors();
    const auto regions = mapped_regions();
    const auto stored = stored_bytes(root());
    const char* wanted = std::getenv("GAUDI_TEST_CYCLES");
    const int cycles = wanted != nullptr ? std::atoi(wanted) : 300;
    for (int i = 0; i < cycles && !HasFatalFailure(); ++i)
        cycle();
    EXPECT_EQ(open_descriptors(), descriptors);
#ifdef __SANITIZE_THREAD__
    const auto slack = 4 + static_cast<std::size_t>(cycles) / 10; // the sanitizer maps memory of its own
#else
    constexpr std::size_t slack = 4;
#endif
    EXPECT_LE(mapped_regions(), regions + slack) << "thread stacks may be cached, nothing may grow";
    EXPECT_LE(stored_bytes(root()), stored);
}

} // namespace
