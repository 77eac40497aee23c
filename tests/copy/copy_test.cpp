// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: verification
#include <gaudi/gaudi.hpp>

#include "tests/support/child.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"

#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace gaudi;
using namespace testing_support;

std::vector<std::byte> noise(std::size_t size, unsigned seed = 1) {
    std::vector<std::byte> bytes(size);
    std::uint64_t word = 0x9e3779b97f4a7c15 + seed;
    for (auto& byte : bytes) {
        word = word * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<std::byte>(word >> 56);
    }
    return bytes;
}

class copy_test : public test_lab {
protected:
    void open(const copy_options& options = {}) {
        auto opened = open_device(by_index{0});
        ASSERT_TRUE(opened) << opened.error().message();
        device_ = *opened;
        auto made = device_->copies(options);
        ASSERT_TRUE(made) << made.error().message();
        engine_ = std::make_unique<copy_engine>(*made);
    }
    void SetUp() override { open(); }
    void TearDown() override {
        close();
        test_lab::TearDown();
    }
    void close() {
        engine_.reset();
        device_.reset();
    }
    void round_trip(std::size_t size, std::size_t offset = 0) {
        SCOPED_TRACE(fmt::format("{} bytes at offset {}", size, offset));
        auto buffer = device_->heap().allocate(size + offset);
        ASSERT_TRUE(buffer) << buffer.error().message();
        const auto sent = noise(size + offset);
        std::vector<std::byte> back(size + offset);
        const auto out = std::span(sent).subspan(offset);
        const auto in = std::span(back).subspan(offset);
        auto down = engine_->write(buffer->address() + offset, out);
        ASSERT_TRUE(down) << down.error().message();
        auto outcome = down->wait();
        ASSERT_TRUE(outcome) << outcome.error().message();
        auto up = engine_->read(in, buffer->address() + offset);
        ASSERT_TRUE(up) << up.error().message();
        outcome = up->wait();
        ASSERT_TRUE(outcome) << outcome.error().message();
        EXPECT_TRUE(std::equal(out.begin(), out.end(), in.begin()));
    }

    std::shared_ptr<device> device_;
    std::unique_ptr<copy_engine> engine_;
};

TEST_F(copy_test, any_size_and_alignment) {
    for (const std::size_t size : {1UL, 7UL, 8UL, 63UL, 4095UL, 4096UL, 16384UL, 16385UL, 100001UL, 1UL << 20,
                                   (8UL << 20) + 3, 33UL << 20})
        for (const std::size_t offset : {0UL, 1UL, 4093UL})
            round_trip(size, offset);
}

TEST_F(copy_test, fresh_memory_is_not_zero) {
    auto buffer = *device_->heap().allocate(4096);
    std::vector<std::byte> back(4096);
    ASSERT_TRUE(engine_->read(back, buffer.address())->wait());
    EXPECT_NE(back, std::vector<std::byte>(4096)) << "a program that relies on zeros must fail here";
}

TEST_F(copy_test, within_the_device) {
    for (const std::size_t size : {8UL, 5000UL, 20UL << 20}) {
        auto from = *device_->heap().allocate(size), to = *device_->heap().allocate(size);
        const auto sent = noise(size);
        std::vector<std::byte> back(size);
        ASSERT_TRUE(engine_->write(from.address(), sent)->wait());
        auto ticket = engine_->copy(to.address(), from.address(), size);
        ASSERT_TRUE(ticket && ticket->wait());
        ASSERT_TRUE(engine_->read(back, to.address())->wait());
        EXPECT_EQ(back, sent);
    }
}

TEST_F(copy_test, pinned_memory_needs_no_preparation) {
    auto buffer = *device_->heap().allocate(1 << 20);
    auto memory = noise(1 << 20);
    const auto before = engine_->statistics();
    auto pinned = engine_->pin(memory);
    ASSERT_TRUE(pinned) << pinned.error().message();
    ASSERT_TRUE(engine_->write(buffer.address(), std::span(memory).subspan(100, 50000))->wait());
    EXPECT_EQ(engine_->statistics().pinned, before.pinned + 1);
    EXPECT_EQ(engine_->statistics().mapped, before.mapped);
    pinned = tl::unexpected(error(errc::size_zero, ""));
    ASSERT_TRUE(engine_->write(buffer.address(), std::span(memory).subspan(100, 50000))->wait());
    EXPECT_EQ(engine_->statistics().mapped, before.mapped + 1) << "no longer pinned";
}

