// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include "src/os/unique_fd.hpp"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace gaudi {

// A descriptor that becomes readable when copies complete, and the thread that detects their completion for
// it. Callers hold the engine's mutex, except where a function says otherwise.
class completion_event {
public:
    // The descriptor. The first call starts the thread, which runs `watch` until ending().
    result<int> open(event_when when, std::function<void()> watch);
    // The next completion makes the descriptor readable.
    void arm();
    [[nodiscard]] bool wanted() const { return always_ || armed_; }
    // Wakes the thread: there is a copy to watch.
    void wake() {
        if (wanted())
            wake_->notify_one();
    }
    void copy_ended() { unsignalled_ = true; }
    // Makes the descriptor readable if copies have completed since the last call and a reader wants it.
    void signal();

    // For the thread. The lock is released while it sleeps.
    [[nodiscard]] bool ending() const { return ending_; }
    void sleep(std::unique_lock<std::mutex>& lock) { wake_->wait(lock); }
    void sleep_for(std::unique_lock<std::mutex>& lock, std::chrono::microseconds limit) {
        wake_->wait_for(lock, limit, [this] { return ending_; });
    }

    // Ends the thread. Call it without the mutex, before the members that the thread uses are destroyed.
    void end(std::mutex& engine);
    // For a child of fork, which does not have the parent's thread.
    void abandon();

private:
    unique_fd descriptor_;
    bool always_ = false, armed_ = false, unsignalled_ = false, ending_ = false;
    std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
    std::thread thread_;
};

} // namespace gaudi
