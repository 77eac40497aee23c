// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/hl/hlthunk_api.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

namespace gaudi {

// Whether a device was reset or failed, and why, as the driver reports it. Thread-safe.
class device_loss {
public:
    // `notified`: register for the driver's events on the descriptor. After a fault the driver gives a
    // registered process time to close the device and kills one that is not registered.
    device_loss(std::shared_ptr<const hlthunk_api> api, int fd, bool notified, std::string bus_id);
    // Call it before the descriptor is closed, and not in a child of fork.
    void close_notifier();

    [[nodiscard]] bool lost() const { return lost_.load(std::memory_order_acquire); }
    // Records the first reason only. From then on every call on the device fails at once.
    void mark(std::string reason);
    [[nodiscard]] error describe(std::string_view during) const;

private:
    [[nodiscard]] std::string pending_events();

    const std::shared_ptr<const hlthunk_api> api_;
    const int fd_;
    int notifier_ = -1;
    const std::string bus_id_;
    std::atomic<bool> lost_{false};
    mutable std::mutex mutex_;
    std::string reason_;
};

} // namespace gaudi
