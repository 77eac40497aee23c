// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <sched.h>
#include <vector>

namespace lab::gaudi {

// Where a stream's thread runs. The kernel moves threads to where there is room, which is right until there
// is none: streams that wander between crowded processors tear what they copy out of each other's caches.
// While as many programs have devices at work as there are processors, a stream keeps to the processor of its
// engine.
class placement {
public:
    // `others`: the state files of the lab's other devices.
    placement(unsigned engine, const std::vector<std::filesystem::path>& others);

    // Before each job of the thread.
    void look();
    // What a look finds: so many devices were at work since the last one, each for another program.
    void note(unsigned devices);

private:
    struct other_device {
        std::filesystem::path state;
        std::uint64_t next_sequence = 0; // when last looked at
    };
    // For another program than this one.
    [[nodiscard]] static bool went_on(other_device& which);

    cpu_set_t anywhere_{}, home_{};
    unsigned processors_ = 0;
    std::vector<other_device> others_;
    double average_ = 0; // of what looks find
    bool at_home_ = false;
    std::uint64_t next_look_ns_ = 0;
};

} // namespace lab::gaudi
