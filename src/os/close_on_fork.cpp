// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/close_on_fork.hpp"

#include "src/os/fork_count.hpp"

#include <array>
#include <atomic>
#include <pthread.h>

namespace gaudi {
namespace {

// A plain table and no container: fork may come while another thread changes it. Descriptors that find no
// room in it are inherited.
std::array<std::atomic<int>, 8192> lone; // fd + 1; 0: free

void close_all() {
    for (auto& entry : lone)
        if (const int fd = entry.exchange(0, std::memory_order_relaxed) - 1; fd >= 0)
            ::close(fd);
}

} // namespace

lone_fd::lone_fd(unique_fd owned) : fd_(owned.release()), forks_(fork_count()) {
    static const int watching = ::pthread_atfork(nullptr, nullptr, close_all);
    (void)watching;
    if (fd_ < 0)
        return;
    for (auto& entry : lone)
        if (int none = 0; entry.load(std::memory_order_relaxed) == 0 &&
                          entry.compare_exchange_strong(none, fd_ + 1, std::memory_order_relaxed))
            return;
}

lone_fd::lone_fd(lone_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}

lone_fd& lone_fd::operator=(lone_fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(forks_, other.forks_);
    return *this;
}

lone_fd::~lone_fd() {
    reset();
}

void lone_fd::reset() {
    const int fd = std::exchange(fd_, -1);
    if (fd < 0 || forks_ != fork_count())
        return; // the child's number may be somebody else's by now
    for (auto& entry : lone)
        if (int mine = fd + 1; entry.compare_exchange_strong(mine, 0, std::memory_order_relaxed))
            break;
    ::close(fd);
}

} // namespace gaudi
