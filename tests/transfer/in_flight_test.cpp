// SPDX-License-Identifier: BSD-3-Clause
// Copies in flight: no path blocks its caller, no owner blocks another, a full queue is no error where
// another path is viable, and what may keep a device open.
#include "src/os/unique_fd.hpp"
#include "tests/ipc/ipc_test.hpp"
#include "tests/transfer/ends.hpp"

#include <atomic>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <linux/sockios.h>
#include <poll.h>
#include <set>
#include <sys/ioctl.h>

namespace {

using namespace testing_support;

class in_flight_test : public ipc_test {
protected:
    void TearDown() override {
        ::unsetenv("GAUDI_LAB_HCA_MODE");
        ipc_test::TearDown();
    }
};

TEST_F(in_flight_test, a_copy_returns_before_it_has_ended) {
    describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
    constexpr std::size_t size = 32 * mebibyte;
    device_place one(1, size), other(0, size);
    host_place host(size);
    struct {
        copy_path path;
        copy_place &to, &from;
    } const all[] = {{copy_path::engine, one, host},         {copy_path::engine, host, one},
                     {copy_path::peer_dmabuf, one, other},   {copy_path::nic_loopback, one, other},
                     {copy_path::nic_loopback, host, other}, {copy_path::staged, one, other}};
    copier copies;
    for (const auto& each : all) {
        SCOPED_TRACE(name_of(each.path));
        bool in_flight =
            false; // the thread may lose the processor for as long as a copy takes, but not always
        for (int tries = 0; tries < 50 && !in_flight; ++tries) {
            auto ticket = expect(copies.copy(each.to.part(0, size), each.from.part(0, size), {each.path}));
            in_flight = !ticket.finished();
            expect(ticket.wait());
        }
        EXPECT_TRUE(in_flight);
    }
}

// Whether the timer of a copier's descriptor is set, as the kernel shows it.
bool any_timer_is_set() {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
        std::ifstream info(entry.path());
        for (std::string line; std::getline(info, line);)
            if (line.starts_with("it_value:") && line != "it_value: (0, 0)")
                return true;
    }
    return false;
}

// Setting a timer is a system call, which a copy must not cost while no thread sleeps.
TEST_F(in_flight_test, a_timer_is_set_only_for_a_caller_that_sleeps) {
    describe("gaudis = 2\nhcas = 1");
    ::setenv("GAUDI_LAB_HCA_MODE", "delay=50ms", 1); // the copies stay in flight
    constexpr std::size_t size = mebibyte;
    device_place to(1, size), from(0, size);
    copier copies;
    const copy_policy by_nic{copy_path::nic_loopback};
    const auto start = [&] { return expect(copies.copy(to.part(0, size), from.part(0, size), by_nic)); };
    expect(start().wait());
    pollfd sleeper{expect(copies.event_fd()), POLLIN, 0};
    auto first = start();
    EXPECT_FALSE(any_timer_is_set());
    copies.arm();
    EXPECT_TRUE(any_timer_is_set() || ::poll(&sleeper, 1, 0) == 1) << "it may have expired";
    expect(first.wait());
    copies.arm(); // nothing is in flight
    EXPECT_FALSE(any_timer_is_set());
    auto second = start(); // perhaps by another thread than the one that sleeps
    EXPECT_TRUE(any_timer_is_set() || ::poll(&sleeper, 1, 0) == 1);
    EXPECT_EQ(::poll(&sleeper, 1, 20000), 1);
    expect(second.wait());
}

