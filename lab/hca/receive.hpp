// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"

namespace lab::hca {

constexpr unsigned max_scatter = 64;

// A receive request that was taken out of its queue.
struct taken_receive {
    std::uint64_t wr_id;
    std::uint32_t entry_count;
    bool of_srq;
    scatter_entry entries[max_scatter];
};

// Holds the lock of a receive queue, shared or not. Taken over from an executor that died half-way, the queue
// is put right first.
class receive_queue_guard {
public:
    receive_queue_guard(segment& owner, shared_queue& queue);
    ~receive_queue_guard() { queue_.lock.unlock(); }
    receive_queue_guard(const receive_queue_guard&) = delete;
    receive_queue_guard& operator=(const receive_queue_guard&) = delete;

private:
    shared_queue& queue_;
};

// Holds the lock around a delivery that has no send queue's lock here. Taken over from an executor that died,
// what it had taken is put back or completed first.
class inbound_guard {
public:
    explicit inbound_guard(const endpoint& responder);
    ~inbound_guard() { lock_.unlock(); }
    inbound_guard(const inbound_guard&) = delete;
    inbound_guard& operator=(const inbound_guard&) = delete;

private:
    shared_lock& lock_;
};

// Takes the next receive of a queue pair, from its own queue or the shared one. Nothing there: it is noted
// that a sender waits, so that the next receive posted runs it.
[[nodiscard]] bool take_receive(const endpoint& responder, taken_receive& into);
[[nodiscard]] reach find_buffers(process& here, const endpoint& responder, const taken_receive& taken,
                                 side& to);
// For the owner, when no executor is at work any more: completes as flushed what one had taken when it died.
void complete_orphan(const endpoint& which);
void complete_receive(const endpoint& responder, const taken_receive& taken, completion& entry);

} // namespace lab::hca
