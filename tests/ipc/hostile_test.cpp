// SPDX-License-Identifier: BSD-3-Clause
// Malformed handles and messages, users and namespaces without permission, owners that do not answer.
#include "tests/ipc/ipc_test.hpp"

#include "src/hl/hl_device.hpp"
#include "src/ipc/messages.hpp"
#include "src/ipc/settings.hpp"
#include "src/os/channel.hpp"
#include "src/os/internals.hpp"
#include "src/os/shared_memory.hpp"
#include "src/rdma/nic_core.hpp"

#include <csignal>
#include <fstream>
#include <random>
#include <sched.h>
#include <thread>

// The threads of a virtual Gaudi live for half a second; many processes here exit earlier.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() {
    return "report_thread_leaks=0";
}

namespace {

using namespace testing_support;

handle_record record_of(const memory_handle& handle) {
    return expect(read_handle(handle.bytes));
}

// Imports in a child process. `prepare` changes its user or its namespaces. The exit status is 0 if the child
// read 4096 bytes of the first pattern.
int import_from(const memory_handle& handle, copy_path path, const std::function<bool()>& prepare) {
    child importer([&] {
        if (!prepare())
            return 77;
        auto imported = import_memory(handle, {path});
        if (!imported)
            return static_cast<int>(imported.error().code()) + 100;
        std::vector<std::byte> seen(4096);
        auto reading = imported->read(seen);
        const auto done = reading ? reading->wait() : tl::unexpected(reading.error());
        if (!done)
            return static_cast<int>(done.error().code()) + 100;
        return seen == pattern(4096, 1) ? 0 : 1;
    });
    return importer.wait();
}
int refused_with(errc code) {
    return static_cast<int>(code) + 100;
}

TEST_F(ipc_test, handles_that_make_no_sense) {
    const auto own = expect(open_device(by_index{0}));
    const auto buffer = expect(own->heap().allocate(4096));
    const auto handle = expect(share(buffer));
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{127}})
        EXPECT_EQ(import_memory(std::span(handle.bytes).first(size)).error().code(), errc::handle_invalid);
    for (std::size_t i = 0; i < handle.bytes.size(); ++i) { // a change of any byte is detected
        auto damaged = handle;
        damaged.bytes[i] ^= std::byte{1};
        EXPECT_EQ(import_memory(damaged).error().code(), errc::handle_invalid) << i;
    }
    auto newer = record_of(handle);
    newer.version = 2;
    EXPECT_EQ(import_memory(newer.seal()).error().code(), errc::handle_invalid);
    auto beyond = record_of(handle);
    beyond.offset = 1;
    EXPECT_EQ(import_memory(beyond.seal()).error().code(), errc::handle_invalid);
    auto elsewhere = record_of(handle);
    elsewhere.machine ^= 1;
    EXPECT_EQ(import_memory(elsewhere.seal()).error().code(), errc::other_host);
    auto unknown_owner = record_of(handle);
    unknown_owner.random[0] ^= 1;
    EXPECT_EQ(import_memory(unknown_owner.seal()).error().code(), errc::peer_gone);
}

TEST_F(ipc_test, made_up_handles_open_nothing) {
    owner other;
    const auto handle = other.share(4096, 1);
    for (const auto change :
         {+[](handle_record& made) { made.secret ^= 1; }, +[](handle_record& made) { made.secret = 0; },
          +[](handle_record& made) { made.generation ^= 1; }, +[](handle_record& made) { made.base += 64; },
          +[](handle_record& made) { made.allocated *= 2; }, +[](handle_record& made) { made.pid ^= 1; },
          +[](handle_record& made) { made.start_time ^= 1; }}) {
        auto made = record_of(handle);
        change(made);
        const auto refused = import_memory(made.seal());
        ASSERT_FALSE(refused);
        EXPECT_TRUE(refused.error().code() == errc::handle_stale ||
                    refused.error().code() == errc::handle_invalid)
            << refused.error().message();
    }
    EXPECT_EQ(other.leases(0), 0U);
    EXPECT_TRUE(import_memory(handle));
}

