// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace gaudi {

// Rounds up to the next multiple. It divides instead of masking: a Gaudi2 page is not a power of two.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

} // namespace gaudi
