// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/staging_protocol.hpp"

#include <gtest/gtest.h>

namespace {

using namespace gaudi;

template <typename Frame>
class staging_frame : public ::testing::Test {};
using frames = ::testing::Types<access_request, slab_grant, slab_return, access_end>;
TYPED_TEST_SUITE(staging_frame, frames);

// Each field has a different value: the tests detect a missing field and two swapped fields.
template <typename Frame>
Frame distinct() {
    Frame frame;
    std::apply(
        [value = 0x0102030405060708ULL](auto&... field) mutable {
            ((field = static_cast<std::remove_reference_t<decltype(field)>>(value), value += 0x0101), ...);
        },
        frame.fields());
    return frame;
}

TYPED_TEST(staging_frame, comes_back_as_it_went) {
    auto frame = distinct<TypeParam>();
    if constexpr (requires { frame.refusal; })
        frame.refusal = "the buffer was freed";
    auto back = decode_frame<TypeParam>(encode_frame(frame));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->fields(), frame.fields());
    if constexpr (requires { frame.refusal; }) {
        EXPECT_EQ(back->refusal, frame.refusal);
    }
}

TYPED_TEST(staging_frame, of_another_size_is_refused) {
    auto body = encode_frame(distinct<TypeParam>());
    for (std::size_t bytes = 0; bytes < body.size(); ++bytes)
        EXPECT_FALSE(decode_frame<TypeParam>(std::span(body).first(bytes))) << bytes;
    body.push_back(std::byte{'x'});
    EXPECT_EQ(decode_frame<TypeParam>(body).has_value(), (std::is_same_v<TypeParam, access_end>))
        << "only the end of an access has text after its fields";
}

// The wire format of this protocol version.
TEST(staging_frames, are_big_endian_in_the_order_of_their_fields) {
    const auto body = encode_frame(slab_return{1, 2});
    EXPECT_EQ(body.size(), 12U);
    EXPECT_EQ(body[7], std::byte{1});
    EXPECT_EQ(body[11], std::byte{2});
    EXPECT_EQ(encode_frame(access_request{}).size(), 29U);
    EXPECT_EQ(encode_frame(slab_grant{}).size(), 36U);
    EXPECT_EQ(encode_frame(access_end{7, "no"}).size(), 10U);
}

} // namespace
