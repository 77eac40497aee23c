// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/receive.hpp"
#include "lab/hca/verbs.hpp"

#include <cstring>

// What a request means, whichever path it takes: through memory (execution) or over TCP (wire).
namespace lab::hca {

constexpr std::uint32_t grh_size = sizeof(ibv_grh);

[[nodiscard]] constexpr bool is_send(std::uint32_t opcode) {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}
[[nodiscard]] constexpr bool is_atomic(std::uint32_t opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
// Whether the operation writes to the requester's buffers.
[[nodiscard]] constexpr bool reads_back(std::uint32_t opcode) {
    return opcode == IBV_WR_RDMA_READ || is_atomic(opcode);
}
[[nodiscard]] constexpr bool has_immediate(std::uint32_t opcode) {
    return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// The value that an atomic operation stores where it found `value`.
struct atomic_operation {
    std::uint32_t opcode;
    std::uint64_t compare_or_add, swap;

    [[nodiscard]] std::uint64_t on(std::uint64_t value) const {
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            return value + compare_or_add;
        return value == compare_or_add ? swap : value;
    }
};
// Executes the operation on the eight bytes of `cell`, memory of `owner`. Device memory: with the CPU's
// atomic instructions. Host memory: under a lock that all nics of the lab use, so it is atomic among nics, as
// IBV_ATOMIC_HCA says, but not against the CPU.
[[nodiscard]] moved exchange(const segment& owner, const side& cell, const atomic_operation& what,
                             std::uint64_t& before);

// The completion of the receive that a message consumes.
struct message_head {
    std::uint32_t opcode, flags, immediate; // as in the send request
    std::uint64_t length;
    std::uint32_t source_qp, target_qp;
};
[[nodiscard]] completion completion_of(const message_head& message, const taken_receive& taken);

// The header in front of a datagram.
[[nodiscard]] ibv_grh grh_of(const std::uint8_t* source_gid, const std::uint8_t* target_gid,
                             std::uint64_t length);

// Whether a queue pair accepts messages in its state.
[[nodiscard]] inline bool receives(const shared_qp& qp) {
    const auto state = qp.state.load(std::memory_order_acquire);
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
}

// Whether the route names the port of the queue pair.
[[nodiscard]] inline bool answers_to(const shared_qp& qp, const route& where) {
    if (where.by_gid == 0)
        return where.lid == qp.own_lid;
    return std::memcmp(where.gid, qp.own_gids[0], 16) == 0 || std::memcmp(where.gid, qp.own_gids[1], 16) == 0;
}

// Whether the responder's process is alive and still the one that the requester connected to.
[[nodiscard]] inline bool is_there(const endpoint& requester, const endpoint& responder) {
    return responder.owner != nullptr && responder.memory().alive() &&
           requester.qp->peer_incarnation.load(std::memory_order_relaxed) ==
               responder.memory()->head.incarnation &&
           responder.qp->in_use.load(std::memory_order_acquire) != 0;
}

// Whether both queue pairs are connected to each other.
[[nodiscard]] inline bool are_connected(const endpoint& requester, const endpoint& responder) {
    const auto &own = *requester.qp, &qp = *responder.qp;
    return qp.type == own.type && qp.peer_number == own.number &&
           qp.peer_incarnation.load(std::memory_order_relaxed) == requester.memory()->head.incarnation &&
           qp.receive_psn == own.send_psn && answers_to(qp, own.destination);
}

// The first request that reaches a queue pair in RTR: raises IBV_EVENT_COMM_EST.
inline void note_established(const endpoint& responder) {
    auto& qp = *responder.qp;
    if (qp.state.load(std::memory_order_acquire) == IBV_QPS_RTR && qp.established.exchange(1) == 0)
        call_attention(responder, event_established);
}

// The caller holds the requester's lock, so no other thread writes the counters.
inline void count(shared_qp& requester, const moved& sum) {
    const auto add = [](std::atomic<std::uint64_t>& to, std::uint64_t value) {
        to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
    };
    auto& counters = requester.counted;
    add(counters.messages, 1);
    add(counters.bytes, sum.mapped + sum.across);
    if (sum.mapped != 0)
        add(counters.bytes_mapped, sum.mapped);
    if (sum.across != 0)
        add(counters.bytes_copied_across, sum.across);
    if (sum.from_hbm != 0)
        add(counters.bytes_from_dmabuf, sum.from_hbm);
    if (sum.to_hbm != 0)
        add(counters.bytes_to_dmabuf, sum.to_hbm);
}

} // namespace lab::hca
