// SPDX-License-Identifier: BSD-3-Clause
// How the copier chooses a path, what it caches, how callers wait for copies, and what it refuses.
#include <gaudi/gaudi.h>

#include "src/hl/hl_device.hpp"
#include "src/os/internals.hpp"
#include "tests/ipc/ipc_test.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/transfer/ends.hpp"

#include <malloc.h>
#include <poll.h>

namespace {

using namespace testing_support;

using copier_test = ipc_test;

copy_path taken(copier& copies, copy_place& to, copy_place& from, std::size_t size = 4096) {
    auto started = expect(copies.copy(to.part(0, size), from.part(0, size)));
    expect(started.wait());
    return started.path();
}

TEST_F(copier_test, between_two_devices_the_best_path_is_taken) {
    for (const auto& [description, expected] :
         {std::pair("gaudis = 2\nhcas = 1\ndmabuf_import = yes", copy_path::peer_dmabuf),
          std::pair("gaudis = 2\nhcas = 1", copy_path::nic_loopback),
          std::pair("gaudis = 2\nhcas = 0", copy_path::staged),
          std::pair("gaudis = 2\nhcas = 1\n[hca 0]\ndmabuf = no", copy_path::staged)}) {
        SCOPED_TRACE(description);
        describe(description);
        device_place to(1, 10 * mebibyte), from(0, 10 * mebibyte);
        copier copies;
        const auto sent = pattern(10 * mebibyte, 1);
        from.fill(sent);
        EXPECT_EQ(taken(copies, to, from, 10 * mebibyte), expected);
        EXPECT_TRUE(to.bytes() == sent);
    }
}

// Gaudi3 has no queues for users: a NIC carries every copy, in the C++ and the C interface.
TEST_F(copier_test, gaudi3_copies_by_a_nic) {
    describe("gaudis = 2\nhcas = 1\ngeneration = gaudi3");
    const auto opened_device = expect(open_device(by_index{0})), other = expect(open_device(by_index{1}));
    constexpr std::size_t size = 5 * mebibyte + 17;
    const auto first = expect(opened_device->heap().allocate(size)),
               second = expect(opened_device->heap().allocate(size)),
               third = expect(other->heap().allocate(size));
    copier copies;
    const auto sent = pattern(size, 2);
    std::vector<std::byte> back(size);
    const auto at = [&](const device_buffer& of) { return place(of.address(), size); };
    for (const auto& [to, from] :
         {std::pair(at(first), place(std::span(sent))), std::pair(at(second), at(first)),
          std::pair(at(third), at(second)), std::pair(place(std::span(back)), at(third))}) {
        auto started = copies.copy(to, from);
        ASSERT_TRUE(started) << started.error().message();
        EXPECT_EQ(started->path(), copy_path::nic_loopback);
        const auto done = started->wait();
        ASSERT_TRUE(done) << done.error().message();
    }
    EXPECT_TRUE(back == sent);

    gaudi_device* handle = nullptr;
    ASSERT_EQ(gaudi_open("0", &handle), GAUDI_OK) << gaudi_last_error();
    uint64_t one = 0, two = 0;
    ASSERT_EQ(gaudi_allocate(handle, size, &one), GAUDI_OK);
    ASSERT_EQ(gaudi_allocate(handle, size, &two), GAUDI_OK);
    std::fill(back.begin(), back.end(), std::byte{});
    EXPECT_EQ(gaudi_copy_in(handle, one, sent.data(), size), GAUDI_OK) << gaudi_last_error();
    EXPECT_EQ(gaudi_copy_within(handle, two, one, size), GAUDI_OK) << gaudi_last_error();
    EXPECT_EQ(gaudi_copy_out(handle, back.data(), two, size), GAUDI_OK) << gaudi_last_error();
    EXPECT_TRUE(back == sent);
    EXPECT_EQ(gaudi_copy_in(handle, third.address().value(), sent.data(), size), GAUDI_INVALID)
        << "memory of another device";
    EXPECT_EQ(gaudi_free(handle, one), GAUDI_OK);
    EXPECT_EQ(gaudi_free(handle, two), GAUDI_OK);
    gaudi_close(handle);
}

TEST_F(copier_test, a_device_that_nothing_can_copy_for_says_why) {
    describe("gaudis = 1\nhcas = 0\ngeneration = gaudi3");
    const auto opened_device = expect(open_device(by_index{0}));
    const auto buffer = expect(opened_device->heap().allocate(4096));
    copier copies;
    std::vector<std::byte> host(4096);
    const auto refused = copies.copy(place(buffer.address(), 4096), std::span(host));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind(), error_kind::unsupported);
    EXPECT_NE(refused.error().observed().find("offers no queue for user submissions"), std::string::npos)
        << refused.error().message();
    EXPECT_NE(refused.error().observed().find("a NIC in loopback: "), std::string::npos)
        << refused.error().message();
}

