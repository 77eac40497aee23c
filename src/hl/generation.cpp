// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/generation.hpp"

#include <gaudi/device_info.hpp>

namespace gaudi {
namespace {

constexpr std::uint64_t gib = 1ULL << 30;
constexpr std::uint64_t slice =
    128 * gib; // more than any generation has; the hint range of 32 TB holds 256 of them

constexpr std::uint64_t one_space = 1ULL << 48;

constexpr std::uint32_t gaudi1_down[] = {0, 1, 2, 3}, gaudi1_up[] = {4, 5, 6, 7};
// Two streams of the PCI engine for this direction; with more queues also those of the engine for the other
// direction.
constexpr std::uint32_t gaudi2_down[] = {0, 1, 4, 5}, gaudi2_up[] = {4, 5, 0, 1};
// Copies within the device use other streams of the PCI engines. The device's own engines (EDMA) take copies
// only from a lower command buffer, and a submission may complete before that buffer has run: they would need
// a sync object and a fence.
constexpr std::uint32_t gaudi2_device[] = {2, 6, 3, 7};

// Address spaces as the vendor's public headers have them (HabanaAI/Intel_Gaudi3_Software): DRAM_PHYS_BASE
// and the range reserved for hints in specs/gaudi2/gaudi2.h and specs_h9/gaudi3/gaudi3.h.
const generation_traits table[] = {
    // On gen1 copies within the device use the down queues as well: the internal queues do not accept a
    // submission by themselves.
    {generation::gaudi, export_call::physical, 0, 0, gib, 0, 0, gaudi1_down, gaudi1_up, gaudi1_down, false,
     16384},
    {generation::gaudi2, export_call::mapped, 0x1001500000000000, slice, 768ULL << 20, 0x1001000000000000,
     one_space, gaudi2_down, gaudi2_up, gaudi2_device, true, 64},
    // From the middle of the hint range on: SCAL maps SynapseAI's memory from its beginning on.
    {generation::gaudi3,
     export_call::mapped,
     0x0201F00000000000,
     slice,
     gib,
     0x0201000000000000,
     one_space,
     {},
     {},
     {},
     true,
     64},
};

constexpr std::string_view names[] = {"gaudi", "gaudi2", "gaudi3"};

} // namespace

std::string_view name_of(generation value) {
    return names[static_cast<int>(value)];
}

const generation_traits& traits_of(generation value) {
    return table[static_cast<int>(value)];
}

bool has_user_queues(generation value) {
    return !traits_of(value).down_queues.empty();
}

std::optional<generation> generation_of(hlthunk_device_name name) {
    switch (name) {
    case HLTHUNK_DEVICE_GAUDI:
    case HLTHUNK_DEVICE_GAUDI_HL2000M:
        return generation::gaudi;
    case HLTHUNK_DEVICE_GAUDI2:
    case HLTHUNK_DEVICE_GAUDI2B:
    case HLTHUNK_DEVICE_GAUDI2C:
    case HLTHUNK_DEVICE_GAUDI2D:
        return generation::gaudi2;
    case HLTHUNK_DEVICE_GAUDI3:
        return generation::gaudi3;
    default:
        return std::nullopt;
    }
}

} // namespace gaudi
