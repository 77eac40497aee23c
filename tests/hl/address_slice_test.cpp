// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/address_slice.hpp"

#include <gtest/gtest.h>

namespace {

using namespace gaudi;

TEST(address_slice_test, hands_out_the_first_gap_that_is_large_enough) {
    address_slice slice(0x1000, 0x9000, 0x1000);
    EXPECT_EQ(slice.size(), 0x8000U);
    EXPECT_EQ(slice.find_gap(0x8000), 0x1000U);
    EXPECT_EQ(slice.find_gap(0x8001), 0U);
    slice.take(0x1000, 0x2000);
    slice.take(0x4000, 0x1000);
    EXPECT_EQ(slice.find_gap(0x1000), 0x3000U);
    EXPECT_EQ(slice.find_gap(0x2000), 0x5000U);
    slice.release(0x4000);
    EXPECT_EQ(slice.find_gap(0x2000), 0x3000U);
    slice.release(0x1000);
    EXPECT_EQ(slice.find_gap(0x8000), 0x1000U);
}

TEST(address_slice_test, is_full_when_the_last_byte_is_taken) {
    address_slice slice(0x1000, 0x3000, 0x1000);
    slice.take(0x1000, 0x2000);
    EXPECT_EQ(slice.find_gap(1), 0U);
}

TEST(address_slice_test, leaves_out_what_is_skipped) {
    address_slice slice(0x1000, 0x9000, 0x1000);
    EXPECT_EQ(slice.find_gap(0x1000, 0x1800), 0x3000U) << "rounded up to a page";
    slice.take(0x3000, 0x5000);
    EXPECT_EQ(slice.find_gap(0x1000, 0x1800), 0x8000U);
    EXPECT_EQ(slice.find_gap(0x1000, 0x8000), 0U);
}

// The driver's page need not be a power of two (48 MiB and 768 MiB exist). Alignment uses the low 48 bits of
// an address.
TEST(address_slice_test, begins_at_a_page_of_the_driver) {
    constexpr std::uint64_t page = 48ULL << 20, high = 0x1001ULL << 48;
    const address_slice slice(high + page + 1, high + 10 * page, page);
    EXPECT_EQ(slice.begin().value(), high + 2 * page);
    EXPECT_EQ(slice.size(), 8 * page);
}

} // namespace