TEST_F(copy_test, a_read_only_source_works_and_a_wild_one_is_an_error) {
    const std::size_t size = 1 << 20;
    auto buffer = *device_->heap().allocate(size);
    auto* memory = static_cast<std::byte*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto sent = noise(size);
    std::memcpy(memory, sent.data(), size);
    ::mprotect(memory, size, PROT_READ);
    auto ticket = engine_->write(buffer.address(), {memory, size});
    ASSERT_TRUE(ticket) << ticket.error().message();
    ASSERT_TRUE(ticket->wait());
    std::vector<std::byte> back(size);
    ASSERT_TRUE(engine_->read(back, buffer.address())->wait());
    EXPECT_EQ(back, sent);
    EXPECT_EQ(engine_->read({memory, size}, buffer.address()).error().code(), errc::host_range_invalid)
        << "a destination must be writable";
    ::munmap(memory, size);
    EXPECT_EQ(engine_->write(buffer.address(), {memory, size}).error().code(), errc::host_range_invalid);
}

TEST_F(copy_test, bad_ranges_are_typed) {
    auto buffer = *device_->heap().allocate(1 << 20);
    std::vector<std::byte> data(1 << 20);
    EXPECT_EQ(engine_->write(buffer.address() + 1, data).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(engine_->write(device_address(4096), data).error().code(), errc::not_allocated);
    EXPECT_EQ(engine_->write(buffer.address(), {}).error().code(), errc::size_zero);
    EXPECT_EQ(engine_->read({}, buffer.address()).error().code(), errc::size_zero);
    EXPECT_EQ(engine_->copy(buffer.address(), buffer.address() + 100, 200).error().code(),
              errc::ranges_overlap);
    EXPECT_EQ(engine_->copy(buffer.address(), buffer.address() + 4096, 0).error().code(), errc::size_zero);
    const auto address = buffer.address();
    buffer = {};
    EXPECT_EQ(engine_->write(address, data).error().code(), errc::not_allocated) << "freed";
    auto second = *open_device(by_index{1});
    auto foreign = *second->heap().allocate(4096), own = *device_->heap().allocate(4096);
    EXPECT_EQ(engine_->copy(own.address(), foreign.address(), 4096).error().code(), errc::wrong_device);
    std::array<std::byte, 64> few{};
    EXPECT_EQ(engine_->write(foreign.address(), few).error().code(), errc::wrong_device)
        << "another device's";
    EXPECT_EQ(engine_->read(few, foreign.address()).error().code(), errc::wrong_device);
}

TEST_F(copy_test, poll_never_blocks_and_tickets_finish) {
    auto buffer = *device_->heap().allocate(64 << 20);
    const auto sent = noise(64 << 20);
    auto ticket = engine_->write(buffer.address(), sent);
    ASSERT_TRUE(ticket);
    const auto begin = std::chrono::steady_clock::now();
    engine_->poll();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    const auto deadline = begin + std::chrono::seconds(30);
    while (!ticket->done() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
    EXPECT_TRUE(ticket->done());
    EXPECT_TRUE(ticket->wait());
}

TEST_F(copy_test, wait_has_a_limit) {
    auto buffer = *device_->heap().allocate(4096);
    std::array<std::byte, 4096> data{};
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_wait_for_cs every short"), 0);
    auto ticket = engine_->write(buffer.address(), data);
    const auto outcome = ticket->wait(std::chrono::milliseconds(50));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::copy_timeout);
    gaudi_lab_arm_faults("");
    EXPECT_TRUE(ticket->wait()) << "the copy went on";
}

TEST_F(copy_test, the_event_descriptor_wakes_a_sleeper) {
    const auto event = engine_->event_fd();
    ASSERT_TRUE(event);
    auto buffer = *device_->heap().allocate(32 << 20);
    const auto sent = noise(32 << 20);
    for (int round = 0; round < 3; ++round) {
        auto ticket = engine_->write(buffer.address(), sent);
        ASSERT_TRUE(ticket);
        pollfd waited{*event, POLLIN, 0};
        ASSERT_EQ(::poll(&waited, 1, 30000), 1) << "no thread called poll() on the engine";
        std::uint64_t count = 0;
        ASSERT_EQ(::read(*event, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
        EXPECT_TRUE(ticket->done());
    }
}

TEST_F(copy_test, the_event_descriptor_reports_failures_too) {
    const auto event = *engine_->event_fd();
    auto buffer = *device_->heap().allocate(4096);
    std::array<std::byte, 4096> data{};
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_command_submission 1 errno ENOMEM"), 0);
    auto ticket = engine_->write(buffer.address(), data);
    ASSERT_TRUE(ticket);
    pollfd waited{event, POLLIN, 0};
    EXPECT_EQ(::poll(&waited, 1, 10000), 1) << "a sleeper would sleep for ever";
    const auto outcome = ticket->wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::copy_refused);
}

TEST_F(copy_test, an_armed_event_descriptor_fires_once) {
    const auto event = *engine_->event_fd(event_when::armed);
    auto buffer = *device_->heap().allocate(4 << 20);
    const auto sent = noise(4 << 20);
    const auto readable = [event](int limit_ms) {
        pollfd waited{event, POLLIN, 0};
        if (::poll(&waited, 1, limit_ms) != 1)
            return false;
        std::uint64_t count = 0;
        EXPECT_EQ(::read(event, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
        return true;
    };
    for (int round = 0; round < 3; ++round) {
        EXPECT_TRUE(engine_->write(buffer.address(), sent)->wait());
        EXPECT_FALSE(readable(20)) << "not armed";
        auto before = engine_->write(buffer.address(), sent); // armed while this copy is in flight
        engine_->arm();
        EXPECT_TRUE(readable(30000)) << "no thread called poll() on the engine";
        EXPECT_TRUE(before->done());
        engine_->arm();
        auto after = engine_->write(buffer.address(), sent);
        EXPECT_TRUE(readable(30000));
        EXPECT_TRUE(after->done());
    }
    ASSERT_TRUE(engine_->event_fd()); // now the descriptor reports every completion
    for (int round = 0; round < 2; ++round) {
        EXPECT_TRUE(engine_->write(buffer.address(), sent)->wait());
        EXPECT_TRUE(readable(30000));
    }
}

TEST_F(copy_test, a_child_may_end_with_an_engine_at_work) {
    ASSERT_TRUE(engine_->event_fd());
    child forked([&] {
        engine_.reset();
        device_.reset();
        return 0;
    });
    EXPECT_EQ(forked.wait(), 0) << "it waits for a thread that does not exist in a child";
    auto buffer = *device_->heap().allocate(4096);
    std::array<std::byte, 4096> data{};
    EXPECT_TRUE(engine_->write(buffer.address(), data)->wait());
}

TEST_F(copy_test, small_copies_share_submissions_and_stay_below_the_limit) {
    constexpr std::size_t count = 10000, size = 4096;
    auto buffer = *device_->heap().allocate(count * size);
    auto memory = noise(count * size);
    auto pinned = *engine_->pin(memory);
    std::vector<copy_ticket> tickets;
    for (std::size_t i = 0; i < count; ++i)
        tickets.push_back(
            *engine_->write(buffer.address() + i * size, std::span(memory).subspan(i * size, size)));
    for (auto& ticket : tickets)
        ASSERT_TRUE(ticket.wait());
    const auto statistics = engine_->statistics();
    EXPECT_EQ(statistics.packets, count);
    EXPECT_LT(statistics.submissions, count / 10);
    EXPECT_LE(statistics.most_in_flight, 64U);
    std::vector<std::byte> back(count * size);
    ASSERT_TRUE(engine_->read(back, buffer.address())->wait());
    EXPECT_EQ(back, memory);
}

TEST_F(copy_test, many_large_copies_never_reach_the_drivers_limit) {
    close();
    open({.queues = 2, .stripe_bytes = 64 * 1024, .batch = 1, .eager = 1000});
    auto buffer = *device_->heap().allocate(200 << 20);
    std::vector<std::byte> memory(1 << 20);
    auto pinned = *engine_->pin(memory);
    std::vector<copy_ticket> tickets;
    for (std::size_t i = 0; i < 200; ++i)
        tickets.push_back(*engine_->write(buffer.address() + (i << 20), memory));
    for (auto& ticket : tickets)
        ASSERT_TRUE(ticket.wait());
    EXPECT_LE(engine_->statistics().most_in_flight, 64U);
    EXPECT_GT(engine_->statistics().submissions, 200U);
}

TEST_F(copy_test, dropped_tickets_are_finished_all_the_same) {
    constexpr std::size_t piece = 1 << 20, pieces = 20;
    auto buffer = *device_->heap().allocate(pieces * piece);
    const auto sent = noise(pieces * piece);
    for (std::size_t i = 0; i < pieces; ++i)
        (void)engine_->write(buffer.address() + i * piece, std::span(sent).subspan(i * piece, piece));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (engine_->statistics().completed < pieces && std::chrono::steady_clock::now() < deadline)
        engine_->poll();
    std::vector<std::byte> back(pieces * piece);
    ASSERT_TRUE(engine_->read(back, buffer.address())->wait());
    EXPECT_EQ(back, sent);
}

TEST_F(copy_test, threads) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            for (std::size_t round = 0; round < 20; ++round) {
                const std::size_t size = 1000 + round * 7919;
                auto buffer = *device_->heap().allocate(size);
                const auto sent = noise(size, i);
                std::vector<std::byte> back(size);
                EXPECT_TRUE(engine_->write(buffer.address(), sent)->wait());
                EXPECT_TRUE(engine_->read(back, buffer.address())->wait());
                EXPECT_EQ(back, sent);
            }
        });
    for (auto& thread : threads)
        thread.join();
}

// labels: full
TEST_F(copy_test, one_gibibyte) {
    round_trip(1ULL << 30);
}

// labels: full
TEST_F(copy_test, five_gibibytes_cross_the_packet_limit) {
    close();
    open({.queues = 1});
    round_trip(5ULL << 30);
    EXPECT_EQ(engine_->statistics().packets, 4U) << "two packets each way";
}

// Only counts packets: the driver refuses every submission.
TEST_F(copy_test, p23_no_packet_is_larger_than_its_size_field) {
    close();
    open({.queues = 1});
    constexpr std::uint64_t field = 1ULL << 32; // as a 32-bit size this is 0
    auto from = *device_->heap().allocate(9ULL << 30), to = *device_->heap().allocate(9ULL << 30);
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_command_submission every errno ENOMEM"), 0);
    const auto packets_of = [&](std::uint64_t size) {
        const auto before = engine_->statistics().packets;
        auto ticket = engine_->copy(to.address(), from.address(), size);
        EXPECT_TRUE(ticket && !ticket->wait());
        return engine_->statistics().packets - before;
    };
    EXPECT_EQ(packets_of(field - 4096), 1U);
    EXPECT_EQ(packets_of(field), 2U) << "in one packet it would be a copy of nothing";
    EXPECT_EQ(packets_of(field + 64), 2U);
    EXPECT_EQ(packets_of(2 * field), 3U);
    gaudi_lab_arm_faults("");
}

class other_generations : public test_lab {};

// labels: dmabuf
TEST_F(other_generations, gen1_copies_with_the_drivers_command_buffers) {
    describe("gaudis = 1\ngeneration = gaudi");
    auto opened = *open_device(by_index{0});
    auto engine = opened->copies();
    ASSERT_TRUE(engine) << engine.error().message();
    auto buffer = *opened->heap().allocate(20 << 20), other = *opened->heap().allocate(20 << 20);
    const auto sent = noise(20 << 20);
    std::vector<std::byte> back(20 << 20);
    ASSERT_TRUE(engine->write(buffer.address(), sent)->wait());
    ASSERT_TRUE(engine->copy(other.address(), buffer.address(), 20 << 20)->wait());
    ASSERT_TRUE(engine->read(back, other.address())->wait());
    EXPECT_EQ(back, sent);
}

// labels: dmabuf
TEST_F(other_generations, gaudi3_has_memory_and_exports_but_no_copies) {
    describe("gaudis = 1\ngeneration = gaudi3");
    auto opened = *open_device(by_index{0});
    auto buffer = opened->heap().allocate(1 << 20);
    ASSERT_TRUE(buffer) << buffer.error().message();
    EXPECT_TRUE(buffer->dmabuf());
    const auto engine = opened->copies();
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code(), errc::copies_absent);
    EXPECT_EQ(engine.error().observed(),
              "the driver of 0000:19:00.0 (gaudi3) offers no queue for user submissions");
}

} // namespace
