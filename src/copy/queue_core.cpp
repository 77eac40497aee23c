// SPDX-License-Identifier: BSD-3-Clause
#include "src/copy/queue_core.hpp"

#include "src/copy/packet.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <utility>

namespace gaudi {
namespace {

constexpr unsigned bounces = 64;
constexpr unsigned most_slots = 64; // more in flight gains nothing and costs pinned memory

} // namespace

result<std::shared_ptr<queue_core>> queue_core::make(const std::shared_ptr<hl_device>& device,
                                                     const address_map* known, const copy_options& options) {
    const auto& traits = device->traits();
    if (traits.down_queues.empty())
        return tl::unexpected(error(errc::copies_absent,
                                    fmt::format("the driver of {} ({}) offers no queue for user submissions",
                                                device->who().bus_id, name_of(traits.generation))));
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
    auto ring = command_ring::make(
        device, limit,
        static_cast<std::uint32_t>((chosen.batch * sizeof(lin_dma_packet) + 4095) / 4096 * 4096));
    if (!ring)
        return tl::unexpected(ring.error());
    auto slab_memory = mapping::anonymous(bounces * bounce_bytes);
    if (!slab_memory)
        return tl::unexpected(slab_memory.error());
    auto slab = device->map_host(slab_memory->bytes());
    if (!slab)
        return tl::unexpected(slab.error());
    auto core = std::make_shared<queue_core>(device, known, chosen, std::move(*ring));
    core->slab_memory_ = std::move(*slab_memory);
    core->slab_ = std::move(*slab);
    return core;
}

queue_core::queue_core(std::shared_ptr<hl_device> device, const address_map* known,
                       const copy_options& options, command_ring ring)
    : device_(std::move(device)), known_(known), options_(options), limit_(options.in_flight),
      ring_(std::move(ring)) {
    for (unsigned i = 0; i < bounces; ++i)
        free_bounces_.push_back(static_cast<int>(i));
    for (unsigned i = 0; i < limit_; ++i)
        free_slots_.push_back(i);
}

queue_core::~queue_core() {
    if (!device_->ours()) { // a forked child: neither the watcher nor whoever holds the mutex exists here
        if (watcher_.joinable()) // neither to be joined nor detached: left behind
            static_cast<void>(new (std::nothrow) std::thread(std::move(watcher_)));
        static_cast<void>(watch_.release()); // its destructor waits for waiters
        return;
    }
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
        watch_->notify_all();
    }
    if (watcher_.joinable())
        watcher_.join();
    // Buffers of the device must not be unmapped under a copy that nobody waited for.
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
    std::uint32_t slot;
    if (free_operations_.empty()) {
        slot = static_cast<std::uint32_t>(operations_.size());
        operations_.emplace_back();
    } else {
        slot = free_operations_.back();
        free_operations_.pop_back();
    }
    operations_[slot].state = state::pending;
    ++statistics_.copies;
    return slot;
}

void queue_core::release(std::uint32_t slot) {
    auto& gone = operations_[slot];
    gone.state = state::unused;
    gone.dropped = false;
    gone.pieces_left = 0;
    gone.last_sequence = 0;
    gone.failure.reset();
    gone.mapped = {};
    gone.duplicate = {};
    free_operations_.push_back(slot);
}

result<std::uint32_t> queue_core::start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                        std::uint64_t length, copy_direction direction,
                                        const copy_hints& hints) {
    enqueue(slot, source, destination, length, direction, hints);
    submit_waiting(false);
    signal();
    return slot;
}

result<void> queue_core::check_own(device_address address, std::uint64_t length) const {
    if (known_ == nullptr)
        return {};
    const auto known = known_->find(address, length);
    if (!known)
        return tl::unexpected(known.error());
    if (known->device_index != device_->who().index)
        return tl::unexpected(
            error(errc::wrong_device,
                  fmt::format("{} bytes at {:#x} belong to device {}, this engine to {}", length,
                              address.value(), known->device_index, device_->who().index)));
    return {};
}

result<std::uint32_t> queue_core::write(device_address to, std::span<const std::byte> from,
                                        const copy_hints& hints) {
    if (from.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes to the device"));
    if (auto checked = check_own(to, from.size()); !checked)
        return tl::unexpected(checked.error());
    return write_unchecked(to, from, hints);
}

result<std::uint32_t> queue_core::write_unchecked(device_address to, std::span<const std::byte> from,
                                                  const copy_hints& hints) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy to the device"));
    const std::lock_guard guard(mutex_);
    const auto slot = new_operation();
    // The engine only reads the source; the driver pins it for writing all the same.
    const auto source =
        reach_host(operations_[slot], {const_cast<std::byte*>(from.data()), from.size()}, true);
    if (!source) {
        release(slot);
        return tl::unexpected(source.error());
    }
    return start(slot, *source, to.value(), from.size(), copy_direction::down, hints);
}

