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
    // Sends SIGSTOP and returns when all of its threads have stopped.
    void stop();
    void go_on();
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

// A program with extra environment ("NAME=value", or "NAME" to remove it) that runs beside the test, in a
// process group of its own. Killed, if it still runs, when the object goes.
class running_program {
public:
    explicit running_program(const std::vector<std::string>& command,
                             const std::vector<std::string>& environment = {});
    ~running_program();
    running_program(const running_program&) = delete;
    running_program& operator=(const running_program&) = delete;

    // What it has written so far, to both streams.
    [[nodiscard]] std::string output();
    // False: it ended, or the time was over, without these words.
    [[nodiscard]] bool wait_for_output(const std::string& words,
                                       std::chrono::seconds limit = std::chrono::seconds(60));
    [[nodiscard]] bool ended();
    // To every process of its group, as a terminal does for Ctrl-C.
    void signal_group(int signal) const;
    // SIGSTOP; returns when all of its threads have stopped.
    void stop_it() const;
    // Its end; past the limit it is killed, and its status is -1.
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
// Tests of this program in a process of their own.
[[nodiscard]] program_result run_own_tests(const std::string& filter,
                                           const std::vector<std::string>& environment);

// Sends SIGSTOP to a child of this process and returns when all of its threads have stopped.
void stop_process(pid_t pid);

} // namespace testing_support
