// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/process.hpp"

namespace lab::hca {

// A queue pair wherever it lives. Borrowed: the owner of `who` keeps it.
struct endpoint {
    peer* who = nullptr;
    shared_qp* qp = nullptr;

    [[nodiscard]] segment& memory() const { return who->memory(); }
    [[nodiscard]] shared_cq& cq(std::uint32_t index) const { return memory()->cqs[index]; }
    template <typename Request>
    [[nodiscard]] Request& request(const shared_queue& queue, std::uint32_t place) const {
        return *memory().at<Request>(queue.ring + std::uint64_t{place & (queue.capacity - 1)} * queue.stride);
    }
};

// A place of a completion queue's ring.
[[nodiscard]] inline completion& entry_of(const segment& owner, const shared_cq& cq, std::uint32_t at) {
    return *owner.at<completion>(cq.ring + std::uint64_t{at & (cq.capacity - 1)} * sizeof(completion));
}
// Adds a completion; raises the event if the queue is armed. A full queue is marked as overrun and its owner
// told.
void push(peer& who, std::uint32_t cq, const completion& entry);
// Whether entries lie there unpolled that no event has told of; with `special_only`, solicited ones or
// errors.
[[nodiscard]] bool has_unreported(const segment& owner, const shared_cq& cq, bool special_only);
// Raises an event of an armed queue, at once or through its owner.
void signal(peer& who, std::uint32_t cq);

// Notes something for the owner of a queue pair and wakes it.
void call_attention(const endpoint& which, std::uint32_t attention_bits);

// The queue pair goes to the error state; its owner flushes it and tells the program what happened.
void break_down(const endpoint& which, std::uint32_t attention_bits);

} // namespace lab::hca
