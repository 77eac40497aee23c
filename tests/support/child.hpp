// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace testing_support {

// A forked process that runs `body` and exits with its result; it never continues with the parent's tests.
// The destructor kills it if it still runs.
class child {
public:
    explicit child(const std::function<int()>& body);
    ~child();
    child(const child&) = delete;
    child& operator=(const child&) = delete;

    // Returns the exit status, or 128 + signal; -1 if the process does not end within the limit.
    [[nodiscard]] int wait(std::chrono::seconds limit = std::chrono::seconds(60));
    void kill_it();
    // Sends SIGSTOP and returns when all of its threads have stopped.
    void stop();
    void go_on();
    [[nodiscard]] pid_t pid() const { return pid_; }

private:
    pid_t pid_;
    bool ended_ = false;
};

// A socket pair between parent and child: one process signals, the other waits.
class gate {
public:
    gate();
    ~gate();
    gate(const gate&) = delete;
    gate& operator=(const gate&) = delete;
    void open();
    [[nodiscard]] bool wait(std::chrono::seconds limit = std::chrono::seconds(60));
    // send() and receive() pass a descriptor.
    void send(int fd);
    [[nodiscard]] int receive();

private:
    int ends_[2];
};

struct program_result {
    int status;
    std::string output; // stdout and stderr
};

// A program that runs in parallel with the test, in its own process group. `environment` adds variables
// ("NAME=value") or removes them ("NAME"). The destructor kills the program if it still runs.
class running_program {
public:
    explicit running_program(const std::vector<std::string>& command,
                             const std::vector<std::string>& environment = {});
    ~running_program();
    running_program(const running_program&) = delete;
    running_program& operator=(const running_program&) = delete;

    // Its output so far, stdout and stderr.
    [[nodiscard]] std::string output();
    // False if the program ended, or the limit expired, before it wrote these words.
    [[nodiscard]] bool wait_for_output(const std::string& words,
                                       std::chrono::seconds limit = std::chrono::seconds(60));
    [[nodiscard]] bool ended();
    // Signals every process of the group, as a terminal does for Ctrl-C.
    void signal_group(int signal) const;
    // Sends SIGSTOP and returns when all of its threads have stopped.
    void stop_it() const;
    // Waits for the exit. At the limit it kills the program and reports status -1.
    [[nodiscard]] program_result wait(std::chrono::seconds limit = std::chrono::seconds(60));

private:
    void reap();
    void read_all();

    pid_t pid_;
    int stream_;
    std::mutex mutex_;
    std::string output_;
    std::optional<int> status_;
    std::atomic<bool> all_read_ = false, stop_reading_ = false;
    std::thread reader_;
};

// Runs a program with extra environment, with a deadline.
[[nodiscard]] program_result run_program(const std::vector<std::string>& command,
                                         const std::vector<std::string>& environment = {},
                                         std::chrono::seconds limit = std::chrono::seconds(60));
// Runs tests of this program in a new process.
[[nodiscard]] program_result run_own_tests(const std::string& filter,
                                           const std::vector<std::string>& environment);

// Sends SIGSTOP to a child of this process and returns when all of its threads have stopped.
void stop_process(pid_t pid);

} // namespace testing_support