TEST_F(ipc_test, a_handle_of_a_process_that_ended) {
    memory_handle handle;
    {
        owner other;
        handle = other.share(4096, 1);
    }
    const auto refused = import_memory(handle);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::peer_gone);
    EXPECT_NE(refused.error().message().find("network namespace"), std::string::npos);
}

// labels: waits
TEST_F(ipc_test, garbage_does_not_affect_other_clients) {
    owner other;
    const auto handle = other.share(4096, 1);
    auto imported = expect(import_memory(handle, {copy_path::owner_proxy}));
    const auto name = broker_name(record_of(handle).owner());
    std::vector<std::byte> seen(4096);
    expect(expect(imported.read(seen)).wait()); // afterwards the owner has closed what the import opened
    const auto descriptors = other.descriptors();
    std::mt19937 random(1);
    std::vector<unique_fd> silent;
    for (int round = 0; round < 200; ++round) {
        auto socket = expect(connect_to(name));
        message_bytes bytes = request_message(1, open_lease_request{});
        switch (round % 5) {
        case 0: // random bytes
            for (auto& each : bytes)
                each = static_cast<std::byte>(random());
            break;
        case 1: // too short
            bytes.resize(random() % bytes.size());
            break;
        case 2: // another version
            bytes = message_of(request_head{.version = static_cast<std::uint16_t>(random())}, nothing_more{});
            break;
        case 3: { // an unknown request, a wrong size, or a lease or slab that does not exist
            const auto lease = static_cast<std::uint32_t>(random());
            const auto beyond = random() * 0x100000001ULL;
            const auto kind = static_cast<std::uint16_t>(random() % 12);
            bytes = random() % 2 == 0
                        ? request_message(1, copy_request{lease, lease % 2, beyond, beyond, beyond})
                        : message_of(request_head{.kind = kind}, open_context_request{lease});
            break;
        }
        case 4: // a client that sends nothing
            silent.push_back(std::move(socket));
            continue;
        }
        const int passed[] = {socket.get()};
        (void)send_message(socket.get(), bytes,
                           round % 2 == 0 ? std::span<const int>(passed) : std::span<const int>(), {});
        expect(expect(imported.read(seen)).wait());
        ASSERT_EQ(seen, pattern(4096, 1));
    }
    // The broker closes a silent connection after two seconds.
    EXPECT_TRUE(soon_true([&] { return other.descriptors() <= descriptors; })) << other.descriptors();
    EXPECT_EQ(other.leases(0), 1U);
}

TEST_F(ipc_test, silent_connections_do_not_keep_others_out) {
    owner other;
    const auto handle = other.share(4096, 1);
    const auto name = broker_name(record_of(handle).owner());
    const auto descriptors = other.descriptors();
    std::vector<unique_fd> silent;
    for (int i = 0; i < 400; ++i)
        silent.push_back(expect(connect_to(name)));
    EXPECT_EQ(import_from(handle, copy_path::owner_proxy, [] { return true; }), 0) << "others are served";
    EXPECT_LT(other.descriptors(), descriptors + 250) << "two for each would be 800";
    EXPECT_TRUE(soon_true([&] { return import_memory(handle).has_value(); }))
        << "and this one, when they are gone";
}

