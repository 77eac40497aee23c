// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/receive.hpp"
#include "lab/hca/verbs.hpp"

// What a request means, by whichever way it travels: through memory (execution) or over TCP (wire).
namespace lab::hca {

constexpr std::uint32_t grh_size = sizeof(ibv_grh);

[[nodiscard]] constexpr bool is_send(std::uint32_t opcode) {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}
[[nodiscard]] constexpr bool is_atomic(std::uint32_t opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
// Whether its buffers are written to.
[[nodiscard]] constexpr bool reads_back(std::uint32_t opcode) {
    return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}
[[nodiscard]] constexpr bool has_immediate(std::uint32_t opcode) {
    return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// What an atomic operation leaves where it found `value`.
struct atomic_operation {
    std::uint32_t opcode;
    std::uint64_t compare_or_add, swap;

    [[nodiscard]] std::uint64_t on(std::uint64_t value) const {
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            return value + compare_or_add;
        return value == compare_or_add ? swap : value;
    }
};
// Carries it out on the eight bytes that `cell` is, memory of `owner`: device memory with the CPU's own
// instructions; host memory under a lock that all NICs of the lab know, atomic among them, as IBV_ATOMIC_HCA
// says, and not against the CPU.
[[nodiscard]] moved exchange(const segment& owner, const side& cell, const atomic_operation& what,
                             std::uint64_t& before);

// The completion of the receive that a message takes.
struct message_head {
    std::uint32_t opcode, flags, immediate; // as in the send request
    std::uint64_t length;
    std::uint32_t source_qp, target_qp;
};
[[nodiscard]] completion completion_of(const message_head& message, const taken_receive& taken);

// The header in front of a datagram.
[[nodiscard]] ibv_grh grh_of(const std::uint8_t* source_gid, const std::uint8_t* target_gid,
                             std::uint64_t length);

// Whether a queue pair takes messages in its state.
[[nodiscard]] bool receives(const shared_qp& qp);

} // namespace lab::hca
