// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace testing_support {

// Bytes that differ with the seed.
inline std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
    std::vector<std::byte> made(size);
    std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
    for (auto& each : made) {
        state = state * 6364136223846793005 + 1442695040888963407;
        each = static_cast<std::byte>(state >> 56);
    }
    return made;
}

} // namespace testing_support
