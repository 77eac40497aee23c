// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

namespace lab {

// memmove; a `large` copy bypasses the cache where this machine is faster that way. Earlier stores become
// visible before those of the copy, and these before later ones.
void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t length, bool large);

} // namespace lab
