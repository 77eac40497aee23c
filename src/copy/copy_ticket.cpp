// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/copy_ticket.hpp>

#include "src/copy/copy_tracker.hpp"

#include <atomic>

namespace gaudi {
namespace {

struct path_counter {
    std::atomic<std::uint64_t> copies{0}, bytes{0};
};
std::array<path_counter, copy_paths> counters;

} // namespace

std::string_view name_of(copy_path path) {
    constexpr std::string_view names[copy_paths] = {
        "the CPU",           "the device's engine",        "the owner's context", "peer DMA-BUF",
        "a NIC in loopback", "staged through host memory", "copied by the owner"};
    return names[static_cast<std::size_t>(path)];
}

void count_copy(copy_path path, std::uint64_t bytes) {
    auto& counter = counters[static_cast<std::size_t>(path)];
    counter.copies.fetch_add(1, std::memory_order_relaxed);
    counter.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

copy_traffic count_copies() {
    copy_traffic seen;
    for (std::size_t i = 0; i < copy_paths; ++i)
        seen.all[i] = {counters[i].copies.load(std::memory_order_relaxed),
                       counters[i].bytes.load(std::memory_order_relaxed)};
    return seen;
}

void copy_ticket::tracked_copy::close() noexcept {
    tracker->drop(slot);
}

bool copy_ticket::done() {
    return !copy_ || copy_->tracker->done(copy_->slot);
}

bool copy_ticket::finished() const {
    return !copy_ || copy_->tracker->finished(copy_->slot);
}

result<void> copy_ticket::wait(std::chrono::milliseconds limit) {
    if (!copy_)
        return {};
    return copy_->tracker->wait(copy_->slot, limit);
}

} // namespace gaudi
