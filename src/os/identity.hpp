// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/checksum.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace gaudi {

// A process as no other process ever was: what a number of a process alone does not say.
struct process_identity {
    std::uint64_t machine = 0;             // boot id, mixed
    std::array<std::uint64_t, 2> random{}; // made once
    std::uint64_t start_time = 0;          // clock ticks since boot
    std::uint32_t pid = 0;
    std::uint64_t pid_namespace = 0;

    // The namespace is not part of it: a handle does not carry it.
    friend bool operator==(const process_identity& one, const process_identity& other) {
        return one.machine == other.machine && one.random == other.random &&
               one.start_time == other.start_time && one.pid == other.pid;
    }
};

// This process's. A child of fork has another.
[[nodiscard]] const process_identity& own_identity();

// When a process began, in clock ticks since boot; 0: there is none, or it is a zombie.
[[nodiscard]] std::uint64_t start_time_of(std::uint32_t pid);

} // namespace gaudi
