// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/os/system.hpp"

#include <atomic>
#include <cstdint>

namespace lab::hca {

// A possible holder of a lock: a process, by its slot in the lab and the low bits of its incarnation. Never
// 0.
using party = std::uint32_t;
constexpr party party_mask = 0x7fffffff;

// A lock in memory that several processes share. Zero is free. The instruction that takes the lock also
// stores the holder, so a lock whose holder was killed is always recognised and taken over; the data that it
// protects must be consistent at every instruction. Waiting threads sleep.
class shared_lock {
public:
    // True: the lock was taken over from a process that died holding it.
    bool lock() {
        std::uint32_t free = 0;
        if (word_.compare_exchange_strong(free, self, std::memory_order_seq_cst, std::memory_order_relaxed))
            return false;
        return wait_and_lock();
    }
    void unlock() {
        // Only the holder changes the count; wait_for_turn() compares it.
        turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        if ((word_.exchange(0, std::memory_order_release) & contended) != 0)
            wake();
    }
    // Waits until the critical section that was active at the call has ended. Before the call the caller
    // stores, with sequential consistency, what later holders must see.
    void wait_for_turn() const;

    // This process; set once, and again in a forked child.
    static inline party self = 0;
    // Whether a process has ended. Set together with `self`.
    static inline bool (*is_dead)(party) = nullptr;

private:
    static constexpr std::uint32_t contended = 0x80000000;
    bool wait_and_lock();
    void wake();

    std::atomic<std::uint32_t> word_;
    std::atomic<std::uint32_t> turns_;
};

class lock_guard {
public:
    explicit lock_guard(shared_lock& lock) : lock_(lock) { lock_.lock(); }
    ~lock_guard() { lock_.unlock(); }
    lock_guard(const lock_guard&) = delete;
    lock_guard& operator=(const lock_guard&) = delete;

private:
    shared_lock& lock_;
};

} // namespace lab::hca
