// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: dmabuf
#include <gaudi/gaudi.hpp>

#include "tests/support/child.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"

#include <fcntl.h>
#include <map>
#include <random>
#include <seccomp.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace gaudi;
using namespace testing_support;

class heap_test : public test_lab {
protected:
    void SetUp() override {
        auto opened = open_device(by_index{0});
        ASSERT_TRUE(opened) << opened.error().message();
        device_ = *opened;
    }
    void TearDown() override {
        device_.reset();
        test_lab::TearDown();
    }
    device_heap& heap() { return device_->heap(); }
    std::shared_ptr<device> device_;
};

TEST_F(heap_test, many_buffers_one_allocation_one_export) {
    std::vector<device_buffer> buffers;
    for (int i = 0; i < 1000; ++i)
        buffers.push_back(*heap().allocate(64 + static_cast<std::uint64_t>(i)));
    const int fd = buffers[0].dmabuf()->fd;
    for (const auto& buffer : buffers) {
        const auto window = buffer.dmabuf();
        ASSERT_TRUE(window);
        EXPECT_EQ(window->fd, fd);
        EXPECT_EQ(window->iova, buffer.address());
        EXPECT_EQ(window->offset % 4096, window->iova.value() % 4096);
    }
    const auto statistics = heap().statistics();
    EXPECT_EQ(statistics.chunks, 1U);
    EXPECT_EQ(statistics.exports, 1U);
    EXPECT_EQ(statistics.buffers, 1000U);
    EXPECT_EQ(statistics.chunk_bytes, 768ULL << 20);
}

TEST_F(heap_test, bad_requests_are_typed) {
    EXPECT_EQ(heap().allocate(0).error().code(), errc::size_zero);
    EXPECT_EQ(heap().allocate(200ULL << 30).error().code(), errc::size_beyond_memory);
    EXPECT_EQ(heap().allocate(64, 100).error().code(), errc::alignment_invalid);
    EXPECT_EQ(heap().allocate(64, 1ULL << 30).error().code(), errc::alignment_invalid);
    EXPECT_EQ(heap().statistics().buffers, 0U);
}

TEST_F(heap_test, exhaustion_and_recovery) {
    std::vector<device_buffer> buffers;
    for (;;) {
        auto next = heap().allocate(8ULL << 30);
        if (!next) {
            EXPECT_EQ(next.error().code(), errc::memory_exhausted) << next.error().message();
            break;
        }
        buffers.push_back(std::move(*next));
    }
    EXPECT_EQ(buffers.size(), 11U) << "8 GiB take 11 pages of 768 MB; 127 pages hold 11 of them";
    buffers.clear();
    EXPECT_TRUE(heap().allocate(90ULL << 30));
}

// labels: detection ucm
TEST_F(heap_test, double_free_and_foreign_addresses) {
    auto buffer = *heap().allocate(4096);
    const auto address = buffer.release();
    EXPECT_EQ(heap().free(address + 64).error().code(), errc::not_allocated) << "inside";
    EXPECT_TRUE(heap().free(address));
    EXPECT_EQ(heap().free(address).error().code(), errc::not_allocated) << "twice";
    EXPECT_EQ(heap().free(device_address(0x1234)).error().code(), errc::not_allocated);
}

TEST_F(heap_test, memory_that_a_buffer_owns_is_not_freed_by_address) {
    auto buffer = *heap().allocate(4096);
    EXPECT_EQ(heap().free(buffer.address()).error().code(), errc::not_allocated);
    EXPECT_EQ(heap().statistics().buffers, 1U);
}

TEST_F(heap_test, a_buffer_keeps_its_device_open_for_this_process) {
    auto buffer = *heap().allocate(4096);
    device_.reset();
    const auto again = open_device(by_index{0});
    ASSERT_TRUE(again) << again.error().message();
    auto other = *(*again)->heap().allocate(4096);
    EXPECT_NE(other.address(), buffer.address());
    EXPECT_EQ((*again)->heap().statistics().buffers, 2U) << "one heap, not two on the same memory";
}

// labels: detection ucm
TEST_F(heap_test, known_memory_follows) {
    auto buffer = *heap().allocate(100);
    const auto address = buffer.address();
    const auto found = known_memory().find(address, 100);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->generation, buffer.generation());
    EXPECT_EQ(found->device_index, 0U);
    EXPECT_EQ(known_memory().find(address, 101).error().code(), errc::range_leaves_allocation);
    buffer = {};
    EXPECT_FALSE(known_memory().find(address));
    EXPECT_EQ(known_memory().device_of(address), 0U) << "the window stays while the device is open";
}

// labels: detection ucm
TEST_F(heap_test, addresses_of_two_devices_differ) {
    auto second = *open_device(by_index{1});
    auto here = *heap().allocate(4096), there = *second->heap().allocate(4096);
    EXPECT_NE(here.address(), there.address()) << "the driver's own choice would be the same for both";
    EXPECT_EQ(known_memory().find(there.address())->device_index, 1U);
}

