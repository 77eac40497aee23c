// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/device_flush.hpp"

#include "src/error/try.hpp"
#include "src/rdma/registration_cache.hpp"

#include <algorithm>
#include <utility>

namespace gaudi {

result<void> device_flush::prepare() {
    constexpr unsigned depth = 16;
    if (!enabled_ || reads_ != nullptr)
        return {};
    GAUDI_TRY(reads_, nic_copier::make(opened_nic_, depth));
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
            posted_ = 0;
        }
        GAUDI_CHECK(post());
        const bool all_read = reads_->poll() == last_read_;
        if (reads_->broken()) {
            GAUDI_CHECK(recover());
            continue;
        }
        if (!all_read || posted_ < in_flight_.targets.size())
            return completed;
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

// Memory that the peer could write may be freed at any time, which ends its key: it needs no flush any more.
result<void> device_flush::recover() {
    const auto ended = std::erase_if(in_flight_.targets, [](const flush_target& target) {
        return target.held != nullptr && target.held->ended();
    });
    if (ended == 0)
        return tl::unexpected(*reads_->broken());
    reads_.reset();
    posted_ = 0;
    last_read_ = 0;
    return prepare();
}

void device_flush::end() {
    if (reads_ != nullptr)
        reads_->end(error(errc::connection_broken, "the connection has ended"));
    waiting_.clear();
    in_flight_.clear();
}

} // namespace gaudi