TEST_F(copier_test, the_verdict_on_every_path_is_returned) {
    describe("gaudis = 2\nhcas = 1\n[hca 0]\ndmabuf = no");
    device_place to(1, 4096), from(0, 4096);
    copier copies;
    const auto verdicts = copies.paths(to.part(0, 4096), from.part(0, 4096));
    ASSERT_EQ(verdicts.size(), copy_paths);
    for (std::size_t i = 0; i < copy_paths; ++i) {
        EXPECT_EQ(verdicts[i].path, static_cast<copy_path>(i));
        EXPECT_EQ(verdicts[i].why_not.has_value(), verdicts[i].path != copy_path::staged);
    }
    const auto why = [&](copy_path of) { return verdicts[static_cast<std::size_t>(of)].why_not->code(); };
    EXPECT_EQ(why(copy_path::engine), errc::no_path);
    EXPECT_EQ(why(copy_path::peer_dmabuf), errc::import_unsupported);
    EXPECT_EQ(why(copy_path::nic_loopback), errc::dmabuf_unsupported);
}

TEST_F(copier_test, zero_copy_can_be_required) {
    describe("gaudis = 2\nhcas = 0");
    device_place to(1, 4096), from(0, 4096);
    copier copies;
    copy_policy policy;
    policy.zero_copy = true;
    const auto refused = copies.copy(to.part(0, 4096), from.part(0, 4096), policy);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::zero_copy_impossible);
    EXPECT_NE(refused.error().observed().find("REG_DMABUF_FD"), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(taken(copies, to, from), copy_path::staged);
}

TEST_F(copier_test, bad_places_are_refused_and_nothing_is_lost) {
    describe("gaudis = 2\nhcas = 1");
    device_place one(0, 8192), other(1, 8192);
    host_place host(8192);
    copier copies;
    const std::vector<std::byte> constant(8192);
    const auto code = [&](const place& to, const place& from) {
        return copies.copy(to, from).error().code();
    };
    EXPECT_EQ(code(one.part(0, 10), host.part(0, 11)), errc::length_mismatch);
    EXPECT_EQ(code(one.part(0, 0), host.part(0, 0)), errc::size_zero);
    EXPECT_EQ(code(one.part(1, 8192), host.part(0, 8192)), errc::range_leaves_allocation);
    EXPECT_EQ(code(one.part(1, 8192), other.part(0, 8192)), errc::range_leaves_allocation);
    EXPECT_EQ(code(place(device_address(64), 8), host.part(0, 8)), errc::not_allocated);
    EXPECT_EQ(code(one.part(0, 100), one.part(50, 100)), errc::ranges_overlap);
    EXPECT_EQ(code(std::span(constant), one.part(0, 8192)), errc::host_range_invalid);
    EXPECT_EQ(code(place(dmabuf_export{-1, 0, {}, 8}), host.part(0, 8)), errc::registration_refused);
    const auto sent = pattern(8192, 9);
    host.fill(sent);
    EXPECT_EQ(taken(copies, one, host, 8192), copy_path::engine);
    EXPECT_TRUE(one.bytes() == sent);
}

// No copy blocks its caller: all are started before the first completes, and event_fd() wakes a sleeping
// thread.
TEST_F(copier_test, copies_of_every_path_are_waited_for_by_one_descriptor) {
    describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
    constexpr std::size_t size = 4 * mebibyte;
    device_place one(1, 6 * size), other(0, 6 * size);
    host_place host(6 * size);
    one.fill(pattern(6 * size, 1));
    other.fill(pattern(6 * size, 2));
    copier copies;
    const int descriptor = expect(copies.event_fd());
    std::vector<copy_ticket> tickets;
    const auto begin = [&](copy_place& to, copy_place& from, copy_path only) {
        const auto at = tickets.size() * size;
        tickets.push_back(expect(copies.copy(to.part(at, size), from.part(at, size), {only})));
    };
    begin(one, host, copy_path::engine);
    begin(one, other, copy_path::peer_dmabuf);
    begin(one, other, copy_path::nic_loopback);
    begin(one, other, copy_path::staged);
    begin(host, other, copy_path::nic_loopback);
    const auto all_ended = [&] {
        return std::all_of(tickets.begin(), tickets.end(), [](auto& each) { return each.finished(); });
    };
    unsigned sleeps = 0;
    for (; !all_ended() && sleeps < 100000; ++sleeps) {
        copies.arm();
        copies.poll();
        if (all_ended())
            break;
        pollfd waiting{descriptor, POLLIN, 0};
        ASSERT_EQ(::poll(&waiting, 1, 30000), 1) << "a sleeper was not woken";
        copies.poll();
    }
    EXPECT_TRUE(all_ended());
    for (auto& each : tickets)
        EXPECT_TRUE(each.wait(milliseconds(0)));
    const auto seen = one.bytes();
    const auto theirs = pattern(6 * size, 2);
    EXPECT_TRUE(std::equal(seen.begin() + size, seen.begin() + 4 * size, theirs.begin() + size));
}

