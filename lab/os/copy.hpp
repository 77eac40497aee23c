// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

namespace lab {

// memmove; what is `large` past the cache where this machine is faster so. Stores before it are visible
// before its own, and its own before those behind it.
void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t length, bool large);

} // namespace lab
