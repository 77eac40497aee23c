// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/fork_count.hpp"

#include <atomic>
#include <pthread.h>

namespace gaudi {
namespace {

std::atomic<unsigned> forks{0};

} // namespace

unsigned fork_count() {
    static const int watching =
        ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    (void)watching;
    return forks.load(std::memory_order_relaxed);
}

} // namespace gaudi
