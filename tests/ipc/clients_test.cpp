// SPDX-License-Identifier: BSD-3-Clause
// Which processes the owner's broker serves, how many, and for how long it waits for their first request.
#include "src/ipc/clients.hpp"

#include "src/os/channel.hpp"
#include "tests/ipc/ipc_test.hpp"

#include <sys/stat.h>

namespace {

using namespace testing_support;

struct clients_test : ::testing::Test {
    static constexpr auto no_time = channel_deadline{};

    // A client without a socket, of a process that does not exist.
    client& add(bool greeted, pid_t process = 0) {
        auto& added = clients.all().emplace_back(unique_fd(), ucred{0, ::geteuid(), 0});
        added.credentials.pid = process;
        added.greeted = greeted;
        return added;
    }
    struct joined_pair {
        unique_fd importer;
        client* served;
    };
    joined_pair join() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
            throw std::runtime_error("socketpair");
        return {unique_fd(ends[0]), &clients.all().emplace_back(unique_fd(ends[1]), ucred{})};
    }
    // Another process that connects and waits for one answer. It exits with the answer's error + 1, 0 if it
    // is disconnected without one; `connected` opens before.
    std::unique_ptr<child> importer_process() {
        auto process = std::make_unique<child>([&] {
            const auto socket = connect_to(name);
            connected.open();
            std::array<std::byte, longest_answer> bytes;
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            const auto got = receive_message(socket->get(), bytes, limit);
            if (!got)
                return got.error().code() == errc::peer_gone ? 0 : 255;
            return static_cast<int>(
                read_as<answer_head>(std::span(bytes).first(sizeof(answer_head)))->failed);
        });
        EXPECT_TRUE(connected.wait());
        return process;
    }
    static int refused_because(errc code) { return static_cast<int>(code) + 1; }

    const std::string name = broker_name(own_identity());
    gate connected;
    poller events = expect(poller::make());
    ipc_settings settings;
    client_list clients{events, settings};
    const unique_fd listener = expect(listen_on(name));
};

TEST_F(clients_test, of_another_process_is_served_until_disconnected_and_own_ones_never) {
    const auto own = expect(connect_to(name));
    clients.accept_from(listener.get());
    EXPECT_TRUE(clients.all().empty());
    char byte = 0;
    EXPECT_EQ(::recv(own.get(), &byte, 1, MSG_DONTWAIT), 0) << "closed";

    const auto process = importer_process();
    clients.accept_from(listener.get());
    ASSERT_EQ(clients.all().size(), 1U);
    auto& accepted = clients.all().front();
    EXPECT_EQ(accepted.credentials.pid, process->pid());
    EXPECT_FALSE(accepted.greeted);
    EXPECT_EQ(clients.find(accepted.socket.get()), &accepted);
    EXPECT_EQ(clients.find(listener.get()), nullptr);
    clients.disconnect(accepted);
    EXPECT_EQ(clients.find(accepted.socket.get()), nullptr);
    ASSERT_EQ(clients.all().size(), 1U) << "until its resources are released";
    clients.reap([](client&) { return true; });
    EXPECT_TRUE(clients.all().empty());
    EXPECT_EQ(process->wait(), 0);
}

// The poller reports the end of the process by its pidfd, where there is one, or by its socket.
TEST_F(clients_test, whose_process_ends_is_reported) {
    const auto process = importer_process();
    clients.accept_from(listener.get());
    ASSERT_EQ(clients.all().size(), 1U);
    EXPECT_TRUE(events.wait(0).empty());
    process->kill_it();
    (void)process->wait();
    const auto ready = events.wait(10000);
    ASSERT_FALSE(ready.empty());
    EXPECT_EQ(clients.find(ready[0]), &clients.all().front());
    clients.disconnect(clients.all().front());
    EXPECT_TRUE(events.wait(0).empty()) << "it is no longer watched";
    EXPECT_TRUE(clients.all().front().is_harmless());
}

TEST_F(clients_test, that_send_no_request_within_two_seconds_are_disconnected) {
    const auto now = client::clock::now();
    auto &silent = add(false), &fresh = add(false), &greeted = add(true);
    silent.since = greeted.since = now - std::chrono::seconds(3);
    fresh.since = now + std::chrono::minutes(1); // however slow this machine is
    clients.disconnect_ungreeted();
    EXPECT_TRUE(silent.disconnected);
    EXPECT_FALSE(fresh.disconnected || greeted.disconnected);
    const auto ended = silent.since;
    EXPECT_GE(ended, now) << "the time of disconnection";
    clients.disconnect(silent);
    EXPECT_EQ(silent.since, ended) << "disconnected once";
}

TEST_F(clients_test, that_have_sent_no_request_make_room_for_a_new_one) {
    auto& patient = add(true);
    auto& oldest = add(false);
    for (std::ptrdiff_t i = 2; i < client_list::most_ungreeted; ++i)
        (void)add(false);
    auto first = importer_process();
    clients.accept_from(listener.get());
    EXPECT_FALSE(oldest.disconnected) << "there was room for one";
    auto second = importer_process();
    clients.accept_from(listener.get());
    EXPECT_TRUE(oldest.disconnected);
    EXPECT_FALSE(patient.disconnected);
    EXPECT_EQ(std::count_if(clients.all().begin(), clients.all().end(),
                            [](const client& each) { return each.disconnected; }),
              1);
    clients.all().clear();
    EXPECT_EQ(first->wait(), 0);
    EXPECT_EQ(second->wait(), 0);
}

