// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/gaudi/memory.hpp"
#include "lab/gaudi/queue_worker.hpp"

#include <span>

namespace lab::gaudi {

enum class opcode : std::uint32_t {
    wreg32 = 0x1,
    wreg_bulk = 0x2,
    msg_long = 0x3,
    msg_short = 0x4,
    cp_dma = 0x5,
    msg_prot = 0x7,
    fence = 0x8,
    lin_dma = 0x9,
    nop = 0xA,
    stop = 0xB,
    arb_point = 0xC,
    wait = 0xD,
    cb_list = 0xE,
    load_and_exe = 0xF
};

// Runs a command buffer on a queue. A device error is raised where it happens and ends the run.
void run_packets(submission& owner, unsigned queue, std::uint64_t buffer,
                 std::span<const unsigned char> bytes);

// How many bytes a buffer copies if it holds only copies; UINT64_MAX: it holds something else.
[[nodiscard]] std::uint64_t bytes_of_copies(std::span<const unsigned char> bytes);

// The errno with which gen1's driver refuses a buffer: EPERM, EINVAL; or 0.
[[nodiscard]] int refuse_packets_of_gen1(std::span<const unsigned char> bytes);

// Executes one LIN_DMA. False: cancelled, or failed and the error was raised.
[[nodiscard]] bool run_lin_dma(submission& owner, unsigned queue, std::uint32_t size, std::uint32_t control,
                               std::uint64_t source, std::uint64_t destination);

// The place of a queue: its engine's number and stream, for fences.
struct queue_place {
    unsigned engine;
    unsigned stream;
};
[[nodiscard]] queue_place place_of(unsigned queue);
[[nodiscard]] bool is_pci_dma(unsigned queue);
[[nodiscard]] bool is_engine_dma(unsigned queue);

// A 32-bit write by an engine: to the sync manager, a fence counter, or memory. False: no such address.
[[nodiscard]] bool write_word(virtual_device& device, std::uint64_t address, std::uint32_t value);
constexpr std::uint64_t sob_block = 0x4100000, monitor_block = 0x4108000;

// Waits until the counter reaches `target`, then subtracts `amount`. False: cancelled, or timed out and the
// error was raised.
[[nodiscard]] bool run_fence(submission& owner, queue_place place, unsigned id, std::uint32_t target,
                             std::uint32_t amount);

} // namespace lab::gaudi
