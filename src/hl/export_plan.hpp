// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>

#include "src/hl/generation.hpp"

#include <cstdint>
#include <span>

namespace gaudi {

// Who allocated the memory: this library, or SynapseAI, whose allocations are parts of a pool that it mapped
// as a whole.
enum class memory_origin { own, foreign_pool };

// How memory is exported, as a table: for each generation and origin the call, the address that it takes, and
// whether a window may begin after that address. docs/dmabuf-export.md has the same table.
struct export_rule {
    gaudi::generation generation;
    memory_origin origin;
    export_call call;
    bool by_base; // true: base of the mapping plus offset; false: the window's own address, no offset
};
[[nodiscard]] std::span<const export_rule> export_rules();

// What to export: [address, address + length) within memory that begins at base.
struct export_request {
    gaudi::generation generation;
    memory_origin origin;
    device_address base;
    std::uint64_t base_length; // what the driver mapped, in whole pages of its own
    device_address address;
    std::uint64_t length;
};

// The arguments of the driver's call, and how to use its result.
struct export_plan {
    export_call call;
    std::uint64_t call_address;
    std::uint64_t call_size;     // multiple of 4096
    std::uint64_t call_offset;   // multiple of 4096; 0 for the physical call
    std::uint64_t dmabuf_offset; // where the request begins in the DMA-BUF
    device_address iova;
    std::uint64_t length;
    bool whole; // the call names all of the mapping, or takes no offset
};

// Chooses the call and its arguments. errc::size_zero, range_leaves_allocation, alignment_invalid.
[[nodiscard]] result<export_plan> plan_export(const export_request& request);

} // namespace gaudi
