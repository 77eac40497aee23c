// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/problem.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lab {

// What happens to a call that a fault script names.
enum class fault_action {
    fail,         // the call is not carried out; it returns error_number
    delay,        // the call is carried out after a pause
    short_result, // the call is carried out and returns less than was asked for; see man gaudi-lab-faults
    reset,        // the device is reset first; then the call is carried out
    die           // the process is killed (SIGKILL) instead
};

struct fault {
    fault_action action = fault_action::fail;
    int error_number = 0;
    std::chrono::microseconds pause{0};
};

// One line of a script: CALL OCCURRENCE ACTION, for example
//     hlthunk_device_memory_alloc 3 errno ENOMEM
//     hlthunk_wait_for_cs 2+ delay 50ms
//     * 17 errno EIO
struct fault_rule {
    std::string call; // "*": any call
    std::uint64_t first = 1;
    std::uint64_t last = 1;
    lab::fault fault;
};

// Lines end with a newline or a semicolon, so that a script fits into an environment variable.
[[nodiscard]] result<std::vector<fault_rule>> parse_faults(std::string_view text, std::string_view name);

// Calls are counted per process from the moment a script is armed. Thread-safe; costs one load while none is
// armed.
class fault_injector {
public:
    void arm(std::vector<fault_rule> rules);
    // The fault for this call, if any; counts the call as one occurrence.
    [[nodiscard]] std::optional<fault> next(std::string_view call);
    [[nodiscard]] bool armed() const { return armed_.load(std::memory_order_relaxed); }
    // How many faults took effect since arm().
    [[nodiscard]] std::uint64_t fired() const { return fired_.load(std::memory_order_relaxed); }

private:
    struct counted_rule {
        fault_rule rule;
        std::uint64_t seen = 0;
    };

    std::atomic<bool> armed_{false};
    std::atomic<std::uint64_t> fired_{0};
    std::mutex mutex_;
    std::vector<counted_rule> rules_;
};

} // namespace lab
