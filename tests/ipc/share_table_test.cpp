// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/share_table.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace {

using namespace gaudi;

struct share_table_test : ::testing::Test {
    static constexpr std::uint64_t base = 0x10000, length = 0x3000, generation = 5;
    share_table table;

    static allocation_view allocation(std::uint64_t generation_now = generation) {
        return {device_address(base), length, generation_now, 2, 0};
    }
    static handle_record handle(std::uint64_t secret, std::uint64_t offset = 0,
                                std::uint64_t bytes = length) {
        handle_record record;
        record.base = base;
        record.allocated = length;
        record.generation = generation;
        record.secret = secret;
        record.offset = offset;
        record.length = bytes;
        return record;
    }
    static lease_record lease(std::uint64_t secret) {
        lease_record record;
        record.base = base;
        record.length = length;
        record.generation = generation;
        record.secret = secret;
        return record;
    }
};

TEST_F(share_table_test, the_same_bytes_have_the_same_secret_unless_separate) {
    const auto whole = table.add(allocation(), 0, length, false);
    EXPECT_EQ(table.add(allocation(), 0, length, false), whole);
    const auto part = table.add(allocation(), 0x1000, 0x1000, false);
    EXPECT_NE(part, whole);
    const auto apart = table.add(allocation(), 0, length, true);
    EXPECT_NE(apart, whole);
    EXPECT_NE(table.add(allocation(), 0, length, true), apart);
    EXPECT_EQ(table.add(allocation(), 0, length, false), whole) << "and never one that is apart";
    EXPECT_EQ(table.size(), 1U);
}

TEST_F(share_table_test, finds_a_handle_only_as_it_was_made) {
    const auto secret = table.add(allocation(), 0x1000, 0x1000, false);
    EXPECT_TRUE(table.find(handle(secret, 0x1000, 0x1000)));
    EXPECT_FALSE(table.find(handle(secret, 0, length)));
    EXPECT_FALSE(table.find(handle(secret, 0x1000, 0x2000)));
    EXPECT_FALSE(table.find(handle(secret ^ 1, 0x1000, 0x1000)));
    auto other = handle(secret, 0x1000, 0x1000);
    other.generation ^= 1;
    EXPECT_FALSE(table.find(other));
    other = handle(secret, 0x1000, 0x1000);
    other.allocated *= 2;
    const auto refused = table.find(other);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::handle_stale);
}

TEST_F(share_table_test, forgets_the_handles_of_memory_that_was_allocated_anew) {
    const auto before = table.add(allocation(), 0, length, false);
    const auto after = table.add(allocation(generation + 1), 0, length, false);
    EXPECT_NE(before, after);
    EXPECT_FALSE(table.find(handle(before)));
    EXPECT_FALSE(table.find(lease(before)));
}

TEST_F(share_table_test, finds_the_allocation_that_holds_an_address) {
    (void)table.add(allocation(), 0, length, false);
    EXPECT_TRUE(table.holding(device_address(base - 1)).empty());
    EXPECT_EQ(table.holding(device_address(base)).size(), 1U);
    EXPECT_EQ(table.holding(device_address(base + length - 1)).size(), 1U);
    EXPECT_TRUE(table.holding(device_address(base + length)).empty());
    EXPECT_TRUE(table.any_in(device_address(base - 0x1000), 0x1001));
    EXPECT_FALSE(table.any_in(device_address(base - 0x1000), 0x1000));
    EXPECT_FALSE(table.any_in(device_address(base + 1), 0x10000));
}

TEST_F(share_table_test, revokes_one_separate_handle_or_all) {
    const auto common = table.add(allocation(), 0, length, false);
    const auto apart = table.add(allocation(), 0, length, true);
    EXPECT_FALSE(table.revoke(device_address(base), common)) << "others may hold that one";
    EXPECT_FALSE(table.revoke(device_address(base + length), apart)) << "nothing is shared there";
    EXPECT_TRUE(table.revoke(device_address(base + 5), apart));
    EXPECT_FALSE(table.find(handle(apart)));
    EXPECT_TRUE(table.find(handle(common)));
    EXPECT_TRUE(table.revoke(device_address(base), 0));
    EXPECT_FALSE(table.find(handle(common)));
    EXPECT_FALSE(table.holding(device_address(base)).empty()) << "until its leases are closed";
}

// SynapseAI's allocations are not known: ranges of its pool are shared as they are, and may overlap.
TEST_F(share_table_test, keeps_ranges_of_a_pool_apart) {
    const auto pool = [](std::uint64_t begin, std::uint64_t bytes) {
        return allocation_view{device_address(base + begin), bytes, 0, 2, 0};
    };
    const auto before = table.add(allocation(), 0, 0x100, false); // an allocation below the pool
    const auto little = table.add(pool(length, 0x1000), 0, 0x1000, true);
    const auto large = table.add(pool(length, 0x4000), 0, 0x4000, true);
    const auto inner = table.add(pool(length + 0x2000, 0x1000), 0, 0x1000, true);
    EXPECT_EQ(table.size(), 4U);
    EXPECT_EQ(table.holding(device_address(base + length)).size(), 2U);
    EXPECT_EQ(table.holding(device_address(base + length + 0x2800)).size(), 2U);
    EXPECT_EQ(table.holding(device_address(base + length + 0x1800)).size(), 1U);
    EXPECT_TRUE(table.revoke(device_address(base + length), little));
    EXPECT_FALSE(table.revoke(device_address(base + length), little)) << "it is revoked already";
    EXPECT_TRUE(table.revoke(device_address(base + length), large));
    EXPECT_TRUE(table.revoke(device_address(base + length + 0x2000), 0)) << "all that hold the address";
    EXPECT_FALSE(table.revoke(device_address(base + length + 0x2000), inner));
    EXPECT_TRUE(table.find(handle(before, 0, 0x100)));
    table.erase_in(device_address(base + length), 0x4000);
    EXPECT_EQ(table.size(), 1U);
}

TEST_F(share_table_test, closes_a_dmabuf_with_the_last_lease_of_its_piece) {
    const auto secret = table.add(allocation(), 0, length, false);
    const auto leased = table.find(lease(secret));
    ASSERT_TRUE(leased);
    leased.piece->dmabuf = unique_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int number = leased.piece->dmabuf.get();
    table.lease_closed(lease(secret), false, false);
    EXPECT_NE(::fcntl(number, F_GETFD), -1);
    table.lease_closed(lease(secret), true, true);
    EXPECT_EQ(::fcntl(number, F_GETFD), -1);
    EXPECT_TRUE(table.find(handle(secret))) << "the handle stays good";
    EXPECT_TRUE(table.revoke(device_address(base), 0));
    table.lease_closed(lease(secret), true, true);
    EXPECT_EQ(table.size(), 0U) << "revoked, and no lease is left";
}

} // namespace
