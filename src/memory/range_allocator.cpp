// SPDX-License-Identifier: BSD-3-Clause
// Two-level segregated fit: free blocks are listed by size class, two bitmaps say which lists have any, and
// neighbours merge at once. Blocks are records of this process, because the CPU cannot write to the memory
// itself (gotcha 12).
#include "src/memory/range_allocator.hpp"

#include "src/os/round_up.hpp"

#include <algorithm>
#include <bit>

namespace gaudi {
range_allocator::range_allocator(std::uint64_t size, void* owner) : owner_(owner) {
    block* all = new_block();
    *all = {0, size / granule * granule, nullptr, nullptr, nullptr, nullptr, owner_, true, false};
    link(all);
}

// Position of the highest bit; sizes are never below one granule.
unsigned range_allocator::log2_of(std::uint64_t units) {
    return 63U - static_cast<unsigned>(std::countl_zero(units | 1));
}

range_allocator::size_class range_allocator::class_of(std::uint64_t size) {
    const auto units = size / granule;
    const auto first = log2_of(units);
    const auto second =
        first >= second_bits ? units >> (first - second_bits) : units << (second_bits - first);
    return {first, static_cast<unsigned>(second) & (seconds - 1)};
}

range_allocator::size_class range_allocator::class_at_least(std::uint64_t size) {
    const auto units = size / granule;
    const auto first = log2_of(units);
    // Rounded up to the next class boundary.
    const auto step = first >= second_bits ? 1ULL << (first - second_bits) : 1;
    return class_of((units + step - 1) / step * step * granule);
}

range_allocator::block* range_allocator::find(std::uint64_t size) {
    auto [first, second] = class_at_least(size);
    if (first < firsts) {
        if (const auto seconds_left = second_map_[first] & (~0U << second); seconds_left != 0)
            return lists_[first][static_cast<unsigned>(std::countr_zero(seconds_left))];
        const auto firsts_left = first + 1 < 64 ? first_map_ & (~0ULL << (first + 1)) : 0;
        if (firsts_left != 0) {
            first = static_cast<unsigned>(std::countr_zero(firsts_left));
            return lists_[first][static_cast<unsigned>(std::countr_zero(second_map_[first]))];
        }
    }
    // A block of the class below the boundary may still be large enough: try these before reporting "no
    // room".
    const auto exact = class_of(size);
    for (block* candidate = lists_[exact.first][exact.second]; candidate != nullptr;
         candidate = candidate->next_free)
        if (candidate->size >= size)
            return candidate;
    return nullptr;
}

void range_allocator::link(block* added) {
    const auto [first, second] = class_of(added->size);
    block*& head = lists_[first][second];
    added->free = true;
    added->previous_free = nullptr;
    added->next_free = head;
    if (head != nullptr)
        head->previous_free = added;
    head = added;
    second_map_[first] |= 1U << second;
    first_map_ |= 1ULL << first;
}

void range_allocator::unlink(block* taken) {
    const auto [first, second] = class_of(taken->size);
    if (taken->next_free != nullptr)
        taken->next_free->previous_free = taken->previous_free;
    if (taken->previous_free != nullptr)
        taken->previous_free->next_free = taken->next_free;
    else if ((lists_[first][second] = taken->next_free) == nullptr) {
        second_map_[first] &= ~(1U << second);
        if (second_map_[first] == 0)
            first_map_ &= ~(1ULL << first);
    }
    taken->free = false;
}

range_allocator::block* range_allocator::new_block() {
    // A deque never moves its elements: neighbours and the heap point to them.
    if (spare_ == nullptr)
        return &blocks_.emplace_back();
    block* reused = spare_;
    spare_ = reused->next_free;
    return reused;
}

range_allocator::block* range_allocator::split(block* from, std::uint64_t at) {
    block* rest = new_block();
    *rest = {from->offset + at, from->size - at, from, from->after, nullptr, nullptr, owner_, true, false};
    if (rest->after != nullptr)
        rest->after->before = rest;
    from->after = rest;
    from->size = at;
    link(rest);
    return rest;
}

range_allocator::block* range_allocator::allocate(std::uint64_t size, std::uint64_t alignment) {
    size = round_up(size, granule);
    const auto serves = [&](const block* candidate) {
        return candidate != nullptr &&
               round_up(candidate->offset, alignment) + size <= candidate->offset + candidate->size;
    };
    // First the block of this size class that was freed last: programs often allocate the same size again.
    const auto own = class_of(size);
    block* fitting = lists_[own.first][own.second];
    if (!serves(fitting)) // with room for the worst misalignment, so that any block found serves
        fitting = find(size + alignment - granule);
    if (fitting == nullptr && alignment > granule) // a block that happens to be aligned
        fitting = find(size);
    if (!serves(fitting))
        return nullptr;
    unlink(fitting);
    if (const auto front = round_up(fitting->offset, alignment) - fitting->offset; front != 0) {
        block* rest = split(fitting, front);
        unlink(rest);
        link(fitting);
        fitting = rest;
    }
    if (fitting->size > size)
        split(fitting, size);
    used_ += fitting->size;
    fitting->released = false;
    return fitting;
}

void range_allocator::free(block* returned) {
    used_ -= returned->size;
    const auto drop = [this](block* merged) {
        merged->next_free = spare_;
        spare_ = merged;
    };
    if (block* next = returned->after; next != nullptr && next->free) {
        unlink(next);
        returned->size += next->size;
        returned->after = next->after;
        if (next->after != nullptr)
            next->after->before = returned;
        drop(next);
    }
    if (block* previous = returned->before; previous != nullptr && previous->free) {
        unlink(previous);
        previous->size += returned->size;
        previous->after = returned->after;
        if (returned->after != nullptr)
            returned->after->before = previous;
        drop(returned);
        returned = previous;
    }
    link(returned);
}

std::uint64_t range_allocator::largest_free() const {
    if (first_map_ == 0)
        return 0;
    const auto first = static_cast<unsigned>(std::bit_width(first_map_) - 1);
    const auto second = static_cast<unsigned>(std::bit_width(second_map_[first]) - 1);
    std::uint64_t largest = 0;
    for (const block* listed = lists_[first][second]; listed != nullptr; listed = listed->next_free)
        largest = std::max(largest, listed->size);
    return largest;
}

} // namespace gaudi