TEST_F(heap_test, empty_chunks_go_back_to_the_driver) {
    {
        auto first = *heap().allocate(700ULL << 20), second = *heap().allocate(700ULL << 20),
             third = *heap().allocate(700ULL << 20);
        EXPECT_EQ(heap().statistics().chunks, 3U);
    }
    EXPECT_EQ(heap().statistics().chunks, 1U) << "one is kept warm";
    heap().trim();
    EXPECT_EQ(heap().statistics().chunks, 0U);
    EXPECT_EQ(device_->info().memory_free, device_->info().memory_total);
}

// Another mapping has the address that the heap asks for: the driver chooses others, which end with
// their chunks.
TEST_F(heap_test, chunks_at_addresses_of_the_drivers_choice_leave_no_window) {
    const int fd = device_->descriptor();
    const auto taken = hlthunk_device_memory_alloc(fd, 768ULL << 20, 0, false, false);
    const auto hint = heap().allocate(64)->address(); // where the next first chunk would be mapped
    heap().trim();
    ASSERT_EQ(hlthunk_device_memory_map(fd, taken, hint.value()), hint.value());
    auto small = *heap().allocate(4096);
    const auto begin = small.address();
    EXPECT_NE(begin, hint);
    EXPECT_TRUE(known_memory().window_at(begin, 4096));
    small = {};
    heap().trim();
    EXPECT_FALSE(known_memory().window_at(begin, 4096)) << "nothing is mapped there";
    const auto large = *heap().allocate(1ULL << 30);
    EXPECT_EQ(large.address(), begin);
    EXPECT_TRUE(known_memory().window_at(begin, 1ULL << 30));
    EXPECT_EQ(hlthunk_memory_unmap(fd, hint.value()), 0);
    EXPECT_EQ(hlthunk_device_memory_free(fd, taken), 0);
}

TEST_F(heap_test, a_chunk_whose_dmabuf_is_held_stays) {
    auto buffer = *heap().allocate(4096);
    const int region = ::dup(buffer.dmabuf()->fd); // a memory region holds such a reference
    buffer = {};
    heap().trim();
    EXPECT_EQ(heap().statistics().chunks, 1U) << "the driver refuses to unmap it";
    ::close(region);
    heap().trim();
    EXPECT_EQ(heap().statistics().chunks, 0U);
}

TEST_F(heap_test, never_hands_out_memory_twice) {
    std::mt19937_64 random(42);
    std::map<std::uint64_t, device_buffer> live;
    for (int step = 0; step < 20000; ++step) {
        if (live.size() < 2000 && (live.empty() || random() % 100 < 55)) {
            auto buffer = heap().allocate(1 + random() % (random() % 16 == 0 ? 4U << 20 : 4096U),
                                          64ULL << random() % 8);
            ASSERT_TRUE(buffer) << buffer.error().message();
            const auto begin = buffer->address().value(), end = begin + buffer->size();
            const auto next = live.lower_bound(begin);
            if (next != live.end()) {
                ASSERT_LE(end, next->first);
            }
            if (next != live.begin()) {
                ASSERT_LE(std::prev(next)->first + std::prev(next)->second.size(), begin);
            }
            live.emplace(begin, std::move(*buffer));
        } else
            live.erase(std::next(live.begin(), static_cast<long>(random() % live.size())));
    }
    live.clear();
    EXPECT_EQ(heap().statistics().buffer_bytes, 0U);
}

TEST_F(heap_test, threads) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            std::mt19937_64 random(i);
            std::vector<device_buffer> mine;
            for (int step = 0; step < 3000; ++step) {
                if (mine.size() < 50)
                    mine.push_back(std::move(*heap().allocate(1 + random() % 10000)));
                else
                    mine.erase(mine.begin() + static_cast<long>(random() % mine.size()));
                if (!mine.empty()) {
                    EXPECT_TRUE(mine.back().dmabuf());
                }
            }
        });
    for (auto& thread : threads)
        thread.join();
    EXPECT_EQ(heap().statistics().buffers, 0U);
}

TEST_F(heap_test, a_warm_heap_makes_no_system_call) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer makes system calls of its own";
#endif
    // seccomp kills the child at any system call except exit_group.
    child counted([] {
        const auto own = open_device(by_index{1});
        if (!own)
            return 3;
        std::vector<device_buffer> warm;
        for (int i = 0; i < 100; ++i)
            warm.push_back(*(*own)->heap().allocate(65536));
        if (!warm.back().dmabuf())
            return 4;
        warm.erase(warm.begin(), warm.begin() + 50);
        scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
        seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(exit_group), 0);
        if (seccomp_load(filter) != 0)
            return 2;
        for (int i = 0; i < 1000; ++i) {
            const auto buffer = (*own)->heap().allocate(65536);
            if (!buffer || !buffer->dmabuf())
                ::_exit(1);
        }
        ::_exit(0);
    });
    EXPECT_EQ(counted.wait(), 0);
}

} // namespace
