// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/control_channel.hpp"

#include "tests/connection/stream_pair.hpp"

#include <gtest/gtest.h>

namespace {

using namespace gaudi;
using std::chrono::milliseconds;

std::vector<std::byte> bytes_of(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

TEST(inbox_test, gives_the_oldest_of_a_kind) {
    inbox waiting;
    EXPECT_TRUE(waiting.empty());
    ASSERT_TRUE(waiting.add({frame_kind::note, bytes_of("first")}, "peer"));
    ASSERT_TRUE(waiting.add({frame_kind::offer, bytes_of("offer")}, "peer"));
    ASSERT_TRUE(waiting.add({frame_kind::note, bytes_of("second")}, "peer"));
    EXPECT_EQ(waiting.take(frame_kind::offer), bytes_of("offer"));
    EXPECT_FALSE(waiting.take(frame_kind::offer));
    EXPECT_EQ(waiting.take(frame_kind::note), bytes_of("first"));
    EXPECT_EQ(waiting.take(frame_kind::note), bytes_of("second"));
    EXPECT_TRUE(waiting.empty());
}

TEST(inbox_test, refuses_more_than_its_limit_and_counts_what_was_taken) {
    inbox waiting;
    const frame large{frame_kind::note, std::vector<std::byte>(inbox::most_bytes / 4)};
    for (int i = 0; i < 20; ++i) { // five times the limit in total, one frame queued at a time
        ASSERT_TRUE(waiting.add(large, "peer"));
        ASSERT_TRUE(waiting.take(frame_kind::note));
    }
    for (int i = 0; i < 3; ++i)
        ASSERT_TRUE(waiting.add(large, "peer"));
    const auto refused = waiting.add(large, "host:7");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::protocol_violated);
    EXPECT_NE(refused.error().message().find("host:7"), std::string::npos);
}

class channel_pair : public ::testing::Test {
protected:
    channel_pair() {
        auto [left, right] = testing_support::stream_pair();
        left_.emplace(std::move(left), milliseconds(1000));
        right_.emplace(std::move(right), milliseconds(1000));
    }
    std::optional<control_channel> left_, right_;
};

TEST_F(channel_pair, carries_frames_whole_and_in_order) {
    const std::vector<std::byte> longest(control_channel::longest_body, std::byte{5});
    ASSERT_TRUE(left_->send(frame_kind::note, bytes_of("a")));
    ASSERT_TRUE(left_->send(frame_kind::goodbye, {}));
    ASSERT_TRUE(left_->send(frame_kind::offer, longest));
    std::vector<frame> all;
    while (all.size() < 3) {
        auto received = right_->receive();
        ASSERT_TRUE(received);
        for (auto& each : *received)
            all.push_back(std::move(each));
    }
    EXPECT_EQ(all[0].body, bytes_of("a"));
    EXPECT_EQ(all[1].kind, frame_kind::goodbye);
    EXPECT_EQ(all[2].body, longest);
    const auto none = right_->receive();
    ASSERT_TRUE(none);
    EXPECT_TRUE(none->empty());
}

TEST_F(channel_pair, reports_the_end_after_the_last_frame) {
    ASSERT_TRUE(left_->send(frame_kind::note, bytes_of("last")));
    left_.reset();
    const auto last = right_->receive();
    ASSERT_TRUE(last);
    ASSERT_EQ(last->size(), 1U);
    EXPECT_EQ(right_->receive().error().code(), errc::peer_gone);
}

TEST_F(channel_pair, refuses_what_is_no_frame) {
    const std::array<std::byte, 8> huge{std::byte{0x7f}};
    ASSERT_TRUE(left_->line().send_all(huge, std::chrono::steady_clock::now() + milliseconds(1000)));
    EXPECT_EQ(right_->receive().error().code(), errc::protocol_violated);
}

} // namespace
