// SPDX-License-Identifier: BSD-3-Clause
// What the settings of gaudi_copy do. Runs in the lab, under either UCX.
#include "tests/ucx/uct_case.hpp"

#include <gaudi/device.hpp>

#include <algorithm>
#include <cstdlib>

namespace {

using namespace testing_ucx;

class setting {
public:
    setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~setting() { ::unsetenv(name_); }
    setting(const setting&) = delete;
    setting& operator=(const setting&) = delete;

private:
    const char* name_;
};

std::shared_ptr<gaudi::device> device_of(const allocated& memory) {
    return gaudi::find_open_device(*gaudi::known_memory().device_of(gaudi::device_address(memory.number())));
}

TEST(uct_settings, the_heap_takes_chunks_of_the_size_that_is_set) {
    for (const auto& [value, bytes] : {std::pair("64m", 64ULL << 20), std::pair("256m", 256ULL << 20)}) {
        const setting chunk("UCX_GAUDI_COPY_HEAP_CHUNK", value);
        const memory_domain domain("gaudi_copy", "gaudi_copy");
        const allocated memory(domain, 4096);
        const auto device = device_of(memory);
        const auto page = device->info().allocation_page;
        const auto held = device->heap().statistics();
        EXPECT_EQ(held.chunks, 1U);
        EXPECT_EQ(held.chunk_bytes, (bytes + page - 1) / page * page) << value;
    }
}

TEST(uct_settings, a_large_copy_uses_as_many_queues_as_are_set) {
    constexpr std::size_t large = 64 << 20;
    auto bytes = numbered(large, 1);
    for (const auto& [value, number] : {std::pair("1", 1), std::pair("3", 3), std::pair("4", 4)}) {
        const setting queues("UCX_GAUDI_COPY_QUEUES", value);
        const memory_domain domain("gaudi_copy", "gaudi_copy");
        const allocated memory(domain, large);
        copier copies(domain);
        ASSERT_EQ(complete(copies, true, bytes.data(), large, memory.number()), UCS_OK);
        const auto used = gaudi::expect(device_of(memory)->copies()).queues();
        EXPECT_EQ(std::count_if(used.begin(), used.end(), [](const auto& each) { return each.bytes > 0; }),
                  number);
    }
}

TEST(uct_settings, a_device_is_the_one_that_is_set) {
    for (const auto* value : {"1", "0000:1a:00.0", "module:1"}) {
        const setting chosen("UCX_GAUDI_COPY_DEVICE", value);
        const memory_domain domain("gaudi_copy", "gaudi_copy");
        const allocated memory(domain, 4096);
        EXPECT_EQ(device_of(memory)->info().bus_id, "0000:1a:00.0") << value;
    }
}

} // namespace
