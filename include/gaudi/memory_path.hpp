// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gaudi {

/// How a NIC accesses memory.
enum class memory_path : std::uint8_t {
    host,      ///< registered host memory
    zero_copy, ///< device memory, registered through its DMA-BUF
    staged     ///< device memory, copied through pinned host memory by the device's engines
};
/// The number of values of memory_path.
constexpr std::size_t memory_paths = 3;
/// "host", "zero-copy" or "staged".
[[nodiscard]] std::string_view name_of(memory_path path);

} // namespace gaudi
