// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tools::rdma {

// A byte that is not what it should be.
struct difference {
    std::uint64_t offset;
    std::uint32_t expected, found;
    bool whole_element; // false: a single byte after the last whole element

    [[nodiscard]] std::string text() const;
};

// What a buffer holds: 32-bit elements (first + i) * factor, and after the last whole element their lowest
// bytes.
struct pattern {
    std::uint32_t first;
    std::uint32_t factor = 1;

    [[nodiscard]] std::uint32_t element(std::uint64_t index) const {
        return (first + static_cast<std::uint32_t>(index)) * factor;
    }
    // A piece that begins at `offset`, a multiple of 4, in a buffer of `size` bytes.
    void fill(std::span<std::byte> piece, std::uint64_t offset) const;
    [[nodiscard]] std::optional<difference> check(std::span<const std::byte> piece,
                                                  std::uint64_t offset) const;
    [[nodiscard]] pattern doubled() const { return {first, factor * 2}; }
};

// Doubles every element in place, wherever the piece begins.
void double_elements(std::span<std::byte> piece);

} // namespace tools::rdma
