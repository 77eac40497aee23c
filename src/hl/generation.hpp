// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>

#include "abi/hlthunk.h"

#include <cstdint>
#include <optional>
#include <span>

namespace gaudi {

// The export function of hl-thunk that a generation needs.
enum class export_call { physical, mapped };

// What differs between generations, one row each. The evidence is in docs/gotchas.md.
struct generation_traits {
    gaudi::generation generation;
    export_call exports;
    // Every device has the same virtual address space. Each open device places its memory into a slice of its
    // own, in the range that the driver leaves to hints, so that an address identifies its device. 0: no MMU.
    std::uint64_t slice_base;
    std::uint64_t slice_size;
    std::uint64_t default_chunk;
    // All addresses that memory of this generation may have; 0: physical addresses, which host memory may
    // have as well.
    std::uint64_t space_base, space_size;
    // Queues of the submission ioctl; empty: the driver offers none to programs.
    std::span<const std::uint32_t> down_queues, up_queues, device_queues;
    bool user_command_buffers; // in mapped host memory; otherwise allocated by the driver
    unsigned max_in_flight;    // submissions, counted from the oldest unfinished one
};

[[nodiscard]] const generation_traits& traits_of(generation value);
[[nodiscard]] std::optional<generation> generation_of(hlthunk_device_name name);

} // namespace gaudi
