// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/unique_fd.hpp"
#include "tests/rdma/rdma_test.hpp"
#include "tests/support/child.hpp"
#include "tests/support/hlthunk_functions.h"

#include <sys/mman.h>

namespace {

using namespace testing_support;

class registration_test : public rdma_test {
protected:
    void open(const registration_limits& limits = {}) {
        left.gaudi = expect(open_device(by_index{0}));
        left.nic = expect(open_nic({}, limits));
    }
    result<local_region> region_of(const device_buffer& buffer) {
        return left.nic->region(*left.gaudi, buffer);
    }
};

TEST_F(registration_test, a_chunk_goes_back_to_the_driver_with_its_registration) {
    open();
    std::vector<device_buffer> chunks;
    for (int i = 0; i < 4; ++i) {
        chunks.push_back(expect(left.gaudi->heap().allocate(700 << 20)));
        (void)expect(region_of(chunks.back()));
    }
    EXPECT_EQ(left.nic->statistics().regions, 4U);
    chunks.clear();
    left.gaudi->heap().trim();
    EXPECT_EQ(left.gaudi->heap().statistics().chunks, 0U) << "a registration would keep its memory busy";
    EXPECT_EQ(left.nic->statistics().regions, 0U);
}

TEST_F(registration_test, a_lease_keeps_its_chunk) {
    open();
    auto buffer = expect(left.gaudi->heap().allocate(4096));
    auto lease = expect(region_of(buffer));
    buffer = {};
    left.gaudi->heap().trim();
    EXPECT_EQ(left.gaudi->heap().statistics().chunks, 1U);
    lease = {};
    left.gaudi->heap().trim();
    EXPECT_EQ(left.gaudi->heap().statistics().chunks, 0U);
}

TEST_F(registration_test, the_least_recently_used_is_evicted_at_the_limit) {
    open({.bytes = 1ULL << 40, .regions = 2});
    const auto a = expect(left.gaudi->heap().allocate(700 << 20)),
               b = expect(left.gaudi->heap().allocate(700 << 20)),
               c = expect(left.gaudi->heap().allocate(700 << 20));
    (void)expect(region_of(a));
    (void)expect(region_of(b));
    (void)expect(region_of(a)); // b is now the least recently used
    (void)expect(region_of(c));
    EXPECT_EQ(left.nic->statistics().evictions, 1U);
    const auto misses = left.nic->statistics().misses;
    (void)expect(region_of(a));
    EXPECT_EQ(left.nic->statistics().misses, misses);
    const auto held_a = expect(region_of(a)), held_c = expect(region_of(c));
    const auto refused = left.nic->region(*left.gaudi, b, path_policy::require_zero_copy);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("2 regions of 2"), std::string::npos)
        << refused.error().message();
}

// A lookup by address has a fast path for the chunk of the previous lookup. Its results must be the same.
class last_chunk_test : public registration_test {
protected:
    result<local_region> region_at(device_address address, std::uint64_t length = 8) {
        return left.nic->region(*left.gaudi, address, length);
    }
};

TEST_F(last_chunk_test, serves_every_buffer_in_it) {
    open();
    const auto a = expect(left.gaudi->heap().allocate(4096)), b = expect(left.gaudi->heap().allocate(4096));
    for (int round = 0; round < 3; ++round)
        for (const auto* each : {&a, &b}) {
            const auto region = expect(region_at(each->address() + 8));
            EXPECT_EQ(region.address(), (each->address() + 8).value());
            EXPECT_EQ(region.length(), 8U);
        }
    EXPECT_EQ(left.nic->statistics().misses, 1U);
    EXPECT_EQ(left.nic->statistics().hits, 5U);
}

TEST_F(last_chunk_test, does_not_serve_what_is_not_allocated) {
    open();
    const auto kept = expect(left.gaudi->heap().allocate(4096)); // keeps the chunk allocated
    auto freed = expect(left.gaudi->heap().allocate(4096));
    const auto at = freed.address();
    (void)expect(region_at(at));
    (void)expect(region_at(at));
    EXPECT_EQ(region_at(at + 4090).error().code(), errc::range_leaves_allocation);
    freed = {};
    EXPECT_EQ(region_at(at).error().code(), errc::not_allocated);
    (void)expect(region_at(kept.address()));
}

