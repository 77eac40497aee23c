// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>

#include "abi/hlthunk.h"

#include <cstdint>
#include <optional>
#include <span>

namespace gaudi {

// Which export function of hl-thunk serves a generation.
enum class export_call { physical, mapped };

// How a generation differs for us: one row each. Evidence is in docs/gotchas.md.
struct generation_traits {
    gaudi::generation generation;
    export_call exports;
    // Every device has the same virtual address space. Each open device places its memory into a slice of its
    // own of the range that the driver leaves to hints, so that an address says which device it belongs to.
    // 0: no MMU.
    std::uint64_t slice_base;
    std::uint64_t slice_size;
    std::uint64_t default_chunk;
    // All addresses that memory of this generation may have; 0: physical ones, which a host may use as well.
    std::uint64_t space_base, space_size;
    // Queues of the submission ioctl; empty: the driver offers none.
    std::span<const std::uint32_t> down_queues, up_queues, device_queues;
    bool user_command_buffers; // in mapped host memory; otherwise the driver's own
    unsigned max_in_flight;    // counted from the oldest unfinished submission
};

[[nodiscard]] const generation_traits& traits_of(generation value);
[[nodiscard]] std::optional<generation> generation_of(hlthunk_device_name name);

} // namespace gaudi
