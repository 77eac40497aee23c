// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/personality.hpp"

#include "abi/hlthunk.h"

#include <algorithm>

namespace lab::gaudi {
namespace {

constexpr personality gaudi1 = {
    .generation = generation::gaudi,
    .device_name = HLTHUNK_DEVICE_GAUDI,
    .pci_id = 0x1000,
    .revision = 1,
    .card_name = "HL205",
    .dram_mmu = false,
    .hbm_size = 32 * gib,
    .dram_base = 0x20000000,
    .dram_size = 32 * gib - 512 * mib,
    .dram_page = 2 * mib,
    .page_orders = 0,
    .dram_va = {},
    .dram_hint_va = {},
    .sram_base = 0x7FF0000000,
    .sram_size = 20 * mib,
    .cfg_base = 0x7FFC000000,
    .cfg_size = 0x4000000,
    .host_va = {0x1000000000000, 0x3FF8000000000},
    .host_hint_va = {},
    .host_huge_va = {},
    .queues = 8,
    .max_in_flight = 16384,
    .cs_timeout_ms = 600000,
    .reset_on_release = false,
    .first_sob = 0,
    .first_monitor = 0,
    .first_cq = 0,
    .first_interrupt = 0,
    .interrupts = 0,
};

constexpr personality gaudi2 = {
    .generation = generation::gaudi2,
    .device_name = HLTHUNK_DEVICE_GAUDI2,
    .pci_id = 0x1020,
    .revision = 1,
    .card_name = "HL225",
    .dram_mmu = true,
    .hbm_size = 127 * 768 * mib,
    .dram_base = 0x1001001800000000,
    .dram_size = 127 * 768 * mib,
    .dram_page = 768 * mib,
    .page_orders = 0,
    .dram_va = {0x1001001800000000, 0x1001C00600000000},
    // RESERVED_VA_RANGE_FOR_ARC_ON_HBM in specs/gaudi2/gaudi2.h of HabanaAI/Intel_Gaudi3_Software
    .dram_hint_va = {0x1001500000000000, 0x1001700000000000},
    .sram_base = 0x1000FFFFFD000000,
    .sram_size = 48 * mib,
    .cfg_base = 0x1000007FF8000000,
    .cfg_size = 0x8000000,
    .host_va = {0xFFF0000100000000, 0xFFF0800000000000},
    .host_hint_va = {0xFFF077FFFFFF0000, 0xFFF0800000000000},
    .host_huge_va = {0xFFF0800000000000, 0xFFF1000000000000},
    .queues = 260,
    .max_in_flight = 64,
    .cs_timeout_ms = 30000,
    .reset_on_release = true,
    .first_sob = 413,
    .first_monitor = 289,
    .first_cq = 2,
    .first_interrupt = 48,
    .interrupts = 64,
};

// Sizes and the address where user memory starts are not public for this generation; the rest is.
constexpr personality gaudi3 = {
    .generation = generation::gaudi3,
    .device_name = HLTHUNK_DEVICE_GAUDI3,
    .pci_id = 0x1060,
    .revision = 1,
    .card_name = "HL325",
    .dram_mmu = true,
    .hbm_size = 127 * gib,
    .dram_base = 0x0201002000000000,
    .dram_size = 127 * gib,
    .dram_page = 32 * mib,
    .page_orders = 1ULL << 25 | 1ULL << 26 | 1ULL << 28 | 1ULL << 29 | 1ULL << 30 | 1ULL << 31,
    .dram_va = {0x0201002000000000, 0x0202000000000000},
    // the same range in specs_h9/gaudi3/gaudi3.h
    .dram_hint_va = {0x0201E00000000000, 0x0202000000000000},
    .sram_base = 0x0200FFFFF0000000,
    .sram_size = 96 * mib,
    .cfg_base = 0x0300007FF8000000,
    .cfg_size = 0x8000000,
    .host_va = {0xFF70000100000000, 0xFF70800000000000},
    .host_hint_va = {0xFF70780000000000, 0xFF70800000000000},
    .host_huge_va = {0xFFF0000000000000, 0xFFF0800000000000},
    .queues = 0,
    .max_in_flight = 64,
    .cs_timeout_ms = 30000,
    .reset_on_release = true,
    .first_sob = 0,
    .first_monitor = 0,
    .first_cq = 0,
    .first_interrupt = 0,
    .interrupts = 0,
};

} // namespace

personality personality_of(const gaudi_description& description) {
    auto values = description.generation == generation::gaudi    ? gaudi1
                  : description.generation == generation::gaudi3 ? gaudi3
                                                                 : gaudi2;
    if (description.hbm_pages != 0 && values.dram_mmu)
        values.hbm_size = values.dram_size =
            std::min(values.hbm_size, description.hbm_pages * values.dram_page);
    return values;
}

} // namespace lab::gaudi
