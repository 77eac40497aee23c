// SPDX-License-Identifier: BSD-3-Clause
#include "tests/rdma/rdma_test.hpp"

#include <fmt/format.h>
#include <poll.h>

namespace {

using namespace testing_support;

using connection_test = rdma_test;

TEST_F(connection_test, atomics_on_device_memory) {
    make_pair(memory_path::host, memory_path::zero_copy, 4096);
    std::vector<std::byte> zero(4096);
    right.put(zero);
    expect(right.link->offer(right.region, remote_access::all));
    const auto remote = expect(left.link->take_offer(soon));
    for (std::uint64_t i = 0; i < 10; ++i) {
        auto added = expect(left.link->fetch_add(remote, 3));
        finish_all(added);
        EXPECT_EQ(expect(added.wait(soon)).value, 3 * i);
    }
    auto swapped = expect(left.link->compare_swap(remote, 30, 77));
    auto not_swapped = expect(left.link->compare_swap(remote, 30, 78));
    finish_all(swapped, not_swapped);
    EXPECT_EQ(expect(swapped.wait(soon)).value, 30U);
    EXPECT_EQ(expect(not_swapped.wait(soon)).value, 77U);
    EXPECT_EQ(right.get()[0], std::byte{77});
    EXPECT_EQ(left.link->fetch_add(expect(remote.part(4, 8)), 1).error().code(), errc::length_mismatch);
}

TEST_F(connection_test, messages_arrive_in_order_and_wait_for_receives) {
    make_pair(memory_path::host, memory_path::host, 64 * 1000);
    std::vector<transfer> out, in;
    for (unsigned i = 0; i < 1000; ++i) {
        left.host[i * 64] = static_cast<std::byte>(i * 7);
        out.push_back(expect(left.link->send(expect(left.region.part(i * 64, 64)), i)));
    }
    EXPECT_FALSE(out[0].done()) << "there is no receive yet";
    for (unsigned i = 0; i < 1000; ++i)
        in.push_back(expect(right.link->receive(expect(right.region.part(i * 64, 64)))));
    for (unsigned i = 0; i < 1000; ++i) {
        finish_all(in[i], out[i]);
        ASSERT_EQ(expect(in[i].wait(soon)).immediate, i);
        expect(out[i].wait(soon));
    }
    EXPECT_EQ(right.host, left.host);
}

TEST_F(connection_test, a_shorter_message_takes_the_whole_receive) {
    make_pair(memory_path::zero_copy, memory_path::staged, 3 << 20);
    auto into = expect(right.link->receive(right.region));
    auto out = expect(left.link->send(expect(left.region.part(0, 10))));
    finish_all(into, out);
    EXPECT_EQ(expect(into.wait(soon)).bytes, 10U);
    auto again = expect(right.link->receive(right.region));
    auto empty = expect(left.link->send(expect(left.region.part(0, 0)), 9));
    finish_all(again, empty);
    const auto got = expect(again.wait(soon));
    EXPECT_EQ(got.bytes, 0U);
    EXPECT_EQ(got.immediate, 9U);
}

TEST_F(connection_test, too_long_a_message_is_refused_and_loses_nothing) {
    make_pair(memory_path::host, memory_path::host, 4096);
    auto into = expect(right.link->receive(expect(right.region.part(0, 100))));
    auto out = expect(left.link->send(left.region));
    finish_all(out);
    const auto outcome = out.wait(soon);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::message_too_long);
    EXPECT_NE(outcome.error().message().find("4096 bytes into a receive of 100"), std::string::npos)
        << outcome.error().message();
    auto fits = expect(left.link->send(expect(left.region.part(0, 100))));
    finish_all(into, fits);
    EXPECT_EQ(expect(into.wait(soon)).bytes, 100U);
    EXPECT_TRUE(left.link->alive());
}

TEST_F(connection_test, events_wake_both_sides) {
    connection_options sleepy;
    sleepy.wait = wait_mode::events;
    make_pair(memory_path::zero_copy, memory_path::staged, 5 << 20, sleepy);
    const auto data = pattern(5 << 20, 3);
    left.put(data);
    auto other = std::async(std::launch::async, [&] {
        for (int i = 0; i < 20; ++i)
            expect(expect(right.link->receive(right.region)).wait(soon));
        return expect(expect(right.link->send(expect(right.region.part(0, 1)))).wait(soon)).bytes;
    });
    for (int i = 0; i < 20; ++i)
        expect(expect(left.link->send(left.region)).wait(soon));
    std::vector<std::byte> answer(1);
    expect(expect(left.link->receive(expect(left.nic->region(answer)))).wait(soon));
    EXPECT_EQ(other.get(), 1U);
    EXPECT_EQ(answer[0], data[0]);
    EXPECT_EQ(right.get(), data);
}

