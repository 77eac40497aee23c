// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/fork_count.hpp"

#include <atomic>

namespace gaudi {

// The one T of this process, made when it is first asked for and never destroyed. A child of fork gets a new
// one and leaves its parent's alone, because other threads of the parent may have held its locks. No lock is
// taken here, so that a fork cannot leave one held.
template <typename T>
[[nodiscard]] T& per_process() {
    struct holder {
        const unsigned forks = fork_count();
        T value;
    };
    static std::atomic<holder*> instance{nullptr};
    auto* current = instance.load(std::memory_order_acquire);
    while (current == nullptr || current->forks != fork_count()) {
        auto* const candidate = new holder;
        if (instance.compare_exchange_strong(current, candidate, std::memory_order_acq_rel))
            return candidate->value;
        delete candidate; // another thread was faster
    }
    return current->value;
}

} // namespace gaudi
