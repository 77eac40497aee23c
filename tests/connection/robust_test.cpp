// SPDX-License-Identifier: BSD-3-Clause
// Peers that fail, violate the protocol or disappear; failing calls; many connections.
#include "src/os/internals.hpp"
#include "tests/rdma/rdma_test.hpp"
#include "tests/support/child.hpp"
#include "tests/support/hlthunk_functions.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

extern "C" {
int gaudi_lab_hca_arm_faults(const char* script);
unsigned long gaudi_lab_hca_faults_fired(void);
}

namespace {

using namespace testing_support;

#ifdef __SANITIZE_THREAD__
constexpr auto answer_timeout = milliseconds(60000);
#else
constexpr auto answer_timeout = milliseconds(10000);
#endif

class robust_rdma : public rdma_test {
protected:
    // Connects, transfers and disconnects; false if a call failed and its error was reported.
    bool whole_life(memory_path path) {
        bool right_data = false;
        try {
            connection_options quick;
            quick.deadline = milliseconds(10000);
            make_pair(path, path, 3 << 20, quick);
            const auto data = pattern(3 << 20, 1);
            left.put(data);
            expect(right.link->offer(right.region, remote_access::all));
            const auto remote = expect(left.link->take_offer(milliseconds(10000)));
            const auto deadline = std::chrono::steady_clock::now() + answer_timeout;
            const auto finish_in_time = [&](auto&... transfers) {
                while (!(transfers.done() && ...) && std::chrono::steady_clock::now() < deadline) {
                    left.link->poll();
                    right.link->poll();
                }
                EXPECT_TRUE((transfers.done() && ...)) << "something hangs";
                (expect(transfers.wait(milliseconds(0))), ...);
            };
            auto into = expect(right.link->receive(right.region));
            auto out = expect(left.link->send(left.region));
            finish_in_time(into, out);
            auto back = expect(left.link->read(left.region, remote));
            finish_in_time(back);
            right_data = right.get() == data;
            EXPECT_TRUE(right_data);
        } catch (const std::runtime_error&) { // expect() throws if the result is an error
        }
        for (auto* each : {&left, &right})
            *each = {};
        return right_data;
    }

