// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/address_slice.hpp"

#include "src/os/round_up.hpp"

namespace gaudi {
namespace {

constexpr std::uint64_t low_bits = (1ULL << 48) - 1;

// The driver aligns within the low 48 bits, and its page need not be a power of two.
std::uint64_t align_address(std::uint64_t address, std::uint64_t page) {
    return (address & ~low_bits) | round_up(address & low_bits, page);
}

} // namespace

address_slice::address_slice(std::uint64_t begin, std::uint64_t end, std::uint64_t page)
    : begin_(align_address(begin, page)), end_(end), page_(page) {}

std::uint64_t address_slice::find_gap(std::uint64_t bytes, std::uint64_t skip) const {
    auto cursor = begin_ + round_up(skip, page_);
    for (auto next = taken_.lower_bound(cursor); next != taken_.end() && next->first < end_; ++next) {
        if (next->first - cursor >= bytes)
            return cursor;
        cursor = next->first + next->second;
    }
    return cursor < end_ && end_ - cursor >= bytes ? cursor : 0;
}

} // namespace gaudi
