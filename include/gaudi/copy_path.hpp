// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gaudi {

/// How the bytes of a copy get from one place to the other, in the order in which the paths are tried.
enum class copy_path : std::uint8_t {
    host_copy,     ///< the CPU copies between two places in host memory
    engine,        ///< the copy engine of the device
    owner_context, ///< the engine of another process's device, through the descriptor that its owner passed
    peer_dmabuf,   ///< an engine accesses another device's memory, which its driver imported
    nic_loopback,  ///< a NIC reads and writes memory of its own machine
    staged,        ///< through pinned host memory, by one engine after the other
    owner_proxy    ///< the owner copies, through host memory that both processes map
};
/// The number of values of copy_path.
constexpr std::size_t copy_paths = 7;
/// The path in words, as in "the device's engine".
[[nodiscard]] std::string_view name_of(copy_path path);
/// Whether the bytes go directly from one place to the other: neither staged nor copied by the owner.
[[nodiscard]] constexpr bool is_zero_copy(copy_path path) {
    return path != copy_path::staged && path != copy_path::owner_proxy;
}

} // namespace gaudi