TEST_F(copier_test, imports_and_pins_are_kept_and_end_with_their_memory) {
    describe("gaudis = 2\nhcas = 0\ndmabuf_import = yes");
    auto first = expect(open_device(by_index{0})), second = expect(open_device(by_index{1}));
    copier copies;
    for (const auto only : {copy_path::peer_dmabuf, copy_path::staged}) {
        {
            const auto from = expect(first->heap().allocate(mebibyte)),
                       to = expect(second->heap().allocate(mebibyte));
            expect(expect(copies.copy(to, from, {only})).wait());
            // Mapping and importing fail from here on: the next copies use what the copier has cached.
            ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_host_memory_map every errno ENOMEM; "
                                           "hlthunk_memory_ioctl every errno ENOMEM"),
                      0);
            for (int i = 0; i < 3; ++i)
                expect(expect(copies.copy(to, from, {only})).wait());
            EXPECT_EQ(gaudi_lab_faults_fired(), 0U);
            gaudi_lab_arm_faults("");
        }
        for (const auto& each : {first, second}) {
            each->heap().trim();
            EXPECT_EQ(each->heap().statistics().chunks, 0U) << "an import keeps a chunk";
        }
    }
    first.reset();
    second.reset();
    copies = copier();
    EXPECT_TRUE(open_device(by_index{0})) << "something of the copier's keeps the device open";
}

TEST_F(copier_test, one_that_keeps_nothing_keeps_no_device_open) {
    describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
    copier copies({.keep = false});
    for (int round = 0; round < 2; ++round) {
        std::size_t opened = 0;
        for (const auto only : {copy_path::peer_dmabuf, copy_path::nic_loopback, copy_path::staged}) {
            device_place to(1, 4096), from(0, 4096);
            expect(expect(copies.copy(to.part(0, 4096), from.part(0, 4096), {only})).wait());
            opened = open_descriptors();
        }
        EXPECT_FALSE(find_open_device(0));
        EXPECT_LT(open_descriptors(), opened) << "the devices stay open";
    }
}

TEST_F(copier_test, what_a_lost_device_had_is_released) {
    describe("gaudis = 2\nhcas = 1");
    auto opened_device = expect(open_device(by_index{0}));
    auto buffer = expect(opened_device->heap().allocate(4096));
    copier copies;
    std::vector<std::byte> host(4096);
    expect(expect(copies.copy(place(buffer.address(), 4096), std::span(host))).wait());
    core_of(*opened_device)->loss().mark("a test says so");
    EXPECT_EQ(copies.copy(place(buffer.address(), 4096), std::span(host)).error().code(), errc::device_lost);
    buffer = {};
    opened_device.reset();
    copies.drop_lost();
    opened_device = expect(open_device(by_index{0}));
    buffer = expect(opened_device->heap().allocate(4096));
    EXPECT_TRUE(expect(copies.copy(place(buffer.address(), 4096), std::span(host))).wait());
}

// A caller that only waits for tickets and never calls poll() leaks nothing.
TEST_F(copier_test, copies_that_are_never_polled_do_not_accumulate) {
    describe("gaudis = 2\nhcas = 0");
    device_place to(1, 4096), from(0, 4096);
    copier copies;
    const auto copy = [&](int times) {
        for (int i = 0; i < times; ++i)
            expect(expect(copies.copy(to.part(0, 64), from.part(0, 64), {copy_path::staged})).wait());
    };
    copy(200);
    const auto before = ::mallinfo2().uordblks;
    copy(1000);
    EXPECT_LT(::mallinfo2().uordblks, before + 16384);
}

