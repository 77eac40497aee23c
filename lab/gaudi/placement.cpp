// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/placement.hpp"

#include "lab/os/system.hpp"

#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace lab::gaudi {
namespace {

// Threads of this machine that run or would like to; 0: not known.
unsigned runnable_threads() {
    char text[64] = {};
    const int fd = ::open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const auto got = ::read(fd, text, sizeof(text) - 1);
    ::close(fd);
    unsigned count = 0;
    return got > 0 && std::sscanf(text, "%*s %*s %*s %u", &count) == 1 ? count : 0;
}

} // namespace

placement::placement(unsigned engine) {
    if (::sched_getaffinity(0, sizeof(anywhere_), &anywhere_) != 0)
        return; // more processors than the set holds: there is room
    processors_ = static_cast<unsigned>(CPU_COUNT(&anywhere_));
    unsigned nth = 0;
    for (unsigned i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &anywhere_) && nth++ == engine % processors_)
            CPU_SET(i, &home_);
}

void placement::look() {
    constexpr std::uint64_t interval_ns = 2000000;
    const auto now = now_ns();
    if (processors_ < 2 || now < next_look_ns_)
        return;
    next_look_ns_ = now + interval_ns;
    note(runnable_threads());
}

void placement::note(unsigned runnable) {
    constexpr int fraction = 16; // of the average that each look replaces
    average_ += static_cast<int>(runnable) - average_ / fraction;
    const bool crowded = average_ * 2 >= 3 * fraction * static_cast<int>(processors_); // three for two
    if (crowded != at_home_ && ::sched_setaffinity(0, sizeof(cpu_set_t), crowded ? &home_ : &anywhere_) == 0)
        at_home_ = crowded;
}

} // namespace lab::gaudi