TEST_F(last_chunk_test, is_another_when_it_went) {
    open();
    std::uint32_t before = 0;
    for (int round = 0; round < 3; ++round) {
        auto buffer = expect(left.gaudi->heap().allocate(700 << 20));
        for (int i = 0; i < 2; ++i) {
            const auto key = expect(region_at(buffer.address())).local_key();
            EXPECT_TRUE(i == 0 ? key != before : key == before);
            before = key;
        }
        buffer = {};
        left.gaudi->heap().trim();
        EXPECT_EQ(left.gaudi->heap().statistics().chunks, 0U);
    }
    EXPECT_EQ(left.nic->statistics().misses, 3U);
}

TEST_F(last_chunk_test, is_released_when_memory_is_short) {
    open({.bytes = 1ULL << 40, .regions = 1});
    const auto a = expect(left.gaudi->heap().allocate(700 << 20)),
               b = expect(left.gaudi->heap().allocate(700 << 20));
    for (int round = 0; round < 2; ++round)
        for (const auto* each : {&a, &b})
            for (int i = 0; i < 2; ++i)
                EXPECT_EQ(expect(region_at(each->address())).address(), each->address().value());
    EXPECT_EQ(left.nic->statistics().misses, 4U);
    EXPECT_EQ(left.nic->statistics().evictions, 3U);
}

TEST_F(last_chunk_test, is_not_of_another_device) {
    open();
    const auto other = expect(open_device(by_index{1}));
    const auto buffer = expect(left.gaudi->heap().allocate(4096));
    (void)expect(region_at(buffer.address()));
    (void)expect(region_at(buffer.address()));
    EXPECT_EQ(left.nic->region(*other, buffer.address(), 8).error().code(), errc::wrong_device);
}

TEST_F(registration_test, bytes_are_bounded_too) {
    open({.bytes = 1ULL << 30, .regions = 100});
    const auto a = expect(left.gaudi->heap().allocate(700 << 20)),
               b = expect(left.gaudi->heap().allocate(700 << 20));
    (void)expect(region_of(a));
    (void)expect(region_of(b));
    const auto counts = left.nic->statistics();
    EXPECT_EQ(counts.regions, 1U);
    EXPECT_EQ(counts.evictions, 1U);
    EXPECT_LE(counts.bytes, 1ULL << 30);
}

TEST_F(registration_test, host_memory_is_shared_while_in_use_and_forgotten_after) {
    open();
    std::vector<std::byte> memory(65536);
    auto first = expect(left.nic->region(memory));
    {
        const auto second = expect(left.nic->region(memory));
        EXPECT_EQ(second.local_key(), first.local_key());
    }
    EXPECT_EQ(left.nic->statistics().hits, 1U);
    first = {};
    EXPECT_EQ(left.nic->statistics().regions, 0U) << "it might be unmapped next";
    EXPECT_EQ(left.nic->region(std::span<std::byte>{}).error().code(), errc::size_zero);
}

TEST_F(registration_test, a_lost_device_is_not_registered) {
    open();
    const auto buffer = expect(left.gaudi->heap().allocate(4096));
    (void)expect(region_of(buffer));
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_command_submission 1 reset"), 0);
    std::vector<std::byte> bytes(4096);
    auto copies = expect(left.gaudi->copies());
    if (auto begun = copies.write(buffer.address(), bytes))
        (void)begun->wait();
    gaudi_lab_arm_faults("");
    EXPECT_EQ(region_of(buffer).error().code(), errc::device_lost);
}

// labels: no_tsan
TEST_F(registration_test, a_child_has_no_part_in_it) {
    open();
    const auto buffer = expect(left.gaudi->heap().allocate(4096));
    const auto region = expect(region_of(buffer));
    child other([&] { return region_of(buffer).error().code() == errc::forked ? 0 : 1; });
    EXPECT_EQ(other.wait(), 0);
    EXPECT_TRUE(region_of(buffer));
}

