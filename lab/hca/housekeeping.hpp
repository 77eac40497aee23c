// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/process.hpp"

namespace lab::hca {

constexpr std::uint64_t check_interval_ns = 1000000000;

// The work of the guard thread when it wakes: flushes queue pairs that a peer moved to the error state,
// raises asynchronous events, runs requests that are due or have timed out. Returns the latest time of the
// next call.
[[nodiscard]] std::uint64_t keep_house(process& home);

} // namespace lab::hca
