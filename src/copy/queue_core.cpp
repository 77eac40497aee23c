// SPDX-License-Identifier: BSD-3-Clause
// What an engine on the device's queues does once: construction, pins, the end. Whatever the device accesses
// is mapped before the first submission and unmapped after the last one has completed.
#include "src/copy/queue_core.hpp"

#include "src/copy/packet.hpp"
#include "src/error/try.hpp"
#include "src/os/internals.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

namespace gaudi {
namespace {

constexpr unsigned most_slots = 64; // more submissions in flight gain nothing and cost pinned memory

} // namespace

result<std::shared_ptr<queue_core>> queue_core::make(const std::shared_ptr<hl_device>& device,
                                                     const address_map* map, const copy_options& options) {
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
    // Below the driver's limit in any case: beyond it a submission spins inside hl-thunk (gotcha 20).
    const auto limit =
        std::min({chosen.in_flight != 0 ? chosen.in_flight : most_slots, traits.max_in_flight, most_slots});
    chosen.in_flight = limit;
    GAUDI_TRY(auto ring,
              command_ring::make(
                  device, limit,
                  static_cast<std::uint32_t>((chosen.batch * sizeof(lin_dma_packet) + 4095) / 4096 * 4096)));
    GAUDI_TRY(auto slab, bounce_slab::make(64));
    GAUDI_TRY(auto mapped, device->map_host(slab.bytes()));
    auto core = std::make_shared<queue_core>(device, map, chosen, std::move(ring), std::move(slab));
    // The mapping is a member of this class, the slab of its base: it is unmapped before its memory is freed.
    core->mapped_slab_ = std::move(mapped);
    return core;
}

queue_core::queue_core(std::shared_ptr<hl_device> device, const address_map* map, const copy_options& options,
                       command_ring ring, bounce_slab slab)
    : copy_core(std::move(device), map, std::move(slab)), options_(options), limit_(options.in_flight),
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
    // First, because the thread uses the members that are checked and destroyed below.
    event_.end(mutex_);
    // Memory must not be unmapped while a copy in flight uses it.
    // Gaudi2's driver resets a device whose submission has run for 30 s: waiting longer has no point.
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

result<pinned_memory> queue_core::pin(std::span<std::byte> memory) {
    // Before the mutex is taken: pinning takes as long as the kernel needs for the pages.
    GAUDI_TRY(auto mapped, device_->map_host(memory));
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    {
        // The same memory may be pinned more than once; each pin has a device address of its own.
        const std::lock_guard guard(mutex_);
        pinned_.emplace(begin, pinned_range{begin + memory.size(), mapped.address().value()});
    }
    return internals::wrap<pinned_memory>(
        std::make_unique<mapped_pin>(shared_from_this(), std::move(mapped)));
}

void queue_core::unpin(const host_mapping& gone) {
    const std::lock_guard guard(mutex_);
    // mapped_pin calls this before it unmaps: no later copy may be given an address that is about to end.
    const auto [first, last] = pinned_.equal_range(reinterpret_cast<std::uintptr_t>(gone.bytes().data()));
    for (auto entry = first; entry != last; ++entry)
        if (entry->second.address == gone.address().value()) {
            pinned_.erase(entry);
            return;
        }
}

std::vector<queue_use> queue_core::queues() {
    const std::lock_guard guard(mutex_);
    return queues_.all();
}

} // namespace gaudi
