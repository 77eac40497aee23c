// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tools::doctor {

// The messages that doctor sends: long enough that the rate means something.
constexpr std::size_t message_bytes = 4 << 20;

inline std::vector<std::byte> pattern(unsigned seed) {
    std::vector<std::byte> made(message_bytes);
    std::uint32_t state = seed * 2654435761U + 1;
    for (auto& byte : made) {
        state = state * 1664525U + 1013904223U;
        byte = static_cast<std::byte>(state >> 24);
    }
    return made;
}

} // namespace tools::doctor
