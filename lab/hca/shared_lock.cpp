// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/shared_lock.hpp"

#include <sched.h>

namespace lab::hca {
namespace {

constexpr int spins = 200;                                  // about as long as a short critical section
constexpr std::uint64_t holder_check_ns = 10 * 1000 * 1000; // how soon a dead holder is detected

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace

bool shared_lock::wait_and_lock() {
    for (int i = 0; i < spins; ++i) {
        std::uint32_t free = 0;
        if (word_.load(std::memory_order_relaxed) == 0 && word_.compare_exchange_weak(free, self))
            return false;
        relax();
    }
    // From here on this thread takes the lock as contended: other threads may sleep on it.
    auto seen = word_.load(std::memory_order_relaxed);
    for (;;) {
        if (seen == 0) {
            if (word_.compare_exchange_weak(seen, self | contended))
                return false;
            continue;
        }
        if ((seen & contended) == 0 && !word_.compare_exchange_weak(seen, seen | contended))
            continue;
        seen |= contended;
        futex_wait(word_, seen, holder_check_ns);
        const auto now = word_.load(std::memory_order_relaxed);
        if (now == seen && is_dead(seen & party_mask) &&
            word_.compare_exchange_strong(seen, self | contended))
            return true;
        seen = word_.load(std::memory_order_relaxed);
    }
}

void shared_lock::wake() {
    futex_wake(word_, 1);
}

void shared_lock::wait_for_turn() const {
    const auto turn = turns_.load(std::memory_order_seq_cst);
    auto held = word_.load(std::memory_order_seq_cst);
    for (unsigned tries = 0; held != 0 && turns_.load(std::memory_order_acquire) == turn; ++tries) {
        if (tries > 1000) { // a long critical section, or a dead holder
            if (is_dead(held & party_mask))
                return;
            ::sched_yield();
        } else
            relax();
        held = word_.load(std::memory_order_acquire);
    }
}

} // namespace lab::hca