    template <typename Arm, typename Fired>
    unsigned fail_each(memory_path path, Arm&& arm, Fired&& fired) {
        EXPECT_TRUE(whole_life(path));
        const auto descriptors = open_descriptors();
        // The staged path makes hundreds of calls, and each run takes 0.1 s.
        const char* text = std::getenv("GAUDI_TEST_STRIDE");
        unsigned stride = path == memory_path::staged ? 17 : 1;
        if (text != nullptr)
            stride = static_cast<unsigned>(std::atoi(text));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        stride *= 5;
#endif
        // Polls count as calls: on a slow machine their number has no bound that is worth testing.
        constexpr unsigned enough = 700;
        unsigned n = 1;
        for (; n < enough; n += stride) {
            SCOPED_TRACE(fmt::format("call {}", n));
            EXPECT_EQ(arm(fmt::format("* {} errno EIO", n).c_str()), 0);
            (void)whole_life(path);
            const auto struck = fired();
            arm("");
            EXPECT_EQ(open_descriptors(), descriptors);
            if (struck == 0)
                return n - 1;
            if (HasFailure())
                return 0;
        }
        return n;
    }
};

TEST_F(robust_rdma, every_verb_may_fail_zero_copy) {
    EXPECT_GT(fail_each(memory_path::zero_copy, gaudi_lab_hca_arm_faults, gaudi_lab_hca_faults_fired), 40U);
    EXPECT_TRUE(whole_life(memory_path::zero_copy));
}

TEST_F(robust_rdma, every_verb_may_fail_staged) {
    EXPECT_GT(fail_each(memory_path::staged, gaudi_lab_hca_arm_faults, gaudi_lab_hca_faults_fired), 40U);
    EXPECT_TRUE(whole_life(memory_path::staged));
}

TEST_F(robust_rdma, every_driver_call_may_fail) {
    EXPECT_GT(fail_each(memory_path::zero_copy, gaudi_lab_arm_faults, gaudi_lab_faults_fired), 20U);
    EXPECT_TRUE(whole_life(memory_path::zero_copy));
}

TEST_F(robust_rdma, every_driver_call_may_fail_staged) {
    EXPECT_GT(fail_each(memory_path::staged, gaudi_lab_arm_faults, gaudi_lab_faults_fired), 20U);
    EXPECT_TRUE(whole_life(memory_path::staged));
}

TEST_F(robust_rdma, connections_come_and_go_without_a_trace) {
    const char* text = std::getenv("GAUDI_TEST_CYCLES");
    const int cycles = text != nullptr ? std::atoi(text) : 200;
    equip(left, 0, memory_path::host, 4096);
    equip(right, 1, memory_path::host, 4096);
    const auto cycle = [&] {
        connect_both();
        auto into = expect(right.link->receive(right.region));
        auto out = expect(left.link->send(left.region));
        finish_all(into, out);
        expect(into.wait(soon));
        left.link.reset();
        right.link.reset();
    };
    for (int i = 0; i < 20; ++i)
        cycle();
    const auto descriptors = open_descriptors(), mapped = mapped_regions();
    const auto stored = stored_bytes(lab());
    for (int i = 0; i < cycles; ++i)
        cycle();
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_LE(mapped_regions(), mapped + 64); // libc caches thread stacks; sanitizers map memory too
    EXPECT_LE(stored_bytes(lab()), stored + 65536);
}

// A raw TCP client that sends arbitrary bytes to the listener.
class liar {
public:
    explicit liar(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    }
    ~liar() { ::close(fd_); }
    liar(const liar&) = delete;
    liar& operator=(const liar&) = delete;
    void say(const std::string& words) const {
        EXPECT_EQ(::send(fd_, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    }

private:
    int fd_;
};

TEST_F(robust_rdma, greetings_are_checked_before_they_are_believed) {
    equip(right, 1, memory_path::host, 4096);
    const auto door = expect(listener::open(0, "127.0.0.1"));
    connection_options quick;
    quick.deadline = milliseconds(300);
    const auto answer_to = [&](const std::string& words) {
        const liar peer(door.port());
        peer.say(words);
        const auto met = door.accept(right.nic, soon, quick);
        EXPECT_FALSE(met);
        return met ? std::string() : met.error().message();
    };
    const auto expect_words = [&](const std::string& said, const char* words) {
        const auto text = answer_to(said);
        EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    const std::string magic = "gaudirdm", version("\0\2", 2), length("\0\x60", 2);
    expect_words("GET / HTTP/1.0\r\n\r\n", "its first bytes are not a gaudi-direct handshake");
    expect_words(magic + std::string("\0\7", 2) + "??", "has protocol version 7, this side 2");
    expect_words(magic + version + std::string("\0\4", 2) + std::string(84, '\0'), "4 bytes instead of 96");
    expect_words(magic + version + length + std::string(84, '\2'), "the other byte order");
    expect_words(magic + version + length + "\1" + std::string(83, '\0'), "MTU code 0");
    expect_words(magic + version + length + "\1" + std::string(83, '\xff'), "MTU code 255");
    expect_words(magic + version + length, "sent 0 of 84 bytes");
    expect_words(magic.substr(0, 3), "sent 3 of 12 bytes");
    expect_words("", "sent 0 of 12 bytes");
    EXPECT_EQ(door.accept(right.nic, milliseconds(10)).error().code(), errc::wait_timeout);
}

// labels: no_tsan
TEST_F(robust_rdma, a_peer_that_vanishes_fails_every_wait) {
    for (const auto* step : {"at once", "after a receive", "in the middle"}) {
        SCOPED_TRACE(step);
        const auto door = expect(listener::open(0, "127.0.0.1"));
        child other([&, step = std::string(step)] {
            equip(left, 0, memory_path::zero_copy, 64 << 20);
            left.link.emplace(expect(connect(left.nic, fmt::format("127.0.0.1:{}", door.port()))));
            std::vector<transfer> pending;
            if (step == "after a receive")
                pending.push_back(expect(left.link->receive(left.region)));
            for (int i = 0; step == "in the middle" && i < 3; ++i)
                pending.push_back(expect(left.link->send(left.region)));
            for (int i = 0; i < 100 && step != "at once"; ++i)
                left.link->poll();
            ::kill(::getpid(), SIGKILL);
            return 0;
        });
        equip(right, 1, memory_path::zero_copy, 64 << 20);
        right.link.emplace(expect(door.accept(right.nic, soon)));
        EXPECT_EQ(other.wait(), 128 + SIGKILL);
        const auto begin = std::chrono::steady_clock::now();
        bool failed = false;
        for (int i = 0; i < 10 && !failed; ++i) {
            auto begun = right.link->receive(right.region);
            failed = !begun || !begun->wait(soon);
        }
        EXPECT_TRUE(failed);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
        EXPECT_FALSE(right.link->alive());
        right = {};
    }
}

TEST_F(robust_rdma, a_pool_reuses_what_is_alive) {
    equip(left, 0, memory_path::host, 64);
    equip(right, 1, memory_path::host, 64);
    const auto door = expect(listener::open(0, "127.0.0.1"));
    const auto where = fmt::format("127.0.0.1:{}", door.port());
    std::atomic<int> accepted{0};
    std::vector<connection> others;
    std::atomic<bool> over{false};
    std::thread server([&] {
        while (!over)
            if (auto met = door.accept(right.nic, milliseconds(50))) {
                others.push_back(std::move(*met));
                ++accepted;
            }
    });
    connection_options quick;
    quick.deadline = milliseconds(2000);
    connection_pool pool(left.nic, quick);
    const void* first = nullptr;
    {
        auto taken = expect(pool.take(where));
        first = core_of(*taken);
        auto another = expect(pool.take(where));
        EXPECT_NE(core_of(*another), first);
    }
    EXPECT_EQ(pool.idle(), 2U);
    {
        auto again = expect(pool.take(where));
        EXPECT_EQ(core_of(*again), first) << "the last that came back";
        auto never = again->receive(left.region); // outstanding: the pool must not reuse this connection
    }
    EXPECT_EQ(pool.idle(), 1U);
    over = true;
    server.join();
    EXPECT_EQ(accepted, 2);
    others.clear(); // the peer disconnects
    EXPECT_EQ(pool.take(where).error().code(), errc::handshake_timeout) << "no process accepts any more";
    EXPECT_EQ(pool.idle(), 0U);
    pool.clear();
}

// labels: no_tsan
TEST_F(robust_rdma, a_child_cannot_use_a_connection_and_does_not_harm_it) {
    make_pair(memory_path::host, memory_path::host, 64);
    {
        child other([&] {
            const bool refused = left.link->send(left.region).error().code() == errc::forked;
            left.link.reset();
            left.region = {};
            left.nic.reset();
            return refused ? 0 : 1;
        });
        EXPECT_EQ(other.wait(), 0);
    }
    auto into = expect(right.link->receive(right.region));
    auto out = expect(left.link->send(left.region));
    finish_all(into, out);
    EXPECT_TRUE(into.wait(soon));
    right.link->poll();
    EXPECT_TRUE(right.link->alive());
    EXPECT_TRUE(left.link->alive());
}

TEST_F(robust_rdma, a_staged_message_survives_its_senders_goodbye) {
    for (int i = 0; i < 5; ++i) {
        make_pair(memory_path::staged, memory_path::staged, 5 << 20);
        const auto data = pattern(5 << 20, 4);
        left.put(data);
        auto into = expect(right.link->receive(right.region));
        auto out = expect(left.link->send(left.region));
        const auto deadline = std::chrono::steady_clock::now() + soon;
        while (!out.done() && std::chrono::steady_clock::now() < deadline)
            right.link->poll();
        left.link->close();
        expect(into.wait(soon));
        EXPECT_EQ(right.get(), data);
        left = {};
        right = {};
    }
}

TEST_F(robust_rdma, ipv6_and_names) {
    equip(left, 0, memory_path::host, 64);
    equip(right, 1, memory_path::host, 64);
    const auto door = expect(listener::open(0));
    for (const auto* host : {"localhost", "127.0.0.1", "[::1]"}) {
        auto accepted = std::async(std::launch::async, [&] { return door.accept(right.nic, soon); });
        const auto met = connect(left.nic, fmt::format("{}:{}", host, door.port()));
        if (std::string_view(host) == "[::1]" && !met && met.error().system_error() == EADDRNOTAVAIL)
            continue; // this machine has no IPv6
        EXPECT_TRUE(met) << host << ": " << met.error().message();
        EXPECT_TRUE(accepted.get());
    }
    for (const auto* nonsense : {"", ":1", "host:", "host:0", "host:65536", "[::1", "[::1]x", "host:1x"})
        EXPECT_EQ(connect(left.nic, nonsense).error().code(), errc::host_unknown) << nonsense;
}

// A peer must not exhaust memory with notes that the application does not receive.
TEST_F(robust_rdma, notes_that_are_never_read_end_the_connection) {
    make_pair(memory_path::host, memory_path::host, 4096);
    const std::vector<std::byte> note(64 * 1024, std::byte{7});
    std::jthread sending([&] {
        for (int i = 0; i < 2000 && left.link->send_note(note); ++i) {
        }
    });
    const auto limit = std::chrono::steady_clock::now() + soon;
    while (right.link->alive() && std::chrono::steady_clock::now() < limit)
        right.link->poll();
    const auto sent = right.link->send(right.region);
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().code(), errc::protocol_violated);
    EXPECT_NE(sent.error().message().find("that this side has not taken, more than 64 MiB"),
              std::string::npos)
        << sent.error().message();
    for (std::size_t note_number = 0; note_number < 1000; ++note_number)
        ASSERT_EQ(expect(right.link->receive_note(soon)), note) << "what came before is not lost";
    right.link.reset();
}

} // namespace
