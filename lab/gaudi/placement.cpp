// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/placement.hpp"

#include "lab/gaudi/context.hpp"
#include "lab/os/system.hpp"

#include <algorithm>
#include <cstddef>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace lab::gaudi {

placement::placement(unsigned engine, const std::vector<std::filesystem::path>& others) {
    if (::sched_getaffinity(0, sizeof(anywhere_), &anywhere_) != 0)
        return; // more processors than the set holds: no need to pin threads
    processors_ = static_cast<unsigned>(CPU_COUNT(&anywhere_));
    unsigned nth = 0;
    for (unsigned i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &anywhere_) && nth++ == engine % processors_)
            CPU_SET(i, &home_);
    for (const auto& path : others)
        others_.push_back({path});
}

// Read, not mapped: a device that no process has opened yet has no state file, and mapping would create one.
bool placement::went_on(other_device& which) {
    struct {
        std::uint64_t next_sequence;
        std::uint32_t in_flight;
        std::int32_t submitter;
    } now{which.next_sequence, 0, 0};
    constexpr auto begin = offsetof(context, next_sequence);
    static_assert(offsetof(context, submitter) == begin + offsetof(decltype(now), submitter));
    if (const int fd = ::open(which.state.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
        (void)!::pread(fd, &now, sizeof(now), begin);
        ::close(fd);
    }
    return std::exchange(which.next_sequence, now.next_sequence) != now.next_sequence &&
           now.submitter != ::getpid();
}

void placement::update() {
    constexpr std::uint64_t interval_ns = 4000000;
    const auto now = now_ns();
    if (others_.empty() || now < next_update_ns_)
        return;
    next_update_ns_ = now + interval_ns;
    note(1 + static_cast<unsigned>(std::count_if(others_.begin(), others_.end(), went_on)));
}

void placement::note(unsigned devices) {
    average_ += (devices - average_) / 8;
    const bool crowded = processors_ > 1 && average_ >= 0.75 * processors_;
    if (crowded != at_home_ && ::sched_setaffinity(0, sizeof(cpu_set_t), crowded ? &home_ : &anywhere_) == 0)
        at_home_ = crowded;
}

} // namespace lab::gaudi
