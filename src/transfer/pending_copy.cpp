// SPDX-License-Identifier: BSD-3-Clause
// A copy that no device completes by itself: it advances only when a thread of this process asks about it.
// Any thread may, so that one mutex guards its state.
#include "src/transfer/pending_copy.hpp"
#include "src/os/internals.hpp"

#include "src/os/deadline.hpp"
#include "src/os/fork_count.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace gaudi {

pending_copy::pending_copy(copy_path path, std::uint64_t bytes, std::shared_ptr<const void> kept)
    : path_(path), bytes_(bytes), forks_(fork_count()), kept_(std::move(kept)) {}

// In a child of fork the copy and what it holds belong to the parent.
bool pending_copy::forked() const {
    return forks_ != fork_count();
}

bool pending_copy::drive_locked() {
    if (ended_.load(std::memory_order_relaxed))
        return false;
    outcome_ = check();
    if (!outcome_)
        return false;
    if (*outcome_)
        count_copy(path_, bytes_);
    release_resources();
    kept_.reset();
    // Last: after it other threads read the outcome without the mutex.
    ended_.store(true, std::memory_order_release);
    return true;
}

bool pending_copy::drive() {
    if (forked())
        return false;
    const std::lock_guard guard(mutex_);
    return drive_locked();
}

bool pending_copy::done(std::uint32_t slot) {
    return finished(slot) || drive() || finished(slot); // another thread may have completed it in between
}

bool pending_copy::finished(std::uint32_t) {
    return forked() || ended_.load(std::memory_order_acquire);
}

result<void> pending_copy::wait(std::uint32_t slot, std::chrono::milliseconds limit) {
    using clock = std::chrono::steady_clock;
    const auto deadline = deadline_after(limit);
    while (!done(slot)) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now());
        if (left.count() <= 0)
            return tl::unexpected(error(
                errc::copy_timeout, fmt::format("copy by {}, waited {} ms", name_of(path_), limit.count())));
        sleep(std::min(left, std::chrono::milliseconds(10)));
    }
    if (forked())
        return tl::unexpected(
            error(errc::forked, fmt::format("a copy of {} bytes by {}", bytes_, name_of(path_))));
    return *outcome_;
}

void pending_copy::drop(std::uint32_t slot) {
    // Without the ticket nothing would drive the copy, and its memory may be freed next.
    (void)wait(slot, no_limit);
}

copy_ticket pending_copies::add(const std::shared_ptr<pending_copy>& started) {
    const std::lock_guard guard(mutex_);
    if (all_.size() == all_.capacity()) // a caller that only waits for tickets never polls
        std::erase_if(all_, [](const auto& each) {
            const auto copy = each.lock();
            return !copy || copy->finished(0);
        });
    all_.push_back(started);
    if (when_added_)
        when_added_();
    return internals::wrap<copy_ticket>(started, 0U, started->path(), started->bytes());
}

void pending_copies::when_added(std::function<void()> call) {
    const std::lock_guard guard(mutex_);
    when_added_ = std::move(call);
}

void pending_copies::poll() {
    std::vector<std::shared_ptr<pending_copy>> alive; // driven without the lock, which add() needs
    {
        const std::lock_guard guard(mutex_);
        if (all_.empty())
            return;
        std::erase_if(all_, [&](const auto& entry) {
            auto copy = entry.lock();
            const bool over = !copy || copy->finished(0);
            if (!over)
                alive.push_back(std::move(copy));
            return over;
        });
    }
    for (const auto& entry : alive)
        entry->drive();
}

bool pending_copies::any() {
    const std::lock_guard guard(mutex_);
    return std::any_of(all_.begin(), all_.end(), [](const auto& each) {
        const auto copy = each.lock();
        return copy && !copy->finished(0);
    });
}

} // namespace gaudi
