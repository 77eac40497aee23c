// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/process.hpp"

#include <cstddef>
#include <cstring>

namespace lab::hca {

// A queue pair in any process. A borrowed view: the caller keeps both pointers valid.
struct endpoint {
    peer* owner = nullptr;
    shared_qp* qp = nullptr;

    [[nodiscard]] segment& memory() const { return owner->memory(); }
    [[nodiscard]] shared_cq& cq(std::uint32_t index) const { return memory()->cqs[index]; }
    template <typename Request>
    [[nodiscard]] Request& request(const shared_queue& queue, std::uint32_t place) const {
        return *memory().at<Request>(queue.ring + std::uint64_t{place & (queue.capacity - 1)} * queue.stride);
    }
};

// Pollers read the entry itself, so that the cache line with the producers' lock and counter stays with the
// producers.
inline void fill(completion& place, const completion& entry) {
    std::memcpy(&place, &entry, offsetof(completion, turn));
}
inline void publish(completion& entry, std::uint32_t at) {
    std::atomic_ref(entry.turn).store(at + 1, std::memory_order_release);
}
[[nodiscard]] inline bool is_published(completion& entry, std::uint32_t at) {
    return std::atomic_ref(entry.turn).load(std::memory_order_acquire) == at + 1;
}
// The entry of a completion queue's ring at counter `at`.
[[nodiscard]] inline completion& entry_of(const segment& owner, const shared_cq& cq, std::uint32_t at) {
    return *owner.at<completion>(cq.ring + std::uint64_t{at & (cq.capacity - 1)} * sizeof(completion));
}
// Excludes other producers of the completion queue while it lives.
class producer_guard {
public:
    producer_guard(const segment& owner, shared_cq& cq);
    ~producer_guard() { lock_.unlock(); }
    producer_guard(const producer_guard&) = delete;
    producer_guard& operator=(const producer_guard&) = delete;

private:
    shared_lock& lock_;
};
// Adds a completion; raises an event if the queue is armed. A full queue is marked as overrun and its owner
// is woken.
void push(peer& owner, std::uint32_t cq, const completion& entry);
// Whether the queue holds unpolled entries that no event has reported; with `special_only`, solicited ones or
// errors.
[[nodiscard]] bool has_unreported(const segment& owner, const shared_cq& cq, bool special_only);
// Raises an event of an armed queue: at once, or by its owner's guard thread if the channel cannot be
// written.
void signal(peer& owner, std::uint32_t cq);

// Sets attention bits on a queue pair and wakes its owner's guard thread.
void call_attention(const endpoint& which, std::uint32_t attention_bits);

// Moves the queue pair to the error state; its owner flushes it and raises the events.
void break_down(const endpoint& which, std::uint32_t attention_bits);

} // namespace lab::hca
