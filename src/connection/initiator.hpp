// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/control_channel.hpp"
#include "src/connection/credits.hpp"
#include "src/connection/device_flush.hpp"
#include "src/connection/operation.hpp"
#include "src/connection/send_queue.hpp"
#include "src/connection/staging_protocol.hpp"

#include <deque>

namespace gaudi {

// Turns the operations that this side initiates into work requests: messages into the peer's receives,
// writes, reads, atomic operations. Operations are queued in the order of the calls. Only the first one is
// cut into parts, as far as the send queue has room, the peer's credits allow it, and staged memory has been
// copied.
class initiator {
public:
    struct limits {
        std::uint32_t segment = 0;         // longest part of a message and longest part in a slab
        std::uint64_t longest_request = 0; // longest write or read of registered memory
        unsigned longest_inline = 0;
    };
    // Where the NIC writes the results of atomic operations: one word for each slot.
    struct atomic_results {
        std::uint64_t* words = nullptr;
        std::uint32_t key = 0;
    };

    initiator(const limits& bounds, atomic_results results, operation_table& operations, send_queue& queue,
              peer_credits& credits, const control_channel& control, device_flush& flush);

    void add(std::uint32_t slot) { waiting_.push(slot); }
    // Posts what can be posted; the caller flushes the send queue.
    result<void> advance();
    // Completes every work request up to the one that a completion names.
    result<void> completed(std::uint64_t wr_id);

    // Frames of the peer about its staged memory.
    result<void> slab_granted(const slab_grant& grant);
    result<void> access_ended(const access_end& end);
    // Whether the first operation waits for such a frame.
    [[nodiscard]] bool awaits_frame() {
        return !waiting_.empty() && operations_[waiting_.front()].remote_staged;
    }

private:
    // Each posts as much of the first operation as it can; returns true once all of it is posted.
    result<bool> post(std::uint32_t slot);
    result<bool> post_message(std::uint32_t slot);
    result<bool> post_data(std::uint32_t slot);
    result<bool> post_immediate(std::uint32_t slot);
    result<bool> post_atomic(std::uint32_t slot);
    result<bool> post_to_staging(std::uint32_t slot);
    bool use_up_receive(std::uint32_t slot);
    ibv_send_wr& append(const posted_request& request, const local_part& part);

    result<void> keep_filling(std::uint32_t slot);
    // Where a part of the first operation lies: in its own memory, or in the next filled slab. None while no
    // slab is filled.
    result<std::optional<local_part>> part_of(std::uint32_t slot, std::uint64_t offset, std::uint32_t bytes);

    const limits limits_;
    const atomic_results results_;
    operation_table& operations_;
    send_queue& queue_;
    peer_credits& credits_;
    const control_channel& control_;
    device_flush& flush_;
    ring<std::uint32_t> waiting_;                     // not fully posted
    std::deque<slab_grant> granted_, filling_grants_; // to the first operation
};

} // namespace gaudi
