// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/device_loss.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace gaudi {
namespace {

constexpr std::string_view event_names[] = {"TPC assert",
                                            "undefined opcode",
                                            "device reset",
                                            "submission timeout",
                                            "device unavailable",
                                            "engine error",
                                            "hardware error",
                                            "RAZWI",
                                            "page fault",
                                            "critical hardware error",
                                            "critical firmware error"};

} // namespace

device_loss::device_loss(std::shared_ptr<const hlthunk_api> api, int fd, bool notified, std::string bus_id)
    : api_(std::move(api)), fd_(fd), bus_id_(std::move(bus_id)) {
    // Without it the driver kills this process a second after a device error (gotcha 35). The driver accepts
    // one per open context: a process that joined it, or attached to it, leaves this to the owner.
    if (notified && api_->notifier_create != nullptr)
        notifier_ = api_->notifier_create(fd_);
}

void device_loss::close_notifier() {
    // hlthunk_notifier_release() leaves the descriptor open if it fails.
    if (notifier_ >= 0 && (api_->notifier_release == nullptr || api_->notifier_release(fd_, notifier_) != 0))
        ::close(notifier_);
    notifier_ = -1;
}

std::string device_loss::pending_events() {
    std::uint64_t events = 0, count = 0;
    constexpr std::uint32_t limit_ms = 100; // the driver reports events only after it aborted submissions
    if (notifier_ < 0 || api_->notifier_recv == nullptr ||
        api_->notifier_recv(fd_, notifier_, &events, &count, 0, limit_ms) != 0 || count == 0)
        return {};
    std::string text;
    for (std::size_t bit = 0; bit < std::size(event_names); ++bit)
        if ((events >> bit & 1) != 0)
            text += fmt::format("{}{}", text.empty() ? "" : ", ", event_names[bit]);
    return text;
}

void device_loss::mark(std::string reason) {
    const std::lock_guard guard(mutex_);
    if (lost_)
        return;
    // With the mutex held, for up to 100 ms: describe() must not report a loss without its reason.
    if (const auto events = pending_events(); !events.empty())
        reason += fmt::format(" (driver reports: {})", events);
    reason_ = std::move(reason);
    // After the reason: a thread that sees the loss may read it.
    lost_.store(true, std::memory_order_release);
}

error device_loss::describe(std::string_view during) const {
    const std::lock_guard guard(mutex_);
    return {errc::device_lost, fmt::format("{} on {}: {}", during, bus_id_, reason_)};
}

} // namespace gaudi
