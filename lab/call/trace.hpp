// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/faults/script.hpp"

#include <cstdint>
#include <string>
#include <type_traits>

// Fault script and trace of the exported functions of both virtual libraries.
namespace lab {

// Armed from GAUDI_LAB_FAULTS at the first call. Each library counts its own calls.
[[nodiscard]] fault_injector& faults();
// Sets another script. Returns 0, or -EINVAL for one that does not parse, after saying why on standard error.
int arm_faults(const char* script);

// Carries out a fault: fails, waits or kills the process. Returns an errno to fail with, or 0 to continue.
// The library itself carries out what only it can do (a short result, a reset).
[[nodiscard]] int carry_out(const fault& chosen);

// GAUDI_LAB_TRACE: 1 writes to standard error, anything else names a file.
[[nodiscard]] bool tracing();
void trace(const char* name, const std::string& arguments, const std::string& outcome,
           std::uint64_t nanoseconds);

[[nodiscard]] std::string shown(std::uint64_t value);
[[nodiscard]] std::string shown(std::int64_t value);
[[nodiscard]] std::string shown(const char* text);
[[nodiscard]] std::string shown(const void* pointer);
[[nodiscard]] std::string shown_errno(int error);

// Arguments that are text already.
struct plain_text {
    const char* text;
};

template <typename T>
std::string shown_argument(T value) {
    if constexpr (std::is_same_v<T, plain_text>)
        return value.text;
    else if constexpr (std::is_same_v<T, const char*> || std::is_same_v<T, char*>)
        return shown(static_cast<const char*>(value));
    else if constexpr (std::is_pointer_v<T>)
        return shown(static_cast<const void*>(value));
    else if constexpr (std::is_unsigned_v<T>)
        return shown(static_cast<std::uint64_t>(value));
    else
        return shown(static_cast<std::int64_t>(value));
}

} // namespace lab