TEST_F(clients_test, beyond_the_limit_are_refused_with_the_reason) {
    for (std::size_t i = 1; i < client_list::most_clients; ++i)
        (void)add(true);
    auto served = importer_process();
    clients.accept_from(listener.get());
    ASSERT_EQ(clients.all().size(), client_list::most_clients);
    auto refused = importer_process();
    clients.accept_from(listener.get());
    EXPECT_EQ(refused->wait(), refused_because(errc::leases_exhausted));
    EXPECT_EQ(clients.all().size(), client_list::most_clients);
    clients.all().clear();
    EXPECT_EQ(served->wait(), 0);
}

TEST_F(clients_test, of_one_process_are_limited_and_disconnected_ones_count) {
    const auto count_of = [&](pid_t process) {
        return std::count_if(clients.all().begin(), clients.all().end(),
                             [&](const client& each) { return each.credentials.pid == process; });
    };
    for (const bool full : {false, true}) {
        const auto process = importer_process();
        for (auto i = full ? 0 : 1; i < client_list::most_of_one_process; ++i)
            add(true, process->pid()).disconnected = i % 2 == 0; // such a client may still have leases
        for (int i = 0; i < 2 * client_list::most_of_one_process; ++i)
            (void)add(true, ::getpid());
        clients.accept_from(listener.get());
        EXPECT_EQ(count_of(process->pid()), client_list::most_of_one_process);
        clients.all().clear();
        EXPECT_EQ(process->wait(), full ? refused_because(errc::leases_exhausted) : 0);
    }
}

TEST_F(clients_test, leave_the_list_when_disconnected_and_finished) {
    auto &stays = add(true), &held = add(true), &done = add(true);
    clients.disconnect(held);
    clients.disconnect(done);
    std::vector<const client*> asked;
    const auto* const finished = &done;
    clients.reap([&](client& each) {
        asked.push_back(&each);
        return &each == finished;
    });
    EXPECT_EQ(asked, (std::vector<const client*>{&held, finished})) << "a connected one is not asked about";
    ASSERT_EQ(clients.all().size(), 2U);
    EXPECT_EQ(&clients.all().front(), &stays);
    EXPECT_EQ(&clients.all().back(), &held);
}

TEST_F(clients_test, that_do_not_read_break_and_lose_no_answer_before) {
    const auto joined = join();
    auto* const served = joined.served;
    answer_head head;
    std::uint64_t sent = 0;
    for (bool room = true; room && sent < 1000000;) {
        head.id = sent;
        room = served->send(head, nothing_more{});
        sent += room ? 1U : 0U;
    }
    const int descriptor[] = {listener.get()};
    EXPECT_FALSE(served->send(head, nothing_more{}, descriptor)) << "the socket is full";
    for (std::uint64_t read = 0; read < sent; ++read) {
        std::array<std::byte, longest_answer> bytes;
        const auto got = receive_message(joined.importer.get(), bytes, no_time);
        ASSERT_TRUE(got) << read;
        ASSERT_EQ(got->bytes, sizeof(answer_head) + sizeof(nothing_more));
        ASSERT_EQ(read_as<answer_head>(std::span(bytes).first(sizeof(answer_head)))->id, read);
    }
    EXPECT_TRUE(served->send(head, nothing_more{}));
}

TEST_F(clients_test, fetch_descriptors_that_cannot_be_passed_from_where_they_are_parked) {
    const auto joined = join();
    auto* const served = joined.served;
    const auto first = expect(shared_memory::make("first", 4096)),
               second = expect(shared_memory::make("second", 4096));
    const int descriptors[] = {first.descriptor(), second.descriptor()};
    answer_head head;
    head.id = 9;
    std::thread([&] { // the filter ends with the thread
        ASSERT_TRUE(forbid(SCMP_SYS(sendmsg), ETOOMANYREFS));
        EXPECT_TRUE(served->send(head, opened_context{5}, descriptors));
    })
        .join();
    std::array<std::byte, longest_answer> bytes;
    const auto received = [&] {
        auto got = expect(receive_message(joined.importer.get(), bytes, no_time));
        return std::pair(read_as<answer_head>(std::span(bytes).first(sizeof(answer_head))).value(),
                         got.descriptors);
    };
    const auto [answer, passed] = received();
    EXPECT_EQ(passed, 0U);
    EXPECT_EQ(answer.id, 9U);
    EXPECT_EQ(answer.failed, 0U);
    ASSERT_EQ(answer.fetch, 2U);
    ASSERT_EQ(served->parked.size(), 2U);
    const auto file_of = [](int descriptor) {
        struct stat status {};
        EXPECT_EQ(::fstat(descriptor, &status), 0);
        return std::pair(status.st_dev, status.st_ino);
    };
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(answer.numbers[i], served->parked[i].get());
        EXPECT_NE(answer.numbers[i], descriptors[i]) << "the owner may close that one";
        EXPECT_EQ(file_of(answer.numbers[i]), file_of(descriptors[i]));
    }
    EXPECT_TRUE(served->send(head, opened_context{5}, descriptors));
    EXPECT_EQ(received().second, 2U);
    EXPECT_TRUE(served->parked.empty()) << "the kernel holds the later ones";
}

} // namespace
