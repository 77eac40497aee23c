// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/queue_worker.hpp"

#include "abi/hlthunk.h"
#include "lab/gaudi/packets.hpp"
#include "lab/gaudi/submission.hpp"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

namespace lab::gaudi {

bool submission::cancelled() const {
    const auto& state = device.state();
    const auto& slot = state.slots[sequence & (device.type.max_in_flight - 1)];
    return slot.sequence.load(std::memory_order_relaxed) != sequence ||
           slot.state.load() != cs_state::pending;
}

queue_worker::~queue_worker() {
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
        wake_.notify_one();
    }
    if (thread_.joinable())
        thread_.join();
}

void queue_worker::push(job added) {
    const std::lock_guard guard(mutex_);
    jobs_.push_back(std::move(added));
    if (running_) {
        wake_.notify_one();
        return;
    }
    if (thread_.joinable())
        thread_.join();
    running_ = true;
    // The program's signals are its own: our thread takes none.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool queue_worker::awaits(std::uint64_t begin, std::uint64_t end) {
    const std::lock_guard guard(mutex_);
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const job& waiting) {
        return !waiting.kernel_buffer && waiting.buffer >= begin && waiting.buffer < end;
    });
}

void queue_worker::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        if (!wake_.wait_for(lock, std::chrono::milliseconds(500),
                            [this] { return ending_ || !jobs_.empty(); }) ||
            (ending_ && jobs_.empty())) {
            running_ = false;
            return;
        }
        auto current = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        carry_out(current);
        current = {};
        lock.lock();
    }
}

void queue_worker::carry_out(const job& current) {
    auto& owner = *current.owner;
    if (!owner.cancelled()) {
        std::vector<unsigned char> bytes(current.size);
        bool fetched = false;
        if (current.kernel_buffer) {
            const int fd = ::open(device_.node.c_str(), O_RDONLY | O_CLOEXEC);
            fetched =
                fd >= 0 && ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(current.buffer)) ==
                               static_cast<ssize_t>(bytes.size());
            if (fd >= 0)
                ::close(fd);
        } else
            fetched = read_memory(device_, current.buffer, bytes);
        if (fetched)
            run_packets(owner, queue_, current.buffer, bytes);
        else
            raise_page_fault(device_, current.buffer, queue_);
    }
    if (current.kernel_buffer) {
        const context_lock lock(device_.state());
        for (std::uint32_t i = 0; i < device_.state().buffer_count; ++i)
            if (auto& buffer = device_.state().buffers[i];
                (buffer.id * host_page | 1ULL << 60) == current.buffer)
                --buffer.in_flight;
    }
    if (owner.jobs_left.fetch_sub(1) == 1) {
        owner.held.reset(); // first: whoever sees the completion may close the device and open it again
        complete_submission(owner);
    }
}

} // namespace lab::gaudi
