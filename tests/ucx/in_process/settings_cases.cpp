// SPDX-License-Identifier: BSD-3-Clause
// The effects of the settings of gaudi_copy. Runs in the lab, under either UCX.
#include "tests/ucx/in_process/uct_case.hpp"

namespace {

using namespace testing_ucx;

TEST(uct_settings, the_heap_takes_chunks_of_the_size_that_is_set) {
    for (const auto& [value, bytes] : {std::pair("1g", 1ULL << 30), std::pair("2g", 2ULL << 30)}) {
        const setting chunk("UCX_GAUDI_COPY_HEAP_CHUNK", value);
        const memory_domain domain("gaudi_copy", "gaudi_copy");
        const allocated memory(domain, 4096);
        const auto device = device_at(memory.number());
        const auto page = device->info().allocation_page;
        const auto held = device->heap().statistics();
        EXPECT_EQ(held.chunks, 1U);
        EXPECT_EQ(held.chunk_bytes, (bytes + page - 1) / page * page) << value;
    }
}

// Two queues for each direction; a copy uses those of its own direction first.
TEST(uct_settings, a_large_copy_uses_as_many_queues_as_are_set) {
    constexpr std::size_t large = 64 << 20;
    auto bytes = numbered(large, 1);
    using numbers = std::set<std::uint32_t>;
    struct row {
        const char* value;
        numbers down, up;
    };
    for (const bool by_others_first : {false, true})
        for (const auto& [value, down, up] :
             {row{"1", {0}, {4}}, row{"2", {0, 1}, {4, 5}}, row{"3", {0, 1, 4}, {4, 5, 0}},
              row{"4", {0, 1, 4, 5}, {0, 1, 4, 5}}}) {
            const setting queues("UCX_GAUDI_COPY_QUEUES", value);
            const memory_domain domain("gaudi_copy", "gaudi_copy");
            const allocated memory(domain, large);
            std::optional<gaudi::copy_engine> theirs;
            if (by_others_first)
                theirs = engine_at(memory.number());
            copier copies(domain);
            for (const bool put : {true, false}) {
                const auto used = queues_used(memory.number(), [&] {
                    ASSERT_EQ(complete(copies, put, bytes.data(), large, memory.number()), UCS_OK);
                });
                for (const auto& each : engine_at(memory.number()).queues())
                    EXPECT_EQ(each.depth, 0U);
                EXPECT_EQ(used, put ? down : up) << value << (put ? " down" : " up");
            }
        }
}

TEST(uct_settings, a_device_is_the_one_that_is_set) {
    for (const auto* value : {"1", "0000:1a:00.0", "module:1"}) {
        const setting chosen("UCX_GAUDI_COPY_DEVICE", value);
        const memory_domain domain("gaudi_copy", "gaudi_copy");
        const allocated memory(domain, 4096);
        EXPECT_EQ(device_at(memory.number())->info().bus_id, "0000:1a:00.0") << value;
    }
}

} // namespace
