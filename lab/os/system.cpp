// SPDX-License-Identifier: BSD-3-Clause
#include "lab/os/system.hpp"

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lab {

std::uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::uint64_t nanoseconds) {
    const timespec limit{static_cast<time_t>(nanoseconds / 1000000000),
                         static_cast<long>(nanoseconds % 1000000000)};
    ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word, int how_many) {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, how_many, nullptr, nullptr, 0);
}

} // namespace lab