TEST_F(registration_test, several_threads_at_once) {
    open();
    std::vector<std::thread> all;
    for (int t = 0; t < 4; ++t)
        all.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                const auto buffer = expect(left.gaudi->heap().allocate(4096));
                EXPECT_TRUE(region_of(buffer));
                if (i % 50 == 0)
                    left.nic->trim();
            }
        });
    for (auto& each : all)
        each.join();
}

TEST_F(registration_test, parts_stay_within) {
    open();
    const auto buffer = expect(left.gaudi->heap().allocate(4096));
    const auto region = expect(region_of(buffer));
    EXPECT_EQ(expect(region.part(96, 4000)).address(), region.address() + 96);
    EXPECT_EQ(region.part(97, 4000).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(region.part(~0ULL, 2).error().code(), errc::range_leaves_allocation);
    const auto key = expect(region.expose(remote_access::read));
    const auto& remote = key.region();
    EXPECT_EQ(expect(remote_region::decode(remote.encode())).address, remote.address);
    auto bytes = remote.encode();
    bytes.back() = std::byte{9};
    EXPECT_EQ(remote_region::decode(bytes).error().code(), errc::protocol_violated);
    EXPECT_EQ(remote_region::decode(std::span(bytes).first(5)).error().code(), errc::protocol_violated);
}

// Memory known only by a DMA-BUF descriptor, such as a GPU's. The test uses a descriptor of a virtual Gaudi.
TEST_F(registration_test, any_dmabuf_can_be_registered_and_moved) {
    constexpr std::size_t size = 100001, skip = 12345;
    equip(left, 0, memory_path::zero_copy, size);
    equip(right, 1, memory_path::zero_copy, size + skip);
    const auto window = expect(right.gaudi->export_memory(right.buffer.address() + skip, size));
    const std::uint64_t iova = 0x7000000000 + window.offset % 4096;
    right.region = expect(right.nic->region(window.fd, window.offset, size, iova));
    ::close(window.fd); // the region holds its own reference
    EXPECT_EQ(right.region.address(), iova);
    EXPECT_EQ(right.region.path(), memory_path::zero_copy);
    connect_both();
    const auto sent = pattern(size, 1);
    left.put(sent);
    auto taking = expect(right.link->receive(right.region));
    auto sending = expect(left.link->send(left.region));
    finish_all(taking, sending);
    expect(taking.wait(soon));
    expect(sending.wait(soon));
    std::vector<std::byte> seen(size + skip);
    expect(expect(expect(right.gaudi->copies()).read(seen, right.buffer.address())).wait());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), seen.begin() + skip));

    // A key gives access to exactly the bytes that it was made for.
    const auto key = expect(expect(right.region.part(4096, 8192)).expose(remote_access::read));
    left.put(pattern(size, 2));
    const auto into = expect(left.region.part(0, 8192));
    auto reading = expect(left.link->read(into, key.region()));
    finish_all(reading);
    expect(reading.wait(soon));
    EXPECT_TRUE(std::equal(sent.begin() + 4096, sent.begin() + 4096 + 8192, left.get().begin()));
    auto beyond = key.region();
    beyond.address += 1;
    auto refused = expect(left.link->read(into, beyond));
    finish_all(refused);
    EXPECT_EQ(refused.wait(soon).error().code(), errc::remote_access);

    left.link.reset();
    right.link.reset();
    const auto held = open_descriptors();
    right.region = {};
    EXPECT_LT(open_descriptors(), held) << "a region that is gone keeps the descriptor";
}