TEST_F(copier_test, memory_of_another_device_than_was_named_is_refused_by_every_path) {
    describe("gaudis = 3\nhcas = 1\ndmabuf_import = yes");
    device_place to(1, 4096), from(0, 4096);
    copier copies;
    const auto theirs = from.memory().address();
    for (const auto only : {copy_path::peer_dmabuf, copy_path::nic_loopback, copy_path::staged}) {
        const auto third = expect(open_device(by_index{2}));
        EXPECT_EQ(copies.copy(to.part(0, 4096), place(theirs, 4096, 2), {only}).error().code(),
                  errc::wrong_device)
            << name_of(only);
    }
}

// An armed event_fd() also reports copies that start after arm().
TEST_F(copier_test, a_sleeping_thread_wakes_for_copies_that_start_later) {
    describe("gaudis = 2\nhcas = 0");
    device_place to(1, mebibyte), from(0, mebibyte);
    copier copies;
    const int descriptor = expect(copies.event_fd());
    copies.arm();
    auto ticket = expect(copies.copy(to.part(0, mebibyte), from.part(0, mebibyte)));
    ASSERT_EQ(ticket.path(), copy_path::staged);
    pollfd waiting{descriptor, POLLIN, 0};
    EXPECT_EQ(::poll(&waiting, 1, 30000), 1);
    expect(ticket.wait());
}

// The engine on the owner's context wakes the sleeper when the copy ends, and not before: no timer polls for
// it. The lease is free although the ticket is kept.
TEST_F(copier_test, a_copy_on_another_processs_context_wakes_a_sleeper_once) {
    describe("gaudis = 1\nhcas = 0");
    constexpr std::size_t size = 32 * mebibyte;
    leased_place from(size);
    host_place to(size);
    from.fill(pattern(size, 5));
    copier copies;
    const int descriptor = expect(copies.event_fd());
    auto ticket = expect(copies.copy(to.part(0, size), from.part(0, size)));
    ASSERT_EQ(ticket.path(), copy_path::owner_context);
    copies.arm();
    unsigned sleeps = 0;
    for (; !ticket.finished(); ++sleeps) {
        pollfd waiting{descriptor, POLLIN, 0};
        ASSERT_EQ(::poll(&waiting, 1, 30000), 1) << "a sleeper was not woken";
        copies.poll();
    }
    EXPECT_LE(sleeps, 1U);
    EXPECT_TRUE(ticket.wait(milliseconds(0)));
    EXPECT_EQ(from.revoke(), 0U) << "a ticket of a copy that has ended keeps the lease";
    EXPECT_EQ(to.bytes(), pattern(size, 5));
}

TEST_F(copier_test, two_places_of_other_processes_are_refused) {
    describe("gaudis = 2\nhcas = 1");
    leased_place one(4096, {}, 0), other(4096, {}, 1);
    copier copies;
    EXPECT_EQ(copies.copy(one.part(0, 4096), other.part(0, 4096)).error().code(), errc::no_path);
}

TEST_F(copier_test, a_child_of_fork_gets_an_error) {
    describe("gaudis = 1\nhcas = 1");
    device_place memory(0, 4096);
    host_place host(4096);
    copier copies;
    auto ticket = expect(copies.copy(memory.part(0, 4096), host.part(0, 4096)));
    child other([&] {
        return copies.copy(memory.part(0, 4096), host.part(0, 4096)).error().code() == errc::forked ? 0 : 1;
    });
    EXPECT_EQ(other.wait(), 0);
    EXPECT_TRUE(ticket.wait());
}

TEST_F(copier_test, threads_share_one) {
    describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
    constexpr std::size_t size = 300001;
    device_place one(1, 8 * size), other(0, 8 * size);
    const auto sent = pattern(8 * size, 3);
    other.fill(sent);
    copier copies({.nic_max = 4096});
    std::vector<std::thread> threads;
    std::atomic<unsigned> wrong{0};
    for (unsigned i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            const auto path = i % 2 == 0 ? copy_path::nic_loopback : copy_path::staged;
            std::array<std::byte, 64> word{};
            for (int round = 0; round < 20; ++round) {
                auto started = copies.copy(one.part(i * size, size), other.part(i * size, size), {path});
                if (!started || !copies.copy(std::span(word), other.part(7 * size, word.size())) ||
                    !std::equal(word.begin(), word.end(), sent.begin() + 7 * size) || !started->wait())
                    ++wrong;
            }
        });
    for (auto& each : threads)
        each.join();
    EXPECT_EQ(wrong, 0U);
    const auto seen = one.bytes();
    EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + 4 * size, sent.begin()));
}

} // namespace
