// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/process.hpp"

#include <cstddef>
#include <cstring>

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

// Pollers look at the entry itself, so that the line with the producers' lock and counter stays with them.
inline void fill(completion& place, const completion& entry) {
    std::memcpy(&place, &entry, offsetof(completion, turn));
}
inline void publish(completion& entry, std::uint32_t at) {
    std::atomic_ref(entry.turn).store(at + 1, std::memory_order_release);
}
[[nodiscard]] inline bool is_published(completion& entry, std::uint32_t at) {
    return std::atomic_ref(entry.turn).load(std::memory_order_acquire) == at + 1;
}
// A place of a completion queue's ring.
[[nodiscard]] inline completion& entry_of(const segment& owner, const shared_cq& cq, std::uint32_t at) {
    return *owner.at<completion>(cq.ring + std::uint64_t{at & (cq.capacity - 1)} * sizeof(completion));
}
// While it lives nobody else adds completions.
class producer_guard {
public:
    producer_guard(const segment& owner, shared_cq& cq);
    ~producer_guard() { lock_.unlock(); }
    producer_guard(const producer_guard&) = delete;
    producer_guard& operator=(const producer_guard&) = delete;

private:
    shared_lock& lock_;
};
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
