// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace gaudi {

// How a receiver tells its sender what it may send: a ring of 8-byte words in the sender's memory, written by
// the receiver's NIC. A receive of the user is one word with its whole length, then one word for every part
// that was posted to the NIC. Each word carries its lap, so that it is valid or not by itself: no counter, no
// order between words needed.
struct grant {
    static constexpr std::uint32_t ring_words = 1024;
    static constexpr std::uint64_t length_mask = (1ULL << 48) - 1;

    enum class kind : std::uint8_t { receive = 1, part = 2 };

    static std::uint64_t encode(std::uint64_t index, kind what, std::uint64_t length) {
        return lap_of(index) << 56 | static_cast<std::uint64_t>(what) << 48 | (length & length_mask);
    }
    // The word at a place of the ring, if it is the one with this index and of this kind; its length.
    static std::optional<std::uint64_t> decode(std::uint64_t word, std::uint64_t index, kind what) {
        if (word >> 56 != lap_of(index) || (word >> 48 & 0xff) != static_cast<std::uint64_t>(what))
            return {};
        return word & length_mask;
    }

private:
    // 1 to 255: fresh memory is 0.
    static std::uint64_t lap_of(std::uint64_t index) { return index / ring_words % 255 + 1; }
};

} // namespace gaudi
