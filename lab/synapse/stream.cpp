// SPDX-License-Identifier: BSD-3-Clause
#include "lab/synapse/stream.hpp"

#include "lab/os/system.hpp"
#include "lab/synapse/device.hpp"

namespace lab::synapse {

std::uint64_t event::record() {
    const std::lock_guard guard(mutex_);
    return ++recorded_;
}

void event::reached(std::uint64_t recording) {
    const std::lock_guard guard(mutex_);
    reached_ = recording;
    time_ = std::chrono::steady_clock::now();
    changed_.notify_all();
}

synStatus event::query() {
    const std::lock_guard guard(mutex_);
    return recorded_ == 0 ? synFail : reached_ < recorded_ ? synBusy : synSuccess;
}

synStatus event::wait() {
    std::unique_lock lock(mutex_);
    if (recorded_ == 0)
        return synFail;
    // In steps: after a failure of the device no work ends any more.
    while (reached_ < recorded_ && !terminated())
        changed_.wait_for(lock, std::chrono::milliseconds(20));
    return reached_ >= recorded_ ? synSuccess : synSynapseTerminated;
}

std::chrono::steady_clock::time_point event::time() {
    const std::lock_guard guard(mutex_);
    return time_;
}

stream::stream() : thread_(signal_free_thread([this] { run(); })) {}

stream::~stream() {
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

void stream::push(std::function<void()> work) {
    const std::lock_guard guard(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
}

bool stream::idle() {
    const std::lock_guard guard(mutex_);
    return work_.empty() && !running_;
}

void stream::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty() && !running_; });
}

void stream::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return ending_ || !work_.empty(); });
        if (work_.empty())
            return;
        const auto next = std::move(work_.front());
        work_.pop_front();
        running_ = true;
        lock.unlock();
        next();
        lock.lock();
        running_ = false;
        changed_.notify_all();
    }
}

} // namespace lab::synapse
