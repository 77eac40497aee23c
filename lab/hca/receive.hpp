// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"

namespace lab::hca {

constexpr unsigned max_scatter = 64;

// A receive request that an executor took from its queue.
struct taken_receive {
    std::uint64_t wr_id;
    std::uint32_t entry_count;
    bool of_srq;
    scatter_entry entries[max_scatter];
};

// Holds the lock of a receive queue, shared or not. If the previous holder died half-way, the constructor
// repairs the queue first.
class receive_queue_guard {
public:
    receive_queue_guard(segment& owner, shared_queue& queue);
    ~receive_queue_guard() { queue_.lock.unlock(); }
    receive_queue_guard(const receive_queue_guard&) = delete;
    receive_queue_guard& operator=(const receive_queue_guard&) = delete;

private:
    shared_queue& queue_;
};

// Held during a delivery that is not under the lock of a local send queue. If the previous holder died, the
// constructor first puts the receive that it had taken back, or completes it.
class inbound_guard {
public:
    explicit inbound_guard(const endpoint& responder);
    ~inbound_guard() { lock_.unlock(); }
    inbound_guard(const inbound_guard&) = delete;
    inbound_guard& operator=(const inbound_guard&) = delete;

private:
    shared_lock& lock_;
};

// Takes the next receive of a queue pair, from its own queue or the shared one. False: none is posted; the
// queue pair is marked, so that the next posted receive runs the waiting sender.
[[nodiscard]] bool take_receive(const endpoint& responder, taken_receive& into);
[[nodiscard]] access_result find_buffers(process& here, const endpoint& responder, const taken_receive& taken,
                                         side& to);
// For the owner, when no executor is active any more: completes as flushed the receive that an executor had
// taken when it died.
void complete_orphan(const endpoint& which);
void complete_receive(const endpoint& responder, const taken_receive& taken, completion& entry);

} // namespace lab::hca
