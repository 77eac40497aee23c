// SPDX-License-Identifier: BSD-3-Clause
#include "src/copy/queue_core.hpp"

#include "src/copy/packet.hpp"
#include "src/error/try.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

namespace gaudi {
namespace {

constexpr unsigned most_slots = 64; // more submissions in flight gain nothing and cost pinned memory

} // namespace

result<std::shared_ptr<queue_core>> queue_core::make(const std::shared_ptr<hl_device>& device,
                                                     const address_map* known, const copy_options& options) {
    const auto& traits = device->traits();
    if (traits.down_queues.empty())
        return tl::unexpected(error(errc::copies_absent,
                                    fmt::format("the driver of {} ({}) offers no queue for user submissions",
                                                device->identity().bus_id, name_of(traits.generation))));
    if (device->api().command_submission == nullptr || device->api().wait_for_cs == nullptr)
        return tl::unexpected(
            error(errc::copies_absent, fmt::format("{} has no submission functions", device->api().path())));
    auto chosen = options;
    chosen.batch = std::clamp(chosen.batch, 1U, 4096U);
    chosen.queues = std::max(chosen.queues, 1U);
    chosen.stripe_bytes = std::max<std::uint64_t>(chosen.stripe_bytes, 64 * 1024);
    const auto limit =
        std::min({chosen.in_flight != 0 ? chosen.in_flight : most_slots, traits.max_in_flight, most_slots});
    chosen.in_flight = limit;
    GAUDI_TRY(auto ring,
              command_ring::make(
                  device, limit,
                  static_cast<std::uint32_t>((chosen.batch * sizeof(lin_dma_packet) + 4095) / 4096 * 4096)));
    GAUDI_TRY(auto slab, bounce_slab::make(64));
    GAUDI_TRY(auto mapped, device->map_host(slab.bytes()));
    auto core = std::make_shared<queue_core>(device, known, chosen, std::move(ring), std::move(slab));
    core->mapped_slab_ = std::move(mapped);
    return core;
}

queue_core::queue_core(std::shared_ptr<hl_device> device, const address_map* known,
                       const copy_options& options, command_ring ring, bounce_slab slab)
    : copy_core(std::move(device), known, std::move(slab)), options_(options), limit_(options.in_flight),
      ring_(std::move(ring)) {
    for (unsigned i = 0; i < limit_; ++i)
        free_slots_.push_back(i);
}

queue_core::~queue_core() {
    // In a child of fork the watching thread does not exist, nor a thread that may have held the mutex.
    if (!device_->valid_in_this_process()) {
        event_.abandon();
        return;
    }
    event_.end(mutex_);
    // Memory must not be unmapped while a copy in flight uses it.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!device_->lost() && std::chrono::steady_clock::now() < deadline) {
        poll();
        std::unique_lock lock(mutex_);
        if (flights_.empty() && waiting_.empty())
            break;
        const auto sequence = flights_.empty() ? 0 : flights_.front().sequence;
        lock.unlock();
        std::uint32_t status = 0;
        if (sequence != 0)
            device_->api().wait_for_cs(device_->fd(), sequence, 100000, &status);
    }
}

std::uint32_t queue_core::new_operation() {
    const auto slot = operations_.take();
    operations_[slot].state = state::pending;
    ++statistics_.copies;
    return slot;
}

result<std::uint32_t> queue_core::start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                        std::uint64_t length, copy_direction direction,
                                        const copy_hints& hints) {
    enqueue(slot, source, destination, length, direction, hints);
    submit_waiting(false);
    if (!waiting_.empty())
        event_.wake(); // no room in flight, or the batch is not full: the thread submits later
    event_.signal();
    return slot;
}

result<void> queue_core::check(device_address address, std::uint64_t length) const {
    if (known_ == nullptr)
        return {};
    GAUDI_TRY(const auto known, known_->find(address, length));
    if (known.device_index != device_->identity().index)
        return tl::unexpected(
            error(errc::wrong_device,
                  fmt::format("{} bytes at {:#x} belong to device {}, this engine to {}", length,
                              address.value(), known.device_index, device_->identity().index)));
    return {};
}

std::size_t queue_core::poll() {
    if (!device_->valid_in_this_process())
        return 0;
    const std::lock_guard guard(mutex_);
    const auto finished = collect();
    submit_waiting(true);
    event_.signal();
    return finished;
}

void queue_core::sleep(std::uint32_t slot, std::chrono::microseconds limit) {
    std::uint64_t sequence = 0;
    {
        const std::lock_guard guard(mutex_);
        // If no piece was submitted yet, for lack of room, the oldest submission in flight must complete
        // first.
        const auto own = operations_[slot].last_sequence;
        sequence = own != 0 ? own : flights_.empty() ? 0 : flights_.front().sequence;
    }
    std::uint32_t status = 0;
    if (sequence != 0) // poll() collects the outcome
        device_->api().wait_for_cs(device_->fd(), sequence,
                                   static_cast<std::uint64_t>(std::min<std::int64_t>(limit.count(), 100000)),
                                   &status);
    else
        std::this_thread::yield();
}

void queue_core::watch() {
    std::unique_lock lock(mutex_);
    while (!event_.ending()) {
        if (!event_.wanted() || (flights_.empty() && waiting_.empty())) {
            event_.sleep(lock);
            continue;
        }
        if (flights_.empty()) { // other processes on this context use all the room
            event_.sleep_for(lock, std::chrono::milliseconds(1));
        } else {
            const auto sequence = flights_.front().sequence;
            lock.unlock();
            std::uint32_t status = 0;
            device_->api().wait_for_cs(device_->fd(), sequence, 10000, &status);
            lock.lock();
        }
        collect();
        submit_waiting(true);
        event_.signal();
    }
}

std::vector<queue_use> queue_core::queues() {
    const std::lock_guard guard(mutex_);
    return queues_.all();
}

} // namespace gaudi
