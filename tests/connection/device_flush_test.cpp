// SPDX-License-Identifier: BSD-3-Clause
// What the NIC wrote is in the device's memory when it is reported, although the virtual NIC holds back the
// last bytes of each message to device memory (mode posted).
#include "src/connection/device_flush.hpp"

#include "tests/rdma/rdma_test.hpp"

namespace {

using namespace testing_support;

class device_flush_test : public rdma_test {
protected:
    static constexpr std::size_t size = 4096;

    void SetUp() override {
        rdma_test::SetUp();
        ::setenv("GAUDI_LAB_HCA_MODE", "posted=60000ms", 1); // not by themselves within a test
    }
    void TearDown() override {
        rdma_test::TearDown();
        ::unsetenv("GAUDI_LAB_HCA_MODE");
    }
    static connection_options with_flush(bool flush) {
        connection_options options;
        options.flush_device = flush;
        return options;
    }
    // The right side's region as the left side may write it.
    remote_region offered() {
        expect(right.link->offer(right.region, remote_access::write));
        return expect(left.link->take_offer(soon));
    }
    void write_from_left(const remote_region& to, const std::vector<std::byte>& data) {
        left.put(data);
        auto out = expect(left.link->write(left.region, to));
        finish_all(out);
        expect(out.wait(soon));
    }
    // A message from host memory to host memory.
    void send_word() {
        std::vector<std::byte> from(8), into(8);
        const auto here = expect(left.nic->region(from)), there = expect(right.nic->region(into));
        auto in = expect(right.link->receive(there));
        auto out = expect(left.link->send(here));
        finish_all(in, out);
        expect(out.wait(soon));
        expect(in.wait(soon));
    }
};

TEST_F(device_flush_test, messages_are_in_memory_when_they_are_reported) {
    for (const bool flush : {true, false}) {
        SCOPED_TRACE(flush);
        make_pair(memory_path::host, memory_path::zero_copy, size, with_flush(flush));
        for (unsigned round = 0; round < 3; ++round) {
            const auto data = pattern(size, round);
            left.put(data);
            auto in = expect(right.link->receive(right.region));
            auto out = expect(left.link->send(left.region));
            finish_all(in, out);
            expect(out.wait(soon));
            EXPECT_EQ(expect(in.wait(soon)).bytes, size);
            EXPECT_EQ(right.get() == data, flush);
        }
        EXPECT_EQ(right.link->statistics().by(memory_path::zero_copy).operations, 3U);
        close_both();
    }
}

TEST_F(device_flush_test, reads_are_in_memory_when_they_are_reported) {
    for (const bool flush : {true, false}) {
        SCOPED_TRACE(flush);
        make_pair(memory_path::zero_copy, memory_path::host, size, with_flush(flush));
        const auto data = pattern(size, 4);
        right.put(data);
        expect(right.link->offer(right.region, remote_access::read));
        auto in = expect(left.link->read(left.region, expect(left.link->take_offer(soon))));
        finish_all(in);
        EXPECT_EQ(expect(in.wait(soon)).bytes, size);
        EXPECT_EQ(left.get() == data, flush);
        close_both();
    }
}

TEST_F(device_flush_test, writes_are_in_memory_when_the_peer_says_so) {
    for (const bool flush : {true, false}) {
        SCOPED_TRACE(flush);
        make_pair(memory_path::host, memory_path::zero_copy, size, with_flush(flush));
        const auto remote = offered();
        auto data = pattern(size, 5);
        write_from_left(remote, data);
        EXPECT_NE(right.get(), data) << "the peer knows nothing of it";
        send_word();
        EXPECT_EQ(right.get() == data, flush) << "after a message to host memory";

        data = pattern(size, 6);
        write_from_left(remote, data);
        expect(left.link->send_note(std::as_bytes(std::span("done"))));
        expect(right.link->receive_note(soon));
        EXPECT_EQ(right.get() == data, flush) << "after a note";

        data = pattern(size, 7);
        left.put(data);
        std::vector<std::byte> word(8);
        const auto place = expect(right.nic->region(word));
        auto in = expect(right.link->receive(place));
        auto out = expect(left.link->write_with_immediate(left.region, remote, 1));
        finish_all(in, out);
        expect(out.wait(soon));
        expect(in.wait(soon));
        EXPECT_EQ(right.get() == data, flush) << "with an immediate";
        close_both();
    }
}

TEST_F(device_flush_test, also_where_the_peer_ends_at_once) {
    for (const bool by_note : {true, false}) {
        SCOPED_TRACE(by_note);
        make_pair(memory_path::host, memory_path::zero_copy, size);
        const auto remote = offered();
        const auto data = pattern(size, 9);
        std::vector<std::byte> word(8), sent(8);
        const auto place = expect(right.nic->region(word)), from = expect(left.nic->region(sent));
        auto in = by_note ? transfer() : expect(right.link->receive(place));
        right.link->poll();
        write_from_left(remote, data);
        if (by_note)
            expect(left.link->send_note(std::as_bytes(std::span("done"))));
        else
            expect(expect(left.link->send(from)).wait(soon));
        left.link.reset();
        if (by_note)
            expect(right.link->receive_note(soon));
        else
            expect(in.wait(soon));
        EXPECT_EQ(right.get(), data);
        close_both();
    }
}

TEST_F(device_flush_test, of_memory_that_is_withdrawn_before_the_message_is_seen) {
    make_pair(memory_path::host, memory_path::zero_copy, size);
    const auto remote = offered();
    std::vector<std::byte> word(8), sent(8);
    const auto place = expect(right.nic->region(word)), from = expect(left.nic->region(sent));
    auto in = expect(right.link->receive(place));
    const auto data = pattern(size, 10);
    write_from_left(remote, data);
    auto out = expect(left.link->send(from));
    while (!out.done()) // the right side polls nothing
        left.link->poll();
    right.link->withdraw(right.region);
    expect(in.wait(soon));
    EXPECT_EQ(right.get(), data);
}

TEST_F(device_flush_test, by_events_too) {
    connection_options options;
    options.wait = wait_mode::events;
    make_pair(memory_path::host, memory_path::zero_copy, size, options);
    const auto data = pattern(size, 8);
    left.put(data);
    auto in = expect(right.link->receive(right.region));
    auto sender =
        std::async(std::launch::async, [&] { return expect(left.link->send(left.region)).wait(soon); });
    EXPECT_EQ(expect(in.wait(soon)).bytes, size);
    expect(sender.get());
    EXPECT_EQ(right.get(), data);
}

TEST_F(device_flush_test, memory_that_was_freed_needs_none) {
    make_pair(memory_path::host, memory_path::zero_copy, size);
    (void)offered();
    send_word();
    right.region = {};
    right.buffer = {};
    right.gaudi->heap().trim();
    send_word();
    EXPECT_TRUE(right.link->alive());
}

TEST_F(device_flush_test, a_read_that_fails_is_an_error) {
    equip(right, 0, memory_path::zero_copy, size);
    operation_table operations{8};
    device_flush subject(right.nic, {}, operations);
    ASSERT_TRUE(subject.prepare());
    subject.add({right.region.address(), right.region.local_key() + 1, nullptr});
    const auto failed = subject.progress();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), errc::connection_broken);
}

TEST_F(device_flush_test, more_targets_than_the_queue_takes) {
    equip(right, 0, memory_path::host, size);
    operation_table operations{8};
    device_flush subject(right.nic, {}, operations);
    ASSERT_TRUE(subject.prepare());
    std::vector<local_region> regions;
    for (std::size_t i = 0; i < 40; ++i)
        regions.push_back(expect(right.nic->region(std::span(right.host).subspan(i * 64, 64))));
    for (const auto& region : regions)
        subject.add({region.address(), region.local_key(), nullptr});
    for (unsigned polls = 0; subject.busy() && polls < 1000; ++polls)
        ASSERT_TRUE(subject.progress());
    EXPECT_FALSE(subject.busy());
}

} // namespace
