// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_ticket.hpp>

#include "src/copy/copy_tracker.hpp"

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace gaudi {

// A copy that this process must drive.
class pending_copy : public copy_tracker {
public:
    // `kept` is destroyed when the copy has ended.
    pending_copy(copy_path path, std::uint64_t bytes, std::shared_ptr<const void> kept);

    [[nodiscard]] bool done(std::uint32_t slot) override;
    [[nodiscard]] bool finished(std::uint32_t slot) override;
    result<void> wait(std::uint32_t slot, std::chrono::milliseconds limit) override;
    void drop(std::uint32_t slot) override;
    // Drives the copy; true if this call ended it.
    bool drive();
    [[nodiscard]] copy_path path() const { return path_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

protected:
    // Advances the copy; returns nothing while it has not ended. With the mutex held.
    virtual std::optional<result<void>> check() = 0;
    // Called when the copy has ended: a ticket that is kept must not keep the memory. With the mutex held.
    virtual void release_resources() = 0;
    // Sleeps until progress is likely, at most this long.
    virtual void sleep(std::chrono::milliseconds limit) = 0;

private:
    bool drive_locked();
    [[nodiscard]] bool forked() const;

    const copy_path path_;
    const std::uint64_t bytes_;
    const unsigned forks_;
    std::shared_ptr<const void> kept_;
    std::mutex mutex_;
    std::optional<result<void>> outcome_;
    std::atomic<bool> ended_{false}; // outcome_ is set and final
};

// The copies of a copier that have not ended.
class pending_copies {
public:
    copy_ticket add(const std::shared_ptr<pending_copy>& started);
    // Drives all of them.
    void poll();
    [[nodiscard]] bool any();
    // `call` runs for each copy that is added after this.
    void when_added(std::function<void()> call);

private:
    std::mutex mutex_;
    std::vector<std::weak_ptr<pending_copy>> all_;
    std::function<void()> when_added_;
};

} // namespace gaudi