// labels: waits
TEST_F(ipc_test, an_owner_that_does_not_answer) {
    ipc_settings impatient;
    impatient.answer_timeout = milliseconds(2000);
    set_ipc(impatient);
    owner other;
    const auto handle = other.share(4096, 1);
    auto imported = expect(import_memory(handle, {copy_path::owner_proxy}));
    const auto second = other.share(4096, 2);
    other.process().stop();
    const auto begin = std::chrono::steady_clock::now();
    const auto refused = import_memory(second);
    const auto took = std::chrono::steady_clock::now() - begin;
    other.process().go_on();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::peer_silent);
    EXPECT_GE(took, milliseconds(1900));
    EXPECT_LT(took, std::chrono::seconds(30));
    EXPECT_EQ(other.leases(0), 1U); // the owner runs again
    std::vector<std::byte> seen(4096);
    expect(expect(imported.read(seen)).wait());
    EXPECT_EQ(seen, pattern(4096, 1)) << "an answer that came too late does no harm";
    // The same during a copy by the owner.
    other.process().stop();
    const auto left = expect(imported.read(seen)).wait();
    other.process().go_on();
    ASSERT_FALSE(left);
    EXPECT_EQ(left.error().code(), errc::peer_silent);
    EXPECT_TRUE(imported.gone());
    auto again = expect(import_memory(handle, {copy_path::owner_proxy}));
    expect(expect(again.read(seen)).wait());
    EXPECT_EQ(seen, pattern(4096, 1));
}

TEST_F(ipc_test, no_descriptor_left) {
    owner other;
    const auto handle = other.share(4096, 1);
    const auto second = other.share(4096, 2);
    std::vector<std::byte> seen(4096);
    auto first = expect(import_memory(handle, {copy_path::nic_loopback})); // thread, socket, lease table, NIC
    expect(expect(first.read(seen)).wait());
    auto later = expect(import_memory(second, {copy_path::nic_loopback}));
    const auto refused = [&] {
        const all_descriptors taken;
        return later.read(seen); // receives a DMA-BUF descriptor
    }();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::descriptors_exhausted) << refused.error().message();
    expect(expect(later.read(seen)).wait());
    EXPECT_EQ(seen, pattern(4096, 2));
}

TEST_F(ipc_test, an_owner_without_a_descriptor_left) {
    owner other;
    const auto handle = other.share(4096, 1);
    auto known = expect(import_memory(handle, {copy_path::owner_proxy}));
    std::vector<std::byte> seen(4096);
    expect(expect(known.read(seen)).wait());
    other.run_out_of_descriptors(true);
    EXPECT_EQ(import_from(handle, copy_path::owner_proxy, [] { return true; }),
              refused_with(errc::descriptors_exhausted))
        << "a process that connects now receives the reason";
    auto again = expect(import_memory(handle, {copy_path::nic_loopback}));
    const auto refused = again.read(seen); // the owner would have to export its memory
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::descriptors_exhausted) << refused.error().message();
    expect(expect(known.read(seen)).wait()); // the earlier import still works
    EXPECT_EQ(seen, pattern(4096, 1));
    other.run_out_of_descriptors(false);
    EXPECT_EQ(import_from(handle, copy_path::owner_proxy, [] { return true; }), 0);
    expect(expect(again.read(seen)).wait());
}

// Sends raw requests to an owner, without the library's checks.
class raw_client {
public:
    explicit raw_client(const memory_handle& handle)
        : handle_(record_of(handle)), socket_(expect(connect_to(broker_name(handle_.owner())))) {}
    // False if the message could not be sent.
    template <typename Request>
    bool send(const Request& request, std::span<const int> descriptors = {}) {
        return send_message(socket_.get(), request_message(++last_id_, request), descriptors, {}).has_value();
    }
    bool open_lease() { return send(open_lease_request{handle_}); }
    // The next answer, or nullopt if none arrives before the limit.
    std::optional<answer_head> answer(milliseconds limit) {
        std::array<std::byte, longest_answer> bytes;
        auto got = receive_message(socket_.get(), bytes, std::chrono::steady_clock::now() + limit);
        if (!got)
            return std::nullopt;
        passed = std::move(got->passed);
        body.assign(bytes.begin() + sizeof(answer_head),
                    bytes.begin() + static_cast<std::ptrdiff_t>(got->bytes));
        return read_as<answer_head>(std::span(bytes).first(sizeof(answer_head)));
    }
    // Sends a request. Returns 0, or the number of its error + 1.
    template <typename Request>
    std::uint32_t failure_of(const Request& request, std::span<const int> descriptors = {}) {
        EXPECT_TRUE(send(request, descriptors));
        return answer(std::chrono::seconds(20)).value().failed;
    }
    // Sends a request that must succeed.
    template <typename Request>
    typename Request::answer ask(const Request& request, std::span<const int> descriptors = {}) {
        EXPECT_EQ(failure_of(request, descriptors), 0U);
        return read_as<typename Request::answer>(body).value();
    }
    [[nodiscard]] const handle_record& handle() const { return handle_; }