result<std::uint32_t> queue_core::read(std::span<std::byte> to, device_address from,
                                       const copy_hints& hints) {
    if (to.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes from the device"));
    if (auto checked = check_own(from, to.size()); !checked)
        return tl::unexpected(checked.error());
    return read_unchecked(to, from, hints);
}

result<std::uint32_t> queue_core::read_unchecked(std::span<std::byte> to, device_address from,
                                                 const copy_hints& hints) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy from the device"));
    const std::lock_guard guard(mutex_);
    const auto slot = new_operation();
    const auto destination = reach_host(operations_[slot], to, false);
    if (!destination) {
        release(slot);
        return tl::unexpected(destination.error());
    }
    return start(slot, from.value(), *destination, to.size(), copy_direction::up, hints);
}

result<std::uint32_t> queue_core::copy(device_address to, device_address from, std::uint64_t length,
                                       const copy_hints& hints) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes within the device"));
    for (const auto address : {to, from})
        if (auto checked = check_own(address, length); !checked)
            return tl::unexpected(checked.error());
    if (to < from + length && from < to + length)
        return tl::unexpected(error(errc::ranges_overlap, fmt::format("copy of {} bytes from {:#x} to {:#x}",
                                                                      length, from.value(), to.value())));
    return copy_unchecked(to, from, length, copy_direction::within, hints);
}

result<std::uint32_t> queue_core::copy_unchecked(device_address to, device_address from, std::uint64_t length,
                                                 copy_direction direction, const copy_hints& hints) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy"));
    const std::lock_guard guard(mutex_);
    return start(new_operation(), from.value(), to.value(), length, direction, hints);
}

void queue_core::signal() {
    if (!std::exchange(finished_unsignalled_, false))
        return;
    const std::uint64_t one = 1;
    if (event_ && ::write(event_.get(), &one, sizeof(one)) < 0)
        return; // the counter is full: it is readable all the same
}

std::size_t queue_core::poll() {
    if (!device_->ours())
        return 0;
    const std::lock_guard guard(mutex_);
    const auto finished = collect();
    submit_waiting(true);
    signal();
    return finished;
}

bool queue_core::finished(std::uint32_t slot) {
    const std::lock_guard guard(mutex_);
    return operations_[slot].state == state::finished;
}

bool queue_core::done(std::uint32_t slot) {
    if (finished(slot))
        return true;
    poll();
    return finished(slot);
}

result<void> queue_core::wait(std::uint32_t slot, std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    if (!device_->ours())
        return tl::unexpected(error(errc::forked, fmt::format("a copy on {}", device_->who().bus_id)));
    for (;; poll()) {
        std::uint64_t sequence = 0;
        {
            const std::lock_guard guard(mutex_);
            auto& asked = operations_[slot];
            if (asked.state == state::finished) {
                if (asked.failure)
                    return tl::unexpected(*asked.failure);
                return {};
            }
            submit_waiting(true); // nothing that is waited for keeps waiting for company
            // Not submitted for lack of room: then the oldest in flight is what it waits for.
            sequence = asked.last_sequence != 0 ? asked.last_sequence
                       : flights_.empty()       ? 0
                                                : flights_.front().sequence;
        }
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
            deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0)
            return tl::unexpected(
                error(errc::copy_timeout,
                      fmt::format("copy on {}, waited {} ms", device_->who().bus_id, limit.count())));
        std::uint32_t status = 0;
        if (sequence != 0) // the outcome is collected by poll()
            device_->api().wait_for_cs(
                device_->fd(), sequence,
                static_cast<std::uint64_t>(std::min<std::int64_t>(left.count(), 100000)), &status);
        else
            std::this_thread::yield();
    }
}

void queue_core::drop(std::uint32_t slot) {
    const std::lock_guard guard(mutex_);
    if (operations_[slot].state == state::finished)
        release(slot);
    else
        operations_[slot].dropped = true;
}

result<int> queue_core::event_fd() {
    const std::lock_guard guard(mutex_);
    if (!event_) {
        unique_fd made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!made)
            return tl::unexpected(error(errno == EMFILE || errno == ENFILE ? errc::descriptors_exhausted
                                                                           : errc::system_call_failed,
                                        "eventfd", errno));
        // The program's signals are its own: the watcher takes none.
        sigset_t all, before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        watcher_ = std::thread([this] { watch(); });
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        event_ = std::move(made);
    }
    return event_.get();
}

void queue_core::watch() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
        if (flights_.empty() && waiting_.empty()) {
            watch_->wait(lock);
            continue;
        }
        const auto sequence = flights_.empty() ? 0 : flights_.front().sequence;
        lock.unlock();
        std::uint32_t status = 0;
        if (sequence != 0)
            device_->api().wait_for_cs(device_->fd(), sequence, 10000, &status);
        lock.lock();
        collect();
        submit_waiting(true);
        signal();
    }
}

std::vector<queue_use> queue_core::queues() {
    const std::lock_guard guard(mutex_);
    std::vector<queue_use> all;
    for (const auto& [number, use] : queues_)
        all.push_back({number, use.bytes, use.busy_ns, use.depth});
    return all;
}

copy_statistics queue_core::statistics() {
    const std::lock_guard guard(mutex_);
    return statistics_;
}

} // namespace gaudi
