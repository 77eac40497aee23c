// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/fork_private_fd.hpp"

#include "src/os/fork_count.hpp"

#include <array>
#include <atomic>
#include <pthread.h>

namespace gaudi {
namespace {

// A fixed table and no container: fork may happen while another thread changes it. Descriptors that do not
// fit are inherited by the child.
std::array<std::atomic<int>, 8192> private_fds; // fd + 1; 0: free

void close_all() {
    for (auto& entry : private_fds)
        if (const int fd = entry.exchange(0, std::memory_order_relaxed) - 1; fd >= 0)
            ::close(fd);
}

} // namespace

fork_private_fd::fork_private_fd(unique_fd owned) : open_({owned.release(), fork_count()}) {
    static const int watching = ::pthread_atfork(nullptr, nullptr, close_all);
    (void)watching;
    if (!open_)
        return;
    for (auto& entry : private_fds)
        if (int none = 0; entry.load(std::memory_order_relaxed) == 0 &&
                          entry.compare_exchange_strong(none, get() + 1, std::memory_order_relaxed))
            return;
}

void fork_private_fd::open_descriptor::close() noexcept {
    if (forks != fork_count())
        return; // closed in this child already: the number may belong to another descriptor by now
    for (auto& entry : private_fds)
        if (int mine = fd + 1; entry.compare_exchange_strong(mine, 0, std::memory_order_relaxed))
            break;
    ::close(fd);
}

} // namespace gaudi
