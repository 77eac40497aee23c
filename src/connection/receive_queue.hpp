// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/credits.hpp"
#include "src/connection/device_flush.hpp"
#include "src/connection/operation.hpp"
#include "src/connection/send_queue.hpp"

namespace gaudi {

// The receive queue of a queue pair: cuts receives into parts, posts them in order, and announces the posted
// parts to the peer.
class receive_queue {
public:
    static constexpr std::uint64_t wr_id = 1ULL << 63; // tells a receive's completion from a send's

    receive_queue(ibv_qp* qp, unsigned depth, std::string peer, std::uint32_t segment,
                  operation_table& operations, local_credits& credits, device_flush& flush);

    void add(std::uint32_t slot) { waiting_.push(slot); }
    // Posts as many parts as the queue has room for and, for staged memory, as there are free slabs.
    result<void> advance();
    result<void> completed(const ibv_wc& entry);

private:
    result<void> post(const posted_request& request, const local_part& part);

    ibv_qp* const qp_;
    const std::size_t depth_;
    const std::string peer_;
    const std::uint32_t segment_;
    operation_table& operations_;
    local_credits& credits_;
    device_flush& flush_;
    ring<std::uint32_t> waiting_; // not fully posted
    ring<posted_request> posted_;
};

} // namespace gaudi
