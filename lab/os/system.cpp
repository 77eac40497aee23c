// SPDX-License-Identifier: BSD-3-Clause
#include "lab/os/system.hpp"

#include <ctime>
#include <linux/futex.h>
#include <sys/mman.h>
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

bool populate_write_is_known() {
    static const bool known = [] {
        constexpr std::size_t page = 4096;
        void* probe = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const bool works = probe != MAP_FAILED && ::madvise(probe, page, MADV_POPULATE_WRITE) == 0;
        if (probe != MAP_FAILED)
            ::munmap(probe, page);
        return works;
    }();
    return known;
}

} // namespace lab
