// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace testing_support {

// A forked peer. The child runs `body` and exits with what it returns; never with the parent's tests. Killed,
// if it still runs, when the object goes.
class child {
public:
    explicit child(const std::function<int()>& body);
    ~child();
    child(const child&) = delete;
    child& operator=(const child&) = delete;

    // Exit status, or 128 + signal; -1 when it does not end in time.
    [[nodiscard]] int wait(std::chrono::seconds limit = std::chrono::seconds(60));
    void kill_it();
    [[nodiscard]] pid_t pid() const { return pid_; }

private:
    pid_t pid_;
    bool ended_ = false;
};

// Both ends of a byte channel between parent and child: one signals, the other waits.
class gate {
public:
    gate();
    ~gate();
    gate(const gate&) = delete;
    gate& operator=(const gate&) = delete;
    void open();
    [[nodiscard]] bool wait(std::chrono::seconds limit = std::chrono::seconds(60));
    // Passes a descriptor through.
    void send(int fd);
    [[nodiscard]] int receive();

private:
    int ends_[2];
};

struct program_result {
    int status;
    std::string output; // both streams
};

// Runs a program with extra environment ("NAME=value"), with a deadline.
[[nodiscard]] program_result run_program(const std::vector<std::string>& command,
                                         const std::vector<std::string>& environment = {},
                                         std::chrono::seconds limit = std::chrono::seconds(60));
// Tests of this program in a process of their own.
[[nodiscard]] program_result run_own_tests(const std::string& filter,
                                           const std::vector<std::string>& environment);

} // namespace testing_support
