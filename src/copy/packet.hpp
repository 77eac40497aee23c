// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>

#include <cstdint>

namespace gaudi {

// LIN_DMA, the copy packet of every generation: only the addresses decide the direction.
struct lin_dma_packet {
    std::uint32_t size;
    std::uint32_t control;
    std::uint64_t source;
    std::uint64_t destination;
};
static_assert(sizeof(lin_dma_packet) == 24);

// The size field has 32 bits. Pieces are limited to whole pages below that.
constexpr std::uint64_t max_packet_bytes = (1ULL << 32) - 4096;

[[nodiscard]] constexpr lin_dma_packet make_lin_dma(generation kind, std::uint64_t source,
                                                    std::uint64_t destination, std::uint32_t size) {
    constexpr std::uint32_t opcode = 9U << 24, message_barrier = 1U << 31;
    constexpr std::uint32_t linear = 1U << 3, register_barrier = 1U << 30; // gen1 requires both
    const auto control =
        opcode | message_barrier | (kind == generation::gaudi ? linear | register_barrier : 0);
    return {size, control, source, destination};
}

} // namespace gaudi
