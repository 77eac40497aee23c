// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/process.hpp"

namespace lab::hca {

constexpr std::uint64_t look_around_ns = 1000000000;

// What the guard does when it wakes: flushes queue pairs that a peer broke, tells the program what happened,
// runs requests whose time has come or has run out. Returns when it must be called again at the latest.
[[nodiscard]] std::uint64_t keep_house(process& home);

} // namespace lab::hca
