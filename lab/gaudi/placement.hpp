// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <sched.h>

namespace lab::gaudi {

// Where a stream's thread runs. The kernel moves threads to where there is room, which is right until there
// is none: streams that wander between crowded processors tear what they copy out of each other's caches.
// While it is crowded a stream keeps to the processor of its engine.
class placement {
public:
    explicit placement(unsigned engine);

    // Before each job of the thread.
    void look();
    // What a look finds: so many threads of the machine run or would like to.
    void note(unsigned runnable);

private:
    cpu_set_t anywhere_{}, home_{};
    unsigned processors_ = 0;
    int average_ = 0; // of the machine's runnable threads, times 16
    bool at_home_ = false;
    std::uint64_t next_look_ns_ = 0;
};

} // namespace lab::gaudi
