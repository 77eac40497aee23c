// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/credits.hpp"

#include <gtest/gtest.h>

namespace {

using namespace gaudi;

// Both ends use the same ring here. On a connection the receiver writes its words into the sender's ring.
struct credits : ::testing::Test {
    static constexpr std::uint32_t segment = 4096;
    credit::ring words{};
    local_credits receiver{words};
    peer_credits sender{words, segment};

    void announce(std::uint64_t length) {
        receiver.announce(credit::kind::receive, length);
        std::uint64_t posted = 0;
        do {
            const auto bytes = std::min<std::uint64_t>(segment, length - posted);
            receiver.announce(credit::kind::part, bytes);
            posted += bytes;
        } while (posted < length);
    }
};

TEST_F(credits, of_fresh_memory_allow_nothing) {
    EXPECT_FALSE(sender.open_receive());
    EXPECT_FALSE(sender.part_available());
}

TEST_F(credits, open_a_receive_and_its_parts_in_order) {
    receiver.announce(credit::kind::receive, 2 * segment + 1);
    ASSERT_TRUE(sender.open_receive());
    EXPECT_EQ(sender.length(), 2 * segment + 1);
    EXPECT_FALSE(sender.part_available()) << "announced, but no part is posted";
    for (int part = 0; part < 3; ++part) {
        receiver.announce(credit::kind::part, segment);
        ASSERT_TRUE(sender.is_open());
        ASSERT_TRUE(sender.part_available());
        sender.use_part();
    }
    EXPECT_FALSE(sender.is_open()) << "three parts are all of it";
    EXPECT_FALSE(sender.open_receive());
}

TEST_F(credits, of_an_empty_receive_have_one_part) {
    announce(0);
    ASSERT_TRUE(sender.open_receive());
    ASSERT_TRUE(sender.part_available());
    sender.use_part();
    EXPECT_FALSE(sender.is_open());
}

// The lap in a word distinguishes it from the previous word at the same index. 300 laps cover all 255 values.
TEST_F(credits, stay_valid_over_many_laps) {
    for (unsigned i = 0; i < 300 * credit::ring_words; ++i) {
        ASSERT_FALSE(sender.open_receive()) << i;
        announce(i % 100);
        ASSERT_TRUE(sender.open_receive()) << i;
        ASSERT_EQ(sender.length(), i % 100);
        sender.use_part();
    }
}

TEST_F(credits, are_sent_once_they_are_as_many_as_the_peer_holds) {
    EXPECT_FALSE(receiver.due());
    announce(1); // 2 words to send; the peer holds none
    EXPECT_TRUE(receiver.due());
    receiver.sent(receiver.next_run().words.size());
    EXPECT_TRUE(receiver.all_sent());
    receiver.announce(credit::kind::part, 1);
    EXPECT_FALSE(receiver.due()) << "1 waits, the peer holds 2";
    receiver.consume(2);
    EXPECT_TRUE(receiver.due());
}

TEST_F(credits, are_sent_in_runs_that_end_with_the_ring) {
    for (unsigned i = 0; i < credit::ring_words - 2; ++i)
        receiver.announce(credit::kind::part, i);
    receiver.sent(credit::ring_words - 2);
    for (unsigned i = 0; i < 5; ++i)
        receiver.announce(credit::kind::part, 100 + i);
    const auto first = receiver.next_run();
    EXPECT_EQ(first.index, credit::ring_words - 2);
    EXPECT_EQ(first.words.size(), 2U);
    EXPECT_EQ(credit::decode(first.words[0], first.index, credit::kind::part), 100U);
    receiver.sent(2);
    const auto second = receiver.next_run();
    EXPECT_EQ(second.index, credit::ring_words);
    EXPECT_EQ(second.words.size(), 3U);
    EXPECT_EQ(second.words.data(), words.data());
}

TEST_F(credits, that_came_over_tcp_count_like_those_by_rdma) {
    sender.store(0, credit::encode(0, credit::kind::receive, 7));
    sender.store(1, credit::encode(1, credit::kind::part, 7));
    ASSERT_TRUE(sender.open_receive());
    EXPECT_EQ(sender.length(), 7U);
    EXPECT_TRUE(sender.part_available());
}

TEST_F(credits, of_the_wrong_kind_are_not_taken) {
    receiver.announce(credit::kind::part, 8);
    EXPECT_FALSE(sender.open_receive()) << "a part without a receive";
}

} // namespace
