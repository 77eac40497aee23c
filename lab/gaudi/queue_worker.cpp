// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/queue_worker.hpp"

#include "abi/hlthunk.h"
#include "lab/gaudi/packets.hpp"
#include "lab/gaudi/placement.hpp"
#include "lab/gaudi/submission.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

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
    added.since_ns = now_ns();
    jobs_.push_back(std::move(added));
    if (running_)
        return;
    if (thread_.joinable())
        thread_.join();
    try {
        thread_ = signal_free_thread([this] { run(); });
        running_ = true;
    } catch (const std::system_error&) {
        std::fprintf(stderr, "gaudi-lab: no thread for queue %u: the submission is aborted\n", queue_);
        abort_all(device_);
        jobs_.clear();
    }
}

bool queue_worker::awaits(std::uint64_t begin, std::uint64_t end) {
    const std::lock_guard guard(mutex_);
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const job& waiting) {
        return !waiting.fetched && waiting.buffer >= begin && waiting.buffer < end;
    });
}

void queue_worker::run() {
    constexpr unsigned streams = 4; // of an engine
    placement where(device_.index * 2 + queue_ / streams, device_.other_states);
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait_for(lock, std::chrono::milliseconds(500),
                       [this] { return !busy_ && (ending_ || !jobs_.empty()); });
        if (busy_) // another thread executes a job through help()
            continue;
        if (jobs_.empty()) {
            running_ = false;
            return;
        }
        auto current = std::move(jobs_.front());
        jobs_.pop_front();
        busy_ = true;
        lock.unlock();
        where.update();
        carry_out(current);
        current = {};
        lock.lock();
        busy_ = false;
    }
}

bool queue_worker::help() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    constexpr std::uint32_t few_packets = 8192; // bytes
    if (!lock || busy_ || jobs_.empty() || jobs_.front().size > few_packets)
        return false;
    auto& next = jobs_.front(); // its address stays valid when jobs are added
    if (next.help_from_ns > now_ns())
        return false;
    busy_ = true;
    lock.unlock();
    auto bytes = next.fetched ? std::optional(next.bytes) : peek(next);
    // A small copy is done sooner than a thread is woken. For a larger one the device's own thread runs in
    // parallel to the caller if a processor is free: if it has not started after a while, none is.
    constexpr std::uint64_t few = 64 * kib, more = 1 * mib, while_ns = 100000;
    const std::uint64_t copied = bytes ? bytes_of_copies(*bytes) : UINT64_MAX;
    const bool waited = now_ns() >= next.since_ns + while_ns;
    const bool brief = next.owner->cancelled() || copied <= (waited ? more : few);
    lock.lock();
    if (bytes && !next.fetched) {
        next.bytes = std::move(*bytes);
        next.fetched = true;
    }
    if (brief) {
        auto current = std::move(next);
        jobs_.pop_front();
        lock.unlock();
        carry_out(current);
        current = {};
        lock.lock();
    } else
        next.help_from_ns = copied <= more ? next.since_ns + while_ns : UINT64_MAX;
    busy_ = false;
    const bool more_to_do = !jobs_.empty();
    lock.unlock();
    if (more_to_do)
        wake();
    return brief;
}

// If the buffer cannot be read, the worker's thread reports it.
std::optional<std::vector<unsigned char>> queue_worker::peek(const job& next) {
    try {
        std::vector<unsigned char> bytes(next.size);
        if (read_memory(device_, next.buffer, bytes))
            return bytes;
    } catch (const std::exception&) { // no memory, no storage
    }
    return std::nullopt;
}

bool queue_worker::fetch(job& current) {
    if (current.fetched)
        return true;
    current.bytes.resize(current.size);
    current.fetched = read_memory(device_, current.buffer, current.bytes);
    if (current.fetched)
        return true;
    raise_page_fault(device_, current.buffer, queue_);
    return false;
}

void queue_worker::carry_out(job& current) {
    auto& owner = *current.owner;
    try {
        if (!owner.cancelled() && fetch(current))
            run_packets(owner, queue_, current.buffer, current.bytes);
    } catch (const std::system_error& error) {
        raise_storage_error(device_, error.code().value());
    } catch (const std::bad_alloc&) {
        raise_storage_error(device_, ENOMEM);
    }
    if (current.kernel_buffer) {
        const context_lock lock(device_.state());
        for (std::uint32_t i = 0; i < device_.state().buffer_count; ++i)
            if (auto& buffer = device_.state().buffers[i];
                (buffer.id * host_page | 1ULL << 60) == current.buffer)
                --buffer.in_flight;
    }
    if (owner.jobs_left.fetch_sub(1) == 1) {
        complete_submission(owner);
        owner.held.reset(); // last: until now the context cannot end during the work
    }
}

} // namespace lab::gaudi
