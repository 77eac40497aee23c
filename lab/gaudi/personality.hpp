// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <cstdint>
#include <string_view>

namespace lab::gaudi {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;
constexpr std::uint64_t host_page = 4096;
constexpr std::uint64_t host_huge_page = 2 * mib;

struct address_range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    [[nodiscard]] bool contains(std::uint64_t address) const { return address >= begin && address < end; }
    [[nodiscard]] bool contains(std::uint64_t address, std::uint64_t size) const {
        return contains(address) && size <= end - address;
    }
};

// How the generations differ: one row each, facts only. See docs/gotchas.md for those that surprise.
struct personality {
    lab::generation generation;
    std::uint32_t device_name; // enum hlthunk_device_name
    std::uint32_t pci_id;
    std::uint8_t revision;
    std::string_view card_name;

    bool dram_mmu;             // false: addresses are physical and the user manages the memory
    std::uint64_t hbm_size;    // bytes that exist, from HBM offset 0
    std::uint64_t dram_base;   // as reported; without an MMU also the first user byte's HBM offset
    std::uint64_t dram_size;   // as reported
    std::uint64_t dram_page;   // granularity of allocation; on Gaudi2 not a power of two
    std::uint64_t page_orders; // page sizes a caller may choose, as a mask of log2; 0: only dram_page
    address_range dram_va;
    address_range dram_hint_va; // avoided unless a hint asks for it

    std::uint64_t sram_base;
    std::uint64_t sram_size;
    std::uint64_t cfg_base;
    std::uint64_t cfg_size;
    address_range host_va;
    address_range host_hint_va; // avoided unless a hint asks for it
    address_range host_huge_va;

    unsigned queues;        // 0: none that a user may submit to
    unsigned max_in_flight; // power of two
    unsigned cs_timeout_ms;
    bool reset_on_release; // contents of HBM and SRAM are lost at the last close
    std::uint32_t first_sob;
    std::uint32_t first_monitor;
    std::uint32_t first_cq;
    std::uint16_t first_interrupt;
    std::uint16_t interrupts;
};

// The row of the generation, with the changes of the lab description.
[[nodiscard]] personality personality_of(const gaudi_description& description);

} // namespace lab::gaudi
