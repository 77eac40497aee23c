// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: detection
#include "src/memory/editable_address_map.hpp"

#include <atomic>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <thread>

namespace {

using namespace gaudi;

constexpr std::uint64_t base = 0x1001500000000000, window = 128ULL << 30;

class address_map_test : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_TRUE(map.add_window(device_address(base), window, 3)); }
    editable_address_map map;
};

TEST_F(address_map_test, finds_what_was_inserted) {
    const auto generation = map.insert(device_address(base + 4096), 10000, 42);
    ASSERT_TRUE(generation);
    const auto found = map.find(device_address(base + 4096 + 9999));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->base, device_address(base + 4096));
    EXPECT_EQ(found->length, 10000U);
    EXPECT_EQ(found->generation, *generation);
    EXPECT_EQ(found->device_index, 3U);
    EXPECT_EQ(found->tag, 42U);
    EXPECT_FALSE(map.find(device_address(base + 4096 + 10000))) << "past the end, though in the last unit";
    EXPECT_FALSE(map.find(device_address(base + 4095)));
    EXPECT_FALSE(map.find(device_address(base - 1)));
    EXPECT_FALSE(map.find(device_address(0)));
}

TEST_F(address_map_test, a_range_that_leaves_its_allocation_is_refused) {
    ASSERT_TRUE(map.insert(device_address(base), 8192, 0));
    ASSERT_TRUE(map.insert(device_address(base + 8192), 8192, 0));
    EXPECT_TRUE(map.find(device_address(base), 8192));
    EXPECT_EQ(map.find(device_address(base + 1), 8192).error().code(), errc::range_leaves_allocation)
        << "though the neighbour is in the map as well";
    EXPECT_EQ(map.find(device_address(base), ~0ULL).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(map.find(device_address(base + 16384), 1).error().code(), errc::not_allocated);
    for (const auto handle : {0x4000000100000000U, 0x8000040000000000U}) // torch.Tensor.data_ptr() on a Gaudi
        EXPECT_EQ(map.find(device_address(handle), 1).error().code(), errc::pytorch_handle);
}

TEST_F(address_map_test, refuses_overlap_and_nonsense) {
    ASSERT_TRUE(map.insert(device_address(base + 8192), 100, 0));
    EXPECT_EQ(map.insert(device_address(base), 8193, 0).error().code(), errc::ranges_overlap);
    EXPECT_EQ(map.insert(device_address(base + 8192 + 64), 1, 0).error().code(), errc::ranges_overlap)
        << "the last unit is taken";
    EXPECT_TRUE(map.insert(device_address(base + 8192 + 128), 1, 0));
    EXPECT_EQ(map.insert(device_address(base + 1), 8, 0).error().code(), errc::alignment_invalid);
    EXPECT_EQ(map.insert(device_address(base), 0, 0).error().code(), errc::size_zero);
    EXPECT_EQ(map.insert(device_address(base + window), 64, 0).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(map.erase(device_address(base + 64)).error().code(), errc::not_allocated);
    EXPECT_EQ(map.add_window(device_address(base + window - 4096), 8192, 4).error().code(),
              errc::address_collision);
}

// labels: ucm
TEST_F(address_map_test, freed_memory_is_forgotten_and_its_successor_is_another) {
    const auto first = map.insert(device_address(base), 4096, 0);
    ASSERT_TRUE(map.erase(device_address(base)));
    EXPECT_FALSE(map.find(device_address(base)));
    EXPECT_EQ(map.erase(device_address(base)).error().code(), errc::not_allocated) << "twice";
    const auto second = map.insert(device_address(base), 4096, 0);
    EXPECT_NE(*first, *second);
    EXPECT_EQ(map.size(), 1U);
}

// labels: ucm
TEST_F(address_map_test, a_device_that_goes_takes_everything_along) {
    ASSERT_TRUE(map.insert(device_address(base), 5ULL << 30, 0));
    ASSERT_TRUE(map.add_window(device_address(base + window), window, 4));
    ASSERT_TRUE(map.insert(device_address(base + window), 64, 0));
    map.remove_device(3);
    EXPECT_FALSE(map.find(device_address(base)));
    EXPECT_FALSE(map.device_of(device_address(base)));
    EXPECT_TRUE(map.find(device_address(base + window)));
    ASSERT_TRUE(map.add_window(device_address(base), window, 3)) << "and can come back";
    EXPECT_TRUE(map.insert(device_address(base), 5ULL << 30, 0));
}

TEST_F(address_map_test, random_against_a_shadow_model) {
    std::mt19937_64 random(1);
    std::map<std::uint64_t, std::uint64_t> live; // begin -> length
    const auto free_at = [&](std::uint64_t begin, std::uint64_t length) {
        const auto end = (begin + length + 63) / 64 * 64;
        const auto next = live.lower_bound(begin);
        if (next != live.end() && next->first < end)
            return false;
        return next == live.begin() ||
               (std::prev(next)->first + std::prev(next)->second + 63) / 64 * 64 <= begin;
    };
    for (int step = 0; step < 30000; ++step) {
        const auto begin = base + random() % (1ULL << 20) * 64;
        const auto length = 1 + random() % (1ULL << (random() % 24));
        if (random() % 3 != 0) {
            const bool expected = free_at(begin, length);
            ASSERT_EQ(static_cast<bool>(map.insert(device_address(begin), length, begin)), expected);
            if (expected)
                live[begin] = length;
        } else if (!live.empty()) {
            auto victim = live.lower_bound(begin);
            if (victim == live.end())
                victim = live.begin();
            ASSERT_TRUE(map.erase(device_address(victim->first)));
            live.erase(victim);
        }
        const auto asked = base + random() % (1ULL << 26);
        const auto next = live.upper_bound(asked);
        const bool inside = next != live.begin() && asked < std::prev(next)->first + std::prev(next)->second;
        const auto found = map.find(device_address(asked));
        ASSERT_EQ(found.has_value(), inside);
        if (inside) {
            ASSERT_EQ(found->base.value(), std::prev(next)->first);
        }
    }
    EXPECT_EQ(map.size(), live.size());
}

// Readers never see a torn entry: base, length and tag belong to one allocation.
TEST_F(address_map_test, readers_and_writers_at_the_same_time) {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> seen{0};
    std::vector<std::thread> readers;
    for (unsigned i = 0; i < 2; ++i)
        readers.emplace_back([&, i] {
            std::mt19937_64 random(i);
            while (!stop) {
                const auto asked = base + random() % (1 << 20);
                if (const auto found = map.find(device_address(asked))) {
                    // Writers tag an allocation with base + length.
                    ASSERT_EQ(found->tag, found->base.value() + found->length);
                    ASSERT_LT(asked - found->base.value(), found->length);
                    ++seen;
                }
            }
        });
    std::mt19937_64 random(9);
    std::map<std::uint64_t, bool> live;
    for (int step = 0; step < 60000 || (seen == 0 && step < 60000000); ++step) {
        const auto begin = base + random() % 256 * 4096;
        if (live.erase(begin) != 0) {
            ASSERT_TRUE(map.erase(device_address(begin)));
        } else {
            const auto length = 1 + random() % 4096;
            ASSERT_TRUE(map.insert(device_address(begin), length, begin + length));
            live[begin] = true;
        }
    }
    stop = true;
    for (auto& reader : readers)
        reader.join();
    EXPECT_GT(seen, 0U);
}

} // namespace