TEST_F(in_flight_test, a_large_copy_between_devices_is_spread_over_queues) {
    describe("gaudis = 2\nhcas = 0\ndmabuf_import = yes");
    constexpr std::size_t size = 64 * mebibyte;
    device_place to(1, size), from(0, size);
    from.fill(pattern(size, 1));
    auto engine = expect(to.opened_device().copies());
    const auto queues = [&] {
        std::map<std::uint32_t, std::uint64_t> bytes;
        for (const auto& queue : engine.queues())
            bytes[queue.queue] = queue.bytes;
        return bytes;
    };
    const auto before = queues();
    copier copies;
    expect(expect(copies.copy(to.part(0, size), from.part(0, size), {copy_path::peer_dmabuf})).wait());
    std::size_t used = 0;
    for (const auto& [queue, bytes] : queues())
        used += bytes > (before.contains(queue) ? before.at(queue) : 0) ? 1U : 0U;
    EXPECT_GE(used, 2U);
    EXPECT_TRUE(to.bytes() == from.bytes());
}

std::vector<int> unix_sockets() {
    std::vector<int> all;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
        const int fd = std::stoi(each.path().filename());
        int domain = 0;
        socklen_t length = sizeof(domain);
        if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX)
            all.push_back(fd);
    }
    return all;
}

// The bytes, with the kernel's overhead, that the peers of these sockets have not read yet.
int unread_bytes(const std::vector<int>& sockets) {
    int sum = 0;
    for (const int each : sockets) {
        int queued = 0;
        EXPECT_EQ(::ioctl(each, SIOCOUTQ, &queued), 0) << std::strerror(errno);
        sum += queued;
    }
    return sum;
}

// One owner does not answer the request that a copy begins with.
TEST_F(in_flight_test, a_silent_owner_holds_up_no_copy_from_another) {
    describe("gaudis = 2\nhcas = 1");
    ipc_settings patient;
    patient.answer_timeout = std::chrono::seconds(20);
    set_ipc(patient);
    owner silent(0), other(1);
    auto from_silent = expect(import_memory(silent.share(mebibyte, 1))),
         from_other = expect(import_memory(other.share(mebibyte, 2)));
    copier copies;
    silent.process().stop();
    for (const auto path : {copy_path::nic_loopback, copy_path::owner_context}) {
        SCOPED_TRACE(name_of(path));
        const auto sockets = unix_sockets(); // with those of both leases
        const int unread = unread_bytes(sockets);
        std::atomic<bool> returned = false;
        std::vector<std::byte> seen(mebibyte), late(mebibyte);
        std::thread waiting([&] {
            auto copy = copies.copy(std::span(late), place(from_silent, 0, mebibyte), {path});
            returned = true;
            expect(expect(std::move(copy)).wait());
        });
        EXPECT_TRUE(soon_true([&] { return unread_bytes(sockets) > unread; }))
            << "the silent owner was sent no request";
        expect(expect(copies.copy(std::span(seen), place(from_other, 0, mebibyte), {path})).wait());
        EXPECT_FALSE(returned) << "it waited for the other owner";
        EXPECT_TRUE(seen == pattern(mebibyte, 2));
        silent.process().go_on();
        waiting.join();
        EXPECT_TRUE(late == pattern(mebibyte, 1));
        silent.process().stop();
    }
    silent.process().go_on();
}

// The NIC completes late, so that its queue fills up.
TEST_F(in_flight_test, a_full_queue_of_a_nic_is_left_for_another_path) {
    describe("gaudis = 2\nhcas = 1");
    ::setenv("GAUDI_LAB_HCA_MODE", "delay=500ms", 1);
    device_place to(1, 4096), from(0, 4096);
    from.fill(pattern(4096, 4));
    copier copies;
    std::vector<copy_ticket> tickets;
    std::set<copy_path> taken;
    for (int i = 0; i < 300; ++i) {
        tickets.push_back(expect(copies.copy(to.part(0, 4096), from.part(0, 4096))));
        taken.insert(tickets.back().path());
    }
    EXPECT_EQ(taken, (std::set{copy_path::nic_loopback, copy_path::staged}));
    for (auto& each : tickets)
        expect(each.wait());
    EXPECT_TRUE(to.bytes() == from.bytes());
}