    std::array<unique_fd, most_passed> passed; // with the last answer
    message_bytes body;                        // of the last answer

private:
    handle_record handle_;
    unique_fd socket_;
    std::uint64_t last_id_ = 0;
};

// A handle of a part of a buffer: neither a modified handle nor forged messages reach the rest of the buffer.
TEST_F(ipc_test, a_handle_of_a_part_opens_that_part_alone) {
    const auto own = expect(open_device(by_index{0}));
    const auto buffer = expect(own->heap().allocate(3 * 4096));
    const auto part = expect(share(buffer.address() + 4096, 4096));
    EXPECT_EQ(part.bytes, expect(share(buffer.address() + 4096, 4096)).bytes) << "one secret a part";
    const auto whole = expect(share(buffer));
    child importer([&] {
        auto forged = record_of(part);
        forged.offset = 0;
        forged.length = 3 * 4096;
        EXPECT_EQ(import_memory(forged.seal()).error().code(), errc::handle_stale);
        forged = record_of(whole);
        forged.secret = record_of(part).secret;
        EXPECT_EQ(import_memory(forged.seal()).error().code(), errc::handle_stale);

        raw_client hostile(part);
        const auto lease = hostile.ask(open_lease_request{hostile.handle()}).lease;
        const auto given = hostile.ask(open_dmabuf_request{lease});
        EXPECT_EQ(given.window, 4096U) << "a DMA-BUF of the part's page alone";
        EXPECT_EQ(given.skip, 0U);
        const auto nic = expect(open_nic());
        const auto registers = [&](std::uint64_t offset, std::uint64_t length) {
            return core_of(*nic)
                ->register_dmabuf({hostile.passed[0].get(), offset, device_address(0x10000), length})
                .has_value();
        };
        EXPECT_TRUE(registers(0, 4096));
        EXPECT_FALSE(registers(0, 8192));
        EXPECT_FALSE(registers(4096, 4096));

        auto slab = expect(shared_memory::make("slab", 8192));
        const int descriptor[] = {slab.descriptor()};
        EXPECT_EQ(hostile.failure_of(attach_slab_request{8192}, descriptor), 0U);
        for (const std::uint32_t to_slab : {0U, 1U})
            for (const std::uint64_t offset : {0ULL, 4095ULL, 4097ULL, 8192ULL, ~0ULL - 4095})
                EXPECT_EQ(hostile.failure_of(copy_request{lease, to_slab, offset, 4096, 0}),
                          static_cast<std::uint32_t>(errc::range_leaves_allocation) + 1)
                    << offset;
        EXPECT_EQ(hostile.failure_of(copy_request{lease, 1, 4096, 4096, 0}), 0U);
        return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(importer.wait(), 0);
}

// An importer that ignores the revocation: each request fails at the owner, for the old lease, the
// old handle, and a new connection.
// One that has asked for the device's context before has the whole device: docs/security.md.
TEST_F(ipc_test, a_hostile_importer_without_a_context_gets_nothing_after_a_free) {
    const auto own = expect(open_device(by_index{0}));
    auto engine = expect(own->copies());
    for (const bool frees : {false, true}) {
        auto buffer = expect(own->heap().allocate(mebibyte));
        const auto address = buffer.address();
        const auto handle = expect(share(buffer));
        gate opened, taken_back;
        child importer([&] {
            const auto code = [](errc which) { return static_cast<std::uint32_t>(which) + 1; };
            raw_client hostile(handle);
            const auto lease = hostile.ask(open_lease_request{hostile.handle()}).lease;
            auto slab = expect(shared_memory::make("slab", 4096));
            const int descriptor[] = {slab.descriptor()};
            EXPECT_EQ(hostile.failure_of(attach_slab_request{4096}, descriptor), 0U);
            for (const std::uint32_t to_slab : {0U, 1U})
                EXPECT_EQ(hostile.failure_of(copy_request{lease, to_slab, 0, 4096, 0}), 0U);
            std::fill(slab.bytes().begin(), slab.bytes().end(), std::byte{0x5a});
            opened.open();
            if (!taken_back.wait())
                return 2;
            for (const std::uint32_t to_slab : {0U, 1U})
                EXPECT_EQ(hostile.failure_of(copy_request{lease, to_slab, 0, 4096, 0}),
                          code(errc::lease_revoked));
            EXPECT_EQ(hostile.failure_of(open_dmabuf_request{lease}), code(errc::handle_stale));
            EXPECT_EQ(hostile.failure_of(open_context_request{lease}), code(errc::handle_stale));
            raw_client anew(handle);
            for (auto* each : {&hostile, &anew})
                EXPECT_EQ(each->failure_of(open_lease_request{each->handle()}), code(errc::handle_stale));
            for (const auto byte : slab.bytes())
                EXPECT_EQ(byte, std::byte{0x5a});
            return ::testing::Test::HasFailure() ? 1 : 0;
        });
        ASSERT_TRUE(opened.wait());
        if (frees) {
            buffer = {};
            buffer = expect(own->heap().allocate(mebibyte));
            EXPECT_EQ(buffer.address(), address) << "handed out again";
        } else {
            expect(revoke_leases(address));
        }
        const auto mine = pattern(mebibyte, 9);
        expect(expect(engine.write(address, mine)).wait());
        taken_back.open();
        EXPECT_EQ(importer.wait(), 0);
        std::vector<std::byte> seen(mebibyte);
        expect(expect(engine.read(seen, address)).wait());
        EXPECT_TRUE(seen == mine);
    }
}

// The owner cannot revoke a DMA-BUF that a process keeps open, so the heap does not reuse its pages.
TEST_F(ipc_test, memory_that_a_hostile_importer_keeps_is_not_handed_out_again) {
    const auto own = expect(open_device(by_index{0}));
    auto buffer = expect(own->heap().allocate(mebibyte));
    const auto address = buffer.address();
    const auto handle = expect(share(buffer));
    gate opened, done;
    child importer([&] {
        raw_client hostile(handle);
        (void)hostile.ask(open_dmabuf_request{hostile.ask(open_lease_request{hostile.handle()}).lease});
        opened.open();
        return done.wait() && !::testing::Test::HasFailure() ? 0 : 1;
    });
    ASSERT_TRUE(opened.wait());
    buffer = {};
    EXPECT_EQ(own->heap().statistics().abandoned, mebibyte);
    EXPECT_NE(expect(own->heap().allocate(mebibyte)).address(), address);
    done.open();
    EXPECT_EQ(importer.wait(), 0);
}

TEST_F(ipc_test, a_client_that_never_reads_is_disconnected) {
    owner other;
    const auto handle = other.share(4096, 1);
    auto imported = expect(import_memory(handle, {copy_path::owner_proxy}));
    std::vector<std::byte> seen(4096);
    expect(expect(imported.read(seen)).wait());
    const auto descriptors = other.descriptors();
    raw_client deaf(handle);
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    unsigned asked = 0;
    for (bool connected = true; connected && std::chrono::steady_clock::now() < enough;) {
        asked += deaf.open_lease() ? 1U : 0U;
        if (asked % 64 == 0) {
            expect(expect(imported.read(seen)).wait());
            ASSERT_EQ(seen, pattern(4096, 1)) << "the others are served meanwhile";
            connected = other.descriptors() > descriptors;
        }
    }
    EXPECT_TRUE(soon_true([&] { return other.descriptors() <= descriptors; })) << asked << " requests";
    EXPECT_TRUE(soon_true([&] { return other.leases(0) == 1; })) << "its leases have ended with it";
}

TEST_F(ipc_test, a_flood_of_requests_does_not_keep_others_out) {
    owner other;
    const auto handle = other.share(4096, 1);
    gate begun;
    child flood([&] {
        raw_client eager(handle);
        for (unsigned asked = 0;; ++asked) {
            while (eager.open_lease())
                ;
            while (eager.answer(milliseconds(0)))
                ;
            if (asked == 100)
                begun.open();
        }
        return 0;
    });
    ASSERT_TRUE(begun.wait());
    std::vector<std::byte> seen(4096);
    for (int round = 0; round < 20; ++round) {
        auto imported = expect(import_memory(handle, {copy_path::owner_proxy}));
        expect(expect(imported.read(seen)).wait());
        ASSERT_EQ(seen, pattern(4096, 1));
    }
    flood.kill_it();
    (void)flood.wait();
    EXPECT_TRUE(soon_true([&] { return other.leases(0) <= 1; }));
}

TEST_F(ipc_test, one_process_cannot_take_every_place) {
    owner other;
    const auto handle = other.share(4096, 1);
    const auto descriptors = other.descriptors();
    {
        std::vector<std::unique_ptr<raw_client>> all;
        unsigned served = 0, refused = 0;
        for (int i = 0; i < 100; ++i) {
            all.push_back(std::make_unique<raw_client>(handle));
            (void)all.back()->open_lease();
            const auto reply = all.back()->answer(std::chrono::seconds(30));
            ASSERT_TRUE(reply) << i;
            if (reply->failed == 0)
                ++served;
            else
                refused += reply->failed == static_cast<std::uint32_t>(errc::leases_exhausted) + 1 ? 1U : 0U;
        }
        EXPECT_EQ(served, 64U);
        EXPECT_EQ(refused, 36U);
        EXPECT_EQ(import_from(handle, copy_path::owner_proxy, [] { return true; }), 0)
            << "another process is served";
    }
    EXPECT_TRUE(soon_true([&] { return other.descriptors() == descriptors && other.leases(0) == 0; }));
}

TEST_F(ipc_test, another_user_is_refused_unless_allowed) {
    if (::geteuid() != 0)
        GTEST_SKIP() << "needs root to become another user";
    constexpr uid_t other_uid = 65533;
    const auto become = [] { return ::setresuid(other_uid, other_uid, other_uid) == 0; };
    {
        owner other;
        EXPECT_EQ(import_from(other.share(4096, 1), copy_path::owner_proxy, become),
                  refused_with(errc::peer_refused));
        EXPECT_EQ(other.leases(0), 0U);
    }
    ipc_settings open;
    open.allow = {other_uid};
    owner other(0, open);
    const auto handle = other.share(4096, 1);
    EXPECT_EQ(import_from(handle, copy_path::owner_proxy, become), 0);
    EXPECT_EQ(import_from(handle, copy_path::owner_context, become), refused_with(errc::not_granted))
        << "its device's descriptor is not for others";
}

TEST_F(ipc_test, an_offered_device_is_for_its_own_user_alone) {
    if (::geteuid() != 0)
        GTEST_SKIP() << "needs root to become another user";
    constexpr uid_t other_uid = 65533;
    ipc_settings open;
    open.allow = {other_uid};
    set_ipc(open);
    const auto opened_device = expect(open_device());
    ASSERT_TRUE(offer_device(*opened_device));
    const auto node = core_of(*opened_device)->node();
    const auto name = device_name(node);
    child guest([&] {
        if (::setresuid(other_uid, other_uid, other_uid) != 0)
            return 77;
        const auto socket = expect(connect_to(name));
        const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        expect(send_message(socket.get(), request_message(1, open_device_request{node}), {}, soon));
        std::array<std::byte, longest_answer> bytes;
        expect(receive_message(socket.get(), bytes, soon));
        const auto reply = read_as<answer_head>(std::span(bytes).first(sizeof(answer_head))).value();
        return reply.failed == static_cast<std::uint32_t>(errc::peer_refused) + 1 ? 0 : 2;
    });
    EXPECT_EQ(guest.wait(), 0);
}

class elsewhere : public ipc_test, public ::testing::WithParamInterface<copy_path> {};
INSTANTIATE_TEST_SUITE_P(by, elsewhere,
                         ::testing::Values(copy_path::owner_context, copy_path::nic_loopback,
                                           copy_path::owner_proxy),
                         word_for);

TEST_P(elsewhere, another_pid_namespace_is_served_by_the_socket) {
    owner other;
    const auto handle = other.share(4096, 1);
    const int status = import_from(handle, GetParam(), [] {
        if (::unshare(CLONE_NEWPID) != 0)
            return false;
        const pid_t inside = ::fork(); // unshare() moves only later children into the new namespace
        if (inside == 0)
            return true;
        int ended = 0;
        ::waitpid(inside, &ended, 0);
        ::_exit(WIFEXITED(ended) ? WEXITSTATUS(ended) : 1);
    });
    if (status == 77)
        GTEST_SKIP() << "no pid namespaces here";
    EXPECT_EQ(status, 0);
}

TEST_P(elsewhere, pidfd_getfd_is_not_needed) {
    owner other;
    EXPECT_EQ(import_from(
                  other.share(4096, 1), GetParam(),
                  [] { return forbid(SCMP_SYS(pidfd_getfd), EPERM) && forbid(SCMP_SYS(pidfd_open), EPERM); }),
              0);
}

TEST_P(elsewhere, descriptors_that_cannot_be_sent_are_fetched) {
    owner other;
    ASSERT_TRUE(other.cannot_pass_descriptors());
    const auto handle = other.share(4096, 1);
    EXPECT_EQ(import_from(handle, GetParam(), [] { return true; }), 0);
    EXPECT_EQ(import_from(handle, GetParam(), [] { return forbid(SCMP_SYS(pidfd_getfd), EPERM); }),
              refused_with(errc::peer_refused));
}

TEST_F(ipc_test, another_network_namespace_is_refused_with_the_reason) {
    owner other;
    const int status = import_from(other.share(4096, 1), copy_path::owner_proxy,
                                   [] { return ::unshare(CLONE_NEWNET) == 0; });
    if (status == 77)
        GTEST_SKIP() << "no network namespaces here";
    EXPECT_EQ(status, refused_with(errc::peer_gone));
}

TEST_F(ipc_test, settings_of_the_environment) {
    const auto with = [](const char* give, const char* allow) {
        ::setenv("GAUDI_DIRECT_IPC_GIVE", give, 1);
        ::setenv("GAUDI_DIRECT_IPC_ALLOW", allow, 1);
        auto read = ipc_of_environment();
        ::unsetenv("GAUDI_DIRECT_IPC_GIVE");
        ::unsetenv("GAUDI_DIRECT_IPC_ALLOW");
        return read;
    };
    EXPECT_EQ(with("", "")->give, ipc_give::context);
    EXPECT_EQ(with("dmabuf", "")->give, ipc_give::dmabuf);
    EXPECT_EQ(with("nothing", "0,1000")->allow, (std::vector<std::uint32_t>{0, 1000}));
    for (const auto& [give, allow] : {std::pair("all", ""), std::pair("", "root"), std::pair("", "1;2"),
                                      std::pair("", "-1"), std::pair("", "99999999999")}) {
        const auto refused = with(give, allow);
        ASSERT_FALSE(refused) << give << allow;
        EXPECT_EQ(refused.error().code(), errc::setting_malformed);
        EXPECT_NE(refused.error().observed().find("GAUDI_DIRECT_IPC_"), std::string::npos);
    }
}

} // namespace
