// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gaudi {

// A checksum of bytes, to detect damage. Not cryptographic.
[[nodiscard]] inline std::uint64_t checksum64(const void* bytes, std::size_t count) {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (; count >= 8; count -= 8, at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 29;
    }
    for (; count > 0; --count, ++at)
        hash = (hash ^ *at) * 0x100000001b3;
    return hash;
}

} // namespace gaudi