TEST_F(in_flight_test, a_full_queue_of_the_only_path_has_room_later) {
    describe("gaudis = 1\ngeneration = gaudi3\nhcas = 1");
    ::setenv("GAUDI_LAB_HCA_MODE", "delay=500ms", 1);
    const auto opened = expect(open_device(by_index{0}));
    const auto buffer = expect(opened->heap().allocate(128 * 1024));
    copier copies;
    auto sent = pattern(128 * 1024, 5);
    std::vector<copy_ticket> tickets;
    std::optional<error> full;
    for (int i = 0; i < 300 && !full; ++i) {
        auto ticket = copies.copy(buffer, std::span(sent));
        if (ticket)
            tickets.push_back(std::move(*ticket));
        else
            full = ticket.error();
    }
    ASSERT_TRUE(full);
    EXPECT_EQ(full->code(), errc::too_many_operations) << full->message();
    EXPECT_EQ(full->kind(), error_kind::exhausted);
    for (auto& each : tickets)
        expect(each.wait());
    expect(expect(copies.copy(buffer, std::span(sent))).wait());
    std::vector<std::byte> back(sent.size());
    expect(expect(copies.copy(std::span(back), buffer)).wait());
    EXPECT_TRUE(back == sent);
}

// The caller has dropped its devices and kept buffers of them.
TEST_F(in_flight_test, buffers_alone_are_places) {
    describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
    const auto from = expect(expect(open_device(by_index{0}))->heap().allocate(mebibyte)),
               to = expect(expect(open_device(by_index{1}))->heap().allocate(mebibyte));
    unsigned seed = 0;
    for (const auto across : {copy_path::peer_dmabuf, copy_path::nic_loopback, copy_path::staged})
        for (const auto with_host : {copy_path::engine, copy_path::nic_loopback})
            for (int times = 0; times < 2; ++times) {
                SCOPED_TRACE(fmt::format("{}, {}", name_of(across), name_of(with_host)));
                copier copies;
                auto sent = pattern(mebibyte, ++seed);
                std::vector<std::byte> back(mebibyte);
                expect(expect(copies.copy(from, std::span(sent), {with_host})).wait());
                expect(expect(copies.copy(to, from, {across})).wait());
                expect(expect(copies.copy(std::span(back), to, {with_host})).wait());
                EXPECT_TRUE(back == sent);
            }
}

TEST_F(in_flight_test, descriptors_that_are_no_dmabuf_are_refused) {
    for (const auto* import : {"yes", "no"}) {
        describe(fmt::format("gaudis = 2\nhcas = 1\ndmabuf_import = {}", import));
        SCOPED_TRACE(import);
        device_place on_device(1, 8192);
        foreign_place good(expect(open_device(by_index{0})), 8192);
        host_place host(8192);
        const unique_fd file(::open("/dev/zero", O_RDWR | O_CLOEXEC));
        copier copies;
        for (copy_place* other : {static_cast<copy_place*>(&host), static_cast<copy_place*>(&on_device)}) {
            const auto is_copied = [&] {
                return copies.copy(other->part(0, 8192), good.part(0, 8192)).value().wait().has_value();
            };
            EXPECT_TRUE(is_copied());
            EXPECT_FALSE(copies.copy(other->part(0, 8192), place(dmabuf_export{-1, 0, {}, 8192})));
            const auto held = open_descriptors(); // with what every path keeps
            for (const int fd : {-1, file.get()})
                for (const bool reads : {false, true}) {
                    const place bad(dmabuf_export{fd, 0, {}, 8192}), fine = other->part(0, 8192);
                    const auto refused = reads ? copies.copy(fine, bad) : copies.copy(bad, fine);
                    ASSERT_FALSE(refused);
                    EXPECT_NE(refused.error().message().find(std::strerror(fd < 0 ? EBADF : EINVAL)),
                              std::string::npos)
                        << refused.error().message();
                }
            const auto beyond = copies.copy(other->part(0, 8192), good.part(std::uint64_t{1} << 40, 8192));
            ASSERT_FALSE(beyond);
            EXPECT_EQ(open_descriptors(), held);
            EXPECT_TRUE(is_copied());
        }
    }
}

} // namespace
