// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "abi/synapse.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace lab::synapse {

// A point on a stream, which completes when all work before it has.
class event {
public:
    // The work that the event stands for from now on.
    std::uint64_t record();
    void reached(std::uint64_t recording);
    // synBusy, synSuccess; synFail: never recorded.
    [[nodiscard]] synStatus query();
    synStatus wait();
    [[nodiscard]] std::chrono::steady_clock::time_point time();

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t recorded_ = 0, reached_ = 0; // numbers of recordings
    std::chrono::steady_clock::time_point time_;
};

// Work in order, in a thread of its own as the device's schedulers are asynchronous.
class stream {
public:
    stream();
    // Waits for all work.
    ~stream();
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;

    void push(std::function<void()> work);
    [[nodiscard]] bool idle();
    void wait();

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> work_;
    bool running_ = false, ending_ = false;
    std::thread thread_;
};

} // namespace lab::synapse
