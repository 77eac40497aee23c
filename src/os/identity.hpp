// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/checksum.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace gaudi {

// Identifies a process uniquely; a pid alone is reused.
struct process_identity {
    std::uint64_t machine = 0;             // checksum of the boot id
    std::array<std::uint64_t, 2> random{}; // chosen once per process
    std::uint64_t start_time = 0;          // clock ticks since boot
    std::uint32_t pid = 0;
    std::uint64_t pid_namespace = 0;

    // The namespace is not compared: a handle does not contain it.
    friend bool operator==(const process_identity& one, const process_identity& other) {
        return one.machine == other.machine && one.random == other.random &&
               one.start_time == other.start_time && one.pid == other.pid;
    }
};

// The identity of this process. A child of fork gets a new one.
[[nodiscard]] const process_identity& own_identity();

// The start time of a process, in clock ticks since boot; 0: there is none, or it is a zombie.
[[nodiscard]] std::uint64_t start_time_of(std::uint32_t pid);

} // namespace gaudi
