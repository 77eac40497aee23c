// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/messages.hpp"

#include <gtest/gtest.h>

namespace {

using namespace gaudi;

template <std::size_t... Kinds>
void check_all(std::index_sequence<Kinds...>) {
    const auto check = []<typename Request>(const Request& request) {
        const auto message = request_message(42, request);
        ASSERT_LE(message.size(), longest_request);
        const auto bytes = std::span<const std::byte>(message);
        const auto head = read_as<request_head>(bytes.first(sizeof(request_head)));
        ASSERT_TRUE(head);
        EXPECT_EQ(head->id, 42U);
        const auto body = bytes.subspan(sizeof(request_head));
        const auto back = read_request(head->kind, body);
        ASSERT_TRUE(back);
        EXPECT_TRUE(std::holds_alternative<Request>(*back));
        EXPECT_FALSE(read_request(head->kind, body.first(body.size() - 1))) << "too short";
        if constexpr (!std::is_void_v<typename Request::answer>) {
            EXPECT_LE(sizeof(answer_head) + sizeof(typename Request::answer), longest_answer);
        }
    };
    (check(std::variant_alternative_t<Kinds, ipc_request>{}), ...);
}

TEST(ipc_messages, come_back_as_what_they_were) {
    check_all(std::make_index_sequence<std::variant_size_v<ipc_request>>{});
}

TEST(ipc_messages, of_no_kind_are_not_read) {
    const message_bytes any(sizeof(open_context_request));
    EXPECT_FALSE(read_request(0, any));
    EXPECT_FALSE(read_request(std::variant_size_v<ipc_request> + 1, any));
    EXPECT_FALSE(read_request(0xffff, any));
}

TEST(ipc_messages, keep_their_values) {
    const copy_request sent{3, 1, 100, 200, 300};
    const auto message = request_message(1, sent);
    const auto back = read_request(kind_of<copy_request>(), std::span(message).subspan(sizeof(request_head)));
    const auto& got = std::get<copy_request>(back.value());
    EXPECT_EQ(got.lease, 3U);
    EXPECT_EQ(got.to_slab, 1U);
    EXPECT_EQ(got.offset, 100U);
    EXPECT_EQ(got.length, 200U);
    EXPECT_EQ(got.slab_offset, 300U);
}

TEST(ipc_messages, carry_an_error_with_a_bounded_text) {
    answer_head head;
    head.set_failure({errc::not_granted, std::string(1000, 'x'), 13});
    EXPECT_EQ(head.failed, static_cast<std::uint32_t>(errc::not_granted) + 1);
    EXPECT_EQ(head.system_error, 13);
    EXPECT_EQ(::strnlen(head.observed, sizeof(head.observed)), sizeof(head.observed) - 1);
}

TEST(ipc_messages, check_ranges_without_overflow) {
    EXPECT_TRUE(lies_within(0, 10, 10));
    EXPECT_TRUE(lies_within(9, 1, 10));
    EXPECT_FALSE(lies_within(10, 1, 10));
    EXPECT_FALSE(lies_within(0, 0, 10));
    EXPECT_FALSE(lies_within(5, ~0ULL - 2, 10));
    EXPECT_FALSE(lies_within(~0ULL, 2, 10));
}

} // namespace
