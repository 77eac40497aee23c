// SPDX-License-Identifier: BSD-3-Clause
#include "src/memory/range_allocator.hpp"

#include <gtest/gtest.h>
#include <map>
#include <random>

namespace {

using gaudi::range_allocator;

TEST(range_allocator, takes_all_and_releases_all) {
    range_allocator ranges(1 << 20, nullptr);
    auto* all = ranges.allocate(1 << 20, 64);
    ASSERT_NE(all, nullptr);
    EXPECT_EQ(ranges.allocate(1, 64), nullptr);
    ranges.free(all);
    EXPECT_TRUE(ranges.empty());
    EXPECT_EQ(ranges.largest_free(), 1U << 20);
}

TEST(range_allocator, alignment) {
    range_allocator ranges(1 << 20, nullptr);
    auto* odd = ranges.allocate(64, 64);
    for (std::uint64_t alignment = 64; alignment <= 65536; alignment *= 2) {
        auto* block = ranges.allocate(100, alignment);
        ASSERT_NE(block, nullptr);
        EXPECT_EQ(block->offset % alignment, 0U);
        EXPECT_EQ(block->size, 128U);
        ranges.free(block);
    }
    ranges.free(odd);
    EXPECT_EQ(ranges.largest_free(), 1U << 20) << "neighbours have merged";
}

// No two live blocks overlap, and all free blocks merge again.
TEST(range_allocator, random_against_a_shadow_model) {
    std::mt19937_64 random(20261115);
    constexpr std::uint64_t total = 64ULL << 20;
    range_allocator ranges(total, nullptr);
    std::map<std::uint64_t, range_allocator::block*> live;
    std::uint64_t refused = 0;
    for (int step = 0; step < 200000; ++step) {
        if (live.empty() || random() % 100 < 55) {
            const auto size = 1 + (random() % 8 == 0 ? random() % (1 << 20) : random() % 8192);
            const auto alignment = 64ULL << random() % 9;
            auto* block = ranges.allocate(size, alignment);
            if (block == nullptr) {
                ++refused;
                continue;
            }
            ASSERT_GE(block->size, size);
            ASSERT_EQ(block->offset % alignment, 0U);
            ASSERT_LE(block->offset + block->size, total);
            const auto next = live.lower_bound(block->offset);
            if (next != live.end()) {
                ASSERT_LE(block->offset + block->size, next->first);
            }
            if (next != live.begin()) {
                const auto before = std::prev(next);
                ASSERT_LE(before->first + before->second->size, block->offset);
            }
            live[block->offset] = block;
        } else {
            auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
            ranges.free(victim->second);
            live.erase(victim);
        }
    }
    for (const auto& [offset, block] : live)
        ranges.free(block);
    EXPECT_TRUE(ranges.empty());
    EXPECT_EQ(ranges.largest_free(), total);
}

TEST(range_allocator, fragmentation_stays_bounded) {
    // With mixed sizes and half of the range allocated, an allocation of 1/16 of the range must succeed.
    std::mt19937_64 random(7);
    constexpr std::uint64_t total = 256ULL << 20;
    range_allocator ranges(total, nullptr);
    std::vector<range_allocator::block*> live;
    for (int step = 0; step < 100000; ++step) {
        if (ranges.used() < total / 2) {
            if (auto* block = ranges.allocate(1 + random() % 65536, 64); block != nullptr)
                live.push_back(block);
        } else {
            const auto at = random() % live.size();
            ranges.free(live[at]);
            live[at] = live.back();
            live.pop_back();
        }
    }
    auto* large = ranges.allocate(total / 16, 4096);
    EXPECT_NE(large, nullptr) << "largest free: " << ranges.largest_free();
    if (large != nullptr)
        ranges.free(large);
    for (auto* block : live)
        ranges.free(block);
}

} // namespace
