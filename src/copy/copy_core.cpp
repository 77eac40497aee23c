// SPDX-License-Identifier: BSD-3-Clause
// What both kinds of engines have in common: checks, the outcome of each operation, tickets. Addresses are
// checked before the mutex is taken; the address map has no lock for readers.
#include "src/copy/copy_core.hpp"

#include "src/copy/queue_core.hpp"
#include "src/copy/synapse_core.hpp"
#include "src/error/try.hpp"
#include "src/os/deadline.hpp"

#include <fmt/format.h>

namespace gaudi {

result<std::shared_ptr<copy_core>> copy_core::make(const std::shared_ptr<hl_device>& device,
                                                   const address_map* map, const copy_options& options) {
    if (!device->owned())
        return synapse_core::make(device, map);
    return queue_core::make(device, map, options);
}

std::uint32_t copy_core::begin_operation(std::uint64_t bytes, const copy_details& details) {
    const auto slot = new_operation();
    auto& begun = at(slot);
    begun.bytes = bytes;
    begun.counted = details.counted;
    begun.kept = details.kept;
    return slot;
}

result<std::uint32_t> copy_core::write(device_address to, std::span<const std::byte> from,
                                       const copy_details& details) {
    if (from.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes to the device"));
    if (details.checked)
        GAUDI_CHECK(check(to, from.size()));
    if (device_->lost())
        return tl::unexpected(device_->loss().describe("copy to the device"));
    const std::lock_guard guard(mutex_);
    const auto slot = begin_operation(from.size(), details);
    // The engine only reads the source, but the driver pins it for writing all the same.
    const auto source = reach_host(slot, {const_cast<std::byte*>(from.data()), from.size()}, true);
    if (!source) {
        release(slot);
        return tl::unexpected(source.error());
    }
    return start(slot, *source, to.value(), from.size(), copy_direction::down, details.hints);
}

result<std::uint32_t> copy_core::read(std::span<std::byte> to, device_address from,
                                      const copy_details& details) {
    if (to.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes from the device"));
    if (details.checked)
        GAUDI_CHECK(check(from, to.size()));
    if (device_->lost())
        return tl::unexpected(device_->loss().describe("copy from the device"));
    const std::lock_guard guard(mutex_);
    const auto slot = begin_operation(to.size(), details);
    const auto destination = reach_host(slot, to, false);
    if (!destination) {
        release(slot);
        return tl::unexpected(destination.error());
    }
    return start(slot, from.value(), *destination, to.size(), copy_direction::up, details.hints);
}

result<std::uint32_t> copy_core::copy(device_address to, device_address from, std::uint64_t length,
                                      const copy_details& details) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes within the device"));
    for (const auto address : {to, from})
        if (details.checked)
            GAUDI_CHECK(check(address, length));
    // The engines copy in pieces, on several queues at once: overlapping ranges would have no defined result.
    if (to < from + length && from < to + length)
        return tl::unexpected(error(errc::ranges_overlap, fmt::format("copy of {} bytes from {:#x} to {:#x}",
                                                                      length, from.value(), to.value())));
    return start_on_device(to, from, length, copy_direction::within, details);
}

result<std::uint32_t> copy_core::copy_imported(device_address to, device_address from, std::uint64_t length,
                                               copy_direction direction, const copy_details& details) {
    return start_on_device(to, from, length, direction, details);
}

result<std::uint32_t> copy_core::start_on_device(device_address to, device_address from, std::uint64_t length,
                                                 copy_direction direction, const copy_details& details) {
    if (device_->lost())
        return tl::unexpected(device_->loss().describe("copy"));
    const std::lock_guard guard(mutex_);
    return start(begin_operation(length, details), from.value(), to.value(), length, direction,
                 details.hints);
}

std::size_t copy_core::poll() {
    // Before the mutex: a thread of the parent may have held it when the process forked, and would never
    // release it here.
    if (!device_->valid_in_this_process())
        return 0;
    const std::lock_guard guard(mutex_);
    const auto count = advance();
    event_.signal();
    return count;
}

bool copy_core::finished(std::uint32_t slot) {
    if (!device_->valid_in_this_process())
        return true;                  // wait() reports it
    std::shared_ptr<const void> last; // destroyed after unlocking
    const std::lock_guard guard(mutex_);
    if (at(slot).state != state::finished)
        return false;
    last.swap(at(slot).kept);
    return true;
}

bool copy_core::done(std::uint32_t slot) {
    if (finished(slot))
        return true;
    poll();
    return finished(slot);
}

result<void> copy_core::wait(std::uint32_t slot, std::chrono::milliseconds limit) {
    using clock = std::chrono::steady_clock;
    const auto deadline = deadline_after(limit);
    if (!device_->valid_in_this_process())
        return tl::unexpected(error(errc::forked, fmt::format("a copy on {}", device_->identity().bus_id)));
    for (;; poll()) {
        {
            std::shared_ptr<const void> last; // destroyed after unlocking
            const std::lock_guard guard(mutex_);
            auto& awaited = at(slot);
            if (awaited.state == state::finished) {
                last.swap(awaited.kept);
                if (awaited.failure)
                    return tl::unexpected(*awaited.failure);
                return {};
            }
            flush_batch();
        }
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - clock::now());
        if (left.count() <= 0) {
            if (done(slot)) // also advances a copy whose caller only asks with a limit of 0
                continue;
            return tl::unexpected(
                error(errc::copy_timeout,
                      fmt::format("copy on {}, waited {} ms", device_->identity().bus_id, limit.count())));
        }
        sleep(slot, left);
    }
}

void copy_core::drop(std::uint32_t slot) {
    if (!device_->valid_in_this_process())
        return;                       // the parent's copy
    std::shared_ptr<const void> last; // destroyed after unlocking
    std::unique_lock lock(mutex_);
    // What is kept, a lease for instance, must not be destroyed while the device still accesses the memory;
    // and not by the thread that collects the completion, which holds the mutex.
    if (at(slot).kept && at(slot).state != state::finished) {
        lock.unlock();
        (void)wait(slot, no_limit);
        lock.lock();
    }
    last.swap(at(slot).kept);
    if (at(slot).state == state::finished)
        release(slot);
    else
        at(slot).dropped = true;
}

void copy_core::finish(operation& done) {
    slab_.release(done.bounce, !done.failure);
    done.state = state::finished;
    event_.copy_ended();
    ++statistics_.completed;
    if (done.failure)
        ++statistics_.failed;
    else if (done.counted)
        count_copy(*done.counted, done.bytes);
}

result<int> copy_core::event_fd(event_when when) {
    const std::lock_guard guard(mutex_);
    return event_.open(when, [this] { watch(); });
}

void copy_core::arm() {
    if (!device_->valid_in_this_process())
        return;
    const std::lock_guard guard(mutex_);
    event_.arm();
}

engine_statistics copy_core::statistics() {
    const std::lock_guard guard(mutex_);
    return statistics_;
}

} // namespace gaudi
