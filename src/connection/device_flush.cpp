// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/device_flush.hpp"

#include "src/error/try.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <utility>

namespace gaudi {

result<void> device_flush::prepare() {
    constexpr unsigned depth = 16;
    if (!options_.flush_device || reads_ != nullptr)
        return {};
    auto made = nic_copier::make(opened_nic_, {depth, options_.timeout, options_.retries});
    if (!made)
        return tl::unexpected(error(
            made.error().code(),
            fmt::format("reads that push data into device memory (connection_options::flush_device): {}",
                        made.error().observed()),
            made.error().system_error()));
    reads_ = std::move(*made);
    return {};
}

bool device_flush::hold(std::uint32_t slot, std::uint64_t bytes) {
    if (waiting_.targets.empty())
        return false;
    waiting_.parts.push_back({slot, bytes});
    return true;
}

void device_flush::add(flush_target target) {
    if (reads_ == nullptr)
        return;
    const bool known = std::ranges::any_of(
        waiting_.targets, [&](const flush_target& entry) { return entry.key == target.key; });
    if (!known)
        waiting_.targets.push_back(std::move(target));
}

result<std::size_t> device_flush::progress() {
    std::size_t completed = 0;
    while (busy()) {
        if (in_flight_.empty()) {
            std::swap(in_flight_, waiting_);
            posted_ = polls_ = 0;
            deadline_.reset();
        }
        GAUDI_CHECK(post());
        const bool all_read = reads_->poll() == last_read_;
        if (const auto& broken = reads_->broken())
            return tl::unexpected(*broken);
        if (!all_read || posted_ < in_flight_.targets.size()) {
            GAUDI_CHECK(check_time());
            return completed;
        }
        ++batches_done_;
        for (const auto& [slot, bytes] : in_flight_.parts)
            operations_.part_completed(slot, bytes);
        completed += in_flight_.parts.size();
        in_flight_.clear();
    }
    return completed;
}

result<void> device_flush::post() {
    for (; posted_ < in_flight_.targets.size(); ++posted_) {
        const auto& target = in_flight_.targets[posted_];
        const auto number = reads_->start_flush({target.address, target.key});
        if (!number && number.error().code() == errc::too_many_operations)
            return {};
        GAUDI_TRY(last_read_, number);
    }
    return {};
}

// A NIC that has failed may report nothing. The clock is read only where the read takes long.
result<void> device_flush::check_time() {
    if (++polls_ % 1024 != 0)
        return {};
    const auto now = std::chrono::steady_clock::now();
    if (!deadline_)
        deadline_ = now + std::chrono::seconds(10);
    if (now < *deadline_)
        return {};
    return tl::unexpected(
        error(errc::connection_broken, "the NIC does not complete a read of device memory"));
}

void device_flush::end() {
    if (reads_ != nullptr)
        reads_->end(error(errc::connection_broken, "the connection has ended"));
    waiting_.clear();
    in_flight_.clear();
}

} // namespace gaudi