// An event loop sleeps on the descriptor and polls the connection when the descriptor becomes readable.
TEST_F(connection_test, a_descriptor_wakes_an_event_loop) {
    connection_options sleepy;
    sleepy.wait = wait_mode::events;
    make_pair(memory_path::zero_copy, memory_path::staged, 5 << 20, sleepy);
    const auto data = pattern(5 << 20, 4);
    left.put(data);
    const auto run = [](connection& link, transfer& pending) {
        pollfd waiting{expect(link.event_fd()), POLLIN, 0};
        while (!pending.done()) {
            if (link.arm()) {
                ASSERT_EQ(::poll(&waiting, 1, static_cast<int>(soon.count())), 1) << "nothing woke it";
            }
        }
    };
    auto into = expect(right.link->receive(right.region));
    auto receiving = std::async(std::launch::async, [&] { run(*right.link, into); });
    auto out = expect(left.link->send(left.region));
    run(*left.link, out);
    receiving.get();
    EXPECT_EQ(expect(into.wait(soon)).bytes, data.size());
    EXPECT_EQ(right.get(), data);

    // A disconnect by the peer makes the descriptor readable too.
    pollfd waiting{expect(right.link->event_fd()), POLLIN, 0};
    while (!right.link->arm())
        ASSERT_TRUE(right.link->alive());
    left.link.reset();
    EXPECT_EQ(::poll(&waiting, 1, static_cast<int>(soon.count())), 1);
    while (right.link->alive())
        right.link->poll();
    EXPECT_FALSE(right.link->arm()) << "nothing to sleep for";
}

TEST_F(connection_test, a_connection_that_polls_has_no_descriptor) {
    make_pair(memory_path::host, memory_path::host, 8);
    const auto refused = left.link->event_fd();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::setting_malformed);
    EXPECT_NE(refused.error().message().find("wait_mode::events"), std::string::npos);
}

TEST_F(connection_test, several_operations_are_waited_for_at_once) {
    make_pair(memory_path::host, memory_path::host, 4096);
    std::vector<transfer> all;
    for (int i = 0; i < 8; ++i)
        all.push_back(
            expect(right.link->receive(expect(right.region.part(512U * static_cast<unsigned>(i), 512)))));
    for (int i = 0; i < 8; ++i)
        all.push_back(expect(left.link->send(expect(left.region.part(0, 512)))));
    EXPECT_LT(expect(wait_any(std::span(all), soon)), all.size());
    expect(wait_all(std::span(all), soon)); // both ends of the connection belong to this thread
    for (auto& each : all)
        EXPECT_EQ(expect(each.wait()).bytes, 512U);
}

TEST_F(connection_test, a_wrong_remote_region_is_refused_by_the_nic) {
    make_pair(memory_path::host, memory_path::host, 4096);
    expect(right.link->offer(right.region, remote_access::all));
    auto remote = expect(left.link->take_offer(soon));
    EXPECT_EQ(left.link->write(expect(left.region.part(0, 8)), remote).error().code(), errc::length_mismatch);
    remote.address += 4096;
    auto out = expect(left.link->write(left.region, remote));
    finish_all(out);
    const auto refused = out.wait(soon).error();
    EXPECT_EQ(refused.code(), errc::remote_access);
    EXPECT_NE(refused.message().find("IBV_WC_REM_ACCESS_ERR (10)"), std::string::npos) << refused.message();
    EXPECT_FALSE(left.link->alive());
    EXPECT_EQ(left.link->send(left.region).error().code(), errc::remote_access);
}

TEST_F(connection_test, a_close_notifies_the_peer_and_fails_what_waits) {
    make_pair(memory_path::host, memory_path::host, 4096);
    auto into = expect(right.link->receive(right.region));
    left.link->close();
    finish_all(into);
    const auto outcome = into.wait(soon);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), errc::peer_gone);
    EXPECT_NE(outcome.error().message().find("closed the connection"), std::string::npos);
}

TEST_F(connection_test, notes_and_data_at_the_same_time) {
    make_pair(memory_path::host, memory_path::host, 64);
    const auto words = pattern(60000, 1);
    expect(left.link->send_note(words));
    EXPECT_EQ(expect(right.link->receive_note(soon)), words);
    EXPECT_EQ(left.link->send_note(pattern(70000, 1)).error().code(), errc::message_too_long);
    EXPECT_EQ(right.link->receive_note(milliseconds(10)).error().code(), errc::wait_timeout);
}

TEST_F(connection_test, too_many_operations_say_so) {
    connection_options few;
    few.operations = 4;
    make_pair(memory_path::host, memory_path::host, 64, few);
    std::vector<transfer> all;
    for (int i = 0; i < 4; ++i)
        all.push_back(expect(right.link->receive(right.region)));
    EXPECT_EQ(right.link->receive(right.region).error().code(), errc::too_many_operations);
}

} // namespace
