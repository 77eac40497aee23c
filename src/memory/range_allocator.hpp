// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <deque>

namespace gaudi {

// Allocates ranges of [0, size): two-level segregated fit with all bookkeeping outside the memory, which the
// CPU cannot access. Constant time; free neighbours merge at once, which bounds fragmentation. Not
// thread-safe.
class range_allocator {
public:
    static constexpr std::uint64_t granule = 64;

    struct block {
        std::uint64_t offset, size;
        block *before, *after;            // neighbours by address
        block *previous_free, *next_free; // in the list of its size class
        void* owner;                      // the chunk, set once
        bool free;
        bool released; // used by the heap: the buffer was given up, so free(address) may free it
    };

    range_allocator(std::uint64_t size, void* owner);
    range_allocator(const range_allocator&) = delete;
    range_allocator& operator=(const range_allocator&) = delete;

    // size > 0; alignment a power of two >= granule. nullptr: no room.
    [[nodiscard]] block* allocate(std::uint64_t size, std::uint64_t alignment);
    void free(block* returned);

    [[nodiscard]] bool empty() const { return used_ == 0; }
    [[nodiscard]] std::uint64_t used() const { return used_; }
    [[nodiscard]] std::uint64_t largest_free() const;

private:
    static constexpr unsigned second_bits = 4, seconds = 1U << second_bits, firsts = 40;
    struct size_class {
        unsigned first, second;
    };

    static unsigned log2_of(std::uint64_t units);
    static size_class class_of(std::uint64_t size);       // where a free block of this size is listed
    static size_class class_at_least(std::uint64_t size); // from where on every block is large enough
    block* find(std::uint64_t size);
    void link(block* added);
    void unlink(block* taken);
    block* new_block();
    // Splits a block after `at` bytes; returns the rest, which is free and listed.
    block* split(block* from, std::uint64_t at);

    std::deque<block> blocks_; // stable addresses
    block* spare_ = nullptr;
    void* owner_;
    std::uint64_t used_ = 0;
    std::uint64_t first_map_ = 0;
    std::array<std::uint32_t, firsts> second_map_{};
    std::array<std::array<block*, seconds>, firsts> lists_{};
};

} // namespace gaudi
