// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tools::doctor {

// How a child process ended that ran what may hang or crash.
struct child_end {
    bool in_time = false; // false: it was silent for too long, and was killed
    int signal = 0;       // that ended it by itself
};

// Runs `body` in a child process and passes on each line that it writes to its standard output. `silence`:
// how long it may write nothing.
child_end run_child(const std::function<void()>& body, std::chrono::milliseconds silence,
                    const std::function<void(std::string_view line)>& on_line);

// What a child process writes in `body`, which may load libraries that this process must not have, or execute
// a program. Its errors are not shown. nullopt: it was silent for too long.
[[nodiscard]] std::optional<std::string> child_output(const std::function<void()>& body,
                                                      std::chrono::milliseconds silence);

} // namespace tools::doctor
