// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <sched.h>
#include <vector>

namespace lab::gaudi {

// Where a stream's thread runs. The kernel moves threads to idle processors, which is right until there are
// none: streams that move between busy processors evict each other's data from the caches. While about as
// many programs use devices as there are processors, a stream stays on the processor of its engine.
class placement {
public:
    // `others`: the state files of the lab's other devices.
    placement(unsigned engine, const std::vector<std::filesystem::path>& others);

    // Call before each job of the thread.
    void update();
    // Records a check: so many devices, each of a different program, worked since the last check.
    void note(unsigned devices);

private:
    struct other_device {
        std::filesystem::path state;
        std::uint64_t next_sequence = 0; // at the last check
    };
    // Whether another program's device made progress.
    [[nodiscard]] static bool went_on(other_device& which);

    cpu_set_t anywhere_{}, home_{};
    unsigned processors_ = 0;
    std::vector<other_device> others_;
    double average_ = 0; // of the recorded checks
    bool at_home_ = false;
    std::uint64_t next_update_ns_ = 0;
};

} // namespace lab::gaudi
