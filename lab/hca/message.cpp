// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/message.hpp"

#include <cstring>

namespace lab::hca {

moved exchange(const segment& owner, const side& cell, const atomic_operation& what, std::uint64_t& before) {
    const auto& at = cell.pieces[0];
    if (at.where == piece::kind::hbm) {
        std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(at.address));
        before = word.load();
        while (!word.compare_exchange_weak(before, what.on(before))) {
        }
        moved sum;
        sum.mapped = 8;
        return sum;
    }
    const lock_guard guard(owner->head.atomics[at.address / 8 % 64]);
    std::uint64_t value = 0;
    const auto local = side::of(&value, sizeof(value));
    if (auto sum = copy(local, cell); !sum.fine)
        return sum;
    before = value;
    value = what.on(value);
    return copy(cell, local);
}

completion completion_of(const message_head& message, const taken_receive& taken) {
    completion entry{};
    entry.wr_id = taken.wr_id;
    entry.opcode = message.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    entry.byte_count = static_cast<std::uint32_t>(message.length);
    entry.qp_number = message.target_qp;
    entry.source_qp = message.source_qp;
    entry.solicited = (message.flags & IBV_SEND_SOLICITED) != 0;
    if (has_immediate(message.opcode)) {
        entry.flags |= IBV_WC_WITH_IMM;
        entry.immediate = message.immediate;
    }
    return entry;
}

ibv_grh grh_of(const std::uint8_t* source_gid, const std::uint8_t* target_gid, std::uint64_t length) {
    ibv_grh header{};
    header.version_tclass_flow = __builtin_bswap32(6U << 28);
    header.paylen = __builtin_bswap16(static_cast<std::uint16_t>(length + 24)); // BTH, DETH, CRC
    header.next_hdr = 0x1b;
    header.hop_limit = 64;
    std::memcpy(header.sgid.raw, source_gid, 16);
    std::memcpy(header.dgid.raw, target_gid, 16);
    return header;
}

} // namespace lab::hca
