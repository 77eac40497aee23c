// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>

#include "src/hl/generation.hpp"

#include <cstdint>
#include <span>

namespace gaudi {

// Whose allocation it is: ours, by address of its mapping, or part of a pool that SynapseAI took and mapped.
enum class memory_origin { own, foreign_pool };

// The decision, as a table: for each generation and origin the call, what it wants as address, and whether a
// window may begin behind that address. The same table is in docs/dmabuf-export.md.
struct export_rule {
    gaudi::generation generation;
    memory_origin origin;
    export_call call;
    bool by_base; // true: base of the mapping plus offset; false: the window's own address, offset impossible
};
[[nodiscard]] std::span<const export_rule> export_rules();

// What is to be exported: [address, address + length) inside memory that begins at base.
struct export_request {
    gaudi::generation generation;
    memory_origin origin;
    device_address base;
    std::uint64_t base_length; // what the driver mapped, rounded to its pages
    device_address address;
    std::uint64_t length;
};

// The driver's arguments, and how the result is to be used.
struct export_plan {
    export_call call;
    std::uint64_t call_address;
    std::uint64_t call_size;     // multiple of 4096
    std::uint64_t call_offset;   // multiple of 4096; 0 for the physical call
    std::uint64_t dmabuf_offset; // where the request begins in the DMA-BUF
    device_address iova;
    std::uint64_t length;
};

// The one place where the choice is made. errc::size_zero, range_leaves_allocation, alignment_invalid.
[[nodiscard]] result<export_plan> plan_export(const export_request& request);

} // namespace gaudi