// Whatever is registered counts, as long as it is.
TEST_F(registration_test, any_dmabuf_counts_against_the_limits) {
    equip(right, 1, memory_path::zero_copy, 4 * 4096);
    left.nic = expect(open_nic({}, {.bytes = 3 * 4096, .regions = 8}));
    const auto window = expect(right.gaudi->export_memory(right.buffer.address(), 4 * 4096));
    const unique_fd descriptor(window.fd);
    const auto pages = [&](std::uint64_t count) {
        return left.nic->region(window.fd, window.offset, count * 4096, 0x7000000000);
    };
    auto one = expect(pages(1));
    const auto same = one;
    EXPECT_EQ(left.nic->statistics().regions, 1U);
    EXPECT_EQ(left.nic->statistics().bytes, 4096U);
    auto key = expect(one.expose(remote_access::read));
    EXPECT_EQ(left.nic->statistics().regions, 2U);
    EXPECT_EQ(left.nic->statistics().bytes, 2U * 4096);
    const auto refused = pages(2);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::registrations_exhausted) << refused.error().message();
    key = {};
    const auto two = expect(pages(2));
    EXPECT_EQ(left.nic->statistics().bytes, 3U * 4096);
    one = {};
    EXPECT_EQ(left.nic->statistics().regions, 2U) << "a copy of the region is left";
}

// The address of a DMA-BUF's region is the caller's choice and does not identify the memory.
TEST_F(registration_test, dmabufs_at_the_same_address_have_keys_of_their_own) {
    constexpr std::size_t size = 8192;
    equip(left, 0, memory_path::zero_copy, size);
    equip(right, 1, memory_path::zero_copy, 2 * size);
    right.put(pattern(2 * size, 1));
    const auto all = pattern(2 * size, 1);
    std::array<local_region, 2> regions;
    for (std::size_t i = 0; i < 2; ++i) {
        const auto window = expect(right.gaudi->export_memory(right.buffer.address() + i * size, size));
        regions[i] = expect(right.nic->region(window.fd, window.offset, size, 0x7000000000));
        ::close(window.fd);
    }
    right.region = regions[0];
    connect_both();
    const auto bytes_read_through = [&](const remote_region& remote) {
        left.put(pattern(size, 9));
        auto reading = expect(left.link->read(left.region, remote));
        finish_all(reading);
        expect(reading.wait(soon));
        return left.get();
    };
    const auto first = expect(regions[0].expose(remote_access::read)),
               second = expect(regions[1].expose(remote_access::read));
    EXPECT_NE(first.region().key, second.region().key);
    for (std::size_t i = 0; i < 2; ++i) {
        const std::vector<std::byte> own(all.begin() + static_cast<std::ptrdiff_t>(i * size),
                                         all.begin() + static_cast<std::ptrdiff_t>((i + 1) * size));
        EXPECT_EQ(bytes_read_through((i == 0 ? first : second).region()), own) << "DMA-BUF " << i;
        expect(right.link->offer(regions[i], remote_access::read)); // the connection's keys differ as well
        EXPECT_EQ(bytes_read_through(expect(left.link->take_offer(soon))), own) << "offer of DMA-BUF " << i;
    }
    // A region that is gone leaves its key to nothing but its own memory.
    regions[0] = {};
    right.region = {};
    EXPECT_EQ(bytes_read_through(first.region()), std::vector<std::byte>(all.begin(), all.begin() + size));
}

TEST_F(registration_test, a_dmabuf_that_cannot_be_registered_says_why) {
    open();
    const auto buffer = expect(left.gaudi->heap().allocate(8192));
    const auto window = expect(left.gaudi->export_memory(buffer.address(), 8192));
    const auto code = [&](int fd, std::uint64_t offset, std::uint64_t length, std::uint64_t iova) {
        return left.nic->region(fd, offset, length, iova).error().code();
    };
    EXPECT_EQ(code(window.fd, window.offset, 0, window.offset), errc::size_zero);
    EXPECT_EQ(code(window.fd, window.offset, 8192, window.offset + 1), errc::alignment_invalid);
    EXPECT_EQ(code(window.fd, 1ULL << 50, 8192, 1ULL << 50), errc::registration_refused) << "beyond its end";
    EXPECT_EQ(code(-1, 0, 8192, 0), errc::registration_refused);
    ::close(window.fd);
}

} // namespace
