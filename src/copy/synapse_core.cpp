// SPDX-License-Identifier: BSD-3-Clause
#include "src/copy/synapse_core.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <sys/eventfd.h>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

constexpr auto pause = std::chrono::microseconds(50);

class synapse_pin : public pin_core {
public:
    synapse_pin(std::shared_ptr<synapse_core> engine, std::span<std::byte> bytes)
        : engine_(std::move(engine)), bytes_(bytes) {}
    ~synapse_pin() override { engine_->unpin(bytes_); }
    [[nodiscard]] std::span<std::byte> bytes() const override { return bytes_; }
    // SynapseAI's calls take host memory by its pointer.
    [[nodiscard]] device_address address() const override {
        return device_address(reinterpret_cast<std::uintptr_t>(bytes_.data()));
    }

private:
    std::shared_ptr<synapse_core> engine_;
    std::span<std::byte> bytes_;
};

} // namespace

result<std::shared_ptr<copy_core>> synapse_core::make(const std::shared_ptr<hl_device>& device,
                                                      const address_map* known) {
    const auto absent = [&](std::string_view why) {
        return tl::unexpected(
            error(errc::copies_absent, fmt::format("the queues of {} belong to SynapseAI in this process, {}",
                                                   device->who().bus_id, why)));
    };
    const auto holder = find_synapse_device_of(device->fd());
    const auto api = find_synapse_copies();
    if (!holder || !api)
        return absent("which offers no copies");
    auto made = std::make_shared<synapse_core>(device, known, *api, holder->id);
    for (auto& stream : made->streams_)
        if (const int status = api->synStreamCreateGeneric(&stream, holder->id, 0); status != 0)
            return absent(fmt::format("and synStreamCreateGeneric answers {}", status));
    auto slab = mapping::anonymous(bounces * bounce_bytes);
    if (!slab)
        return tl::unexpected(slab.error());
    made->slab_ = std::move(*slab);
    if (const int status =
            api->synHostMap(holder->id, made->slab_.bytes().size(), made->slab_.bytes().data());
        status != 0)
        return absent(fmt::format("and synHostMap answers {}", status));
    made->slab_mapped_ = true;
    return made;
}

synapse_core::synapse_core(std::shared_ptr<hl_device> device, const address_map* known, synapse_copies api,
                           std::uint32_t id)
    : device_(std::move(device)), known_(known), api_(api), id_(id) {
    for (std::size_t i = 0; i < bounces; ++i)
        free_bounces_.push_back(static_cast<int>(i));
}

synapse_core::~synapse_core() {
    if (!device_->ours()) { // a forked child: SynapseAI is its parent's
        if (watcher_.joinable())
            static_cast<void>(new (std::nothrow) std::thread(std::move(watcher_)));
        return;
    }
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
    }
    if (watcher_.joinable())
        watcher_.join();
    // Memory must not be unmapped under a copy that nobody waited for.
    for (const auto deadline = clock::now() + std::chrono::seconds(30);
         pending_ != 0 && !device_->lost() && clock::now() < deadline; std::this_thread::sleep_for(pause))
        poll();
    for (auto& each : operations_)
        if (each.event != nullptr)
            api_.synEventDestroy(each.event);
    for (auto* const each : spare_events_)
        api_.synEventDestroy(each);
    if (slab_mapped_)
        api_.synHostUnmap(id_, slab_.bytes().data());
    for (auto* const each : streams_)
        if (each != nullptr)
            api_.synStreamDestroy(each);
}

error synapse_core::failed(std::string_view call, int status) const {
    if (status == synapse_copies::device_reset)
        device_->mark_lost(fmt::format("{} answers synDeviceReset", call));
    if (device_->lost())
        return device_->lost_error("copy");
    return {errc::copy_refused, fmt::format("{} on {} answers {}", call, device_->who().bus_id, status)};
}

// SynapseAI's pool has no allocations that we know of: its window is all that can be checked.
result<void> synapse_core::check(device_address address, std::uint64_t length) const {
    const auto window = known_ != nullptr ? known_->window_at(address) : std::nullopt;
    if (known_ == nullptr || (window && window->device_index == device_->who().index &&
                              length <= window->size - (address - window->base)))
        return {};
    return tl::unexpected(
        error(errc::not_allocated, fmt::format("{} bytes at {:#x} of SynapseAI's pool on {}", length,
                                               address.value(), device_->who().bus_id)));
}

std::uint32_t synapse_core::new_operation() {
    std::uint32_t slot = 0;
    if (free_operations_.empty()) {
        slot = static_cast<std::uint32_t>(operations_.size());
        operations_.emplace_back();
    } else {
        slot = free_operations_.back();
        free_operations_.pop_back();
    }
    operations_[slot].state = state::pending;
    return slot;
}

void synapse_core::release(std::uint32_t slot) {
    auto& gone = operations_[slot];
    if (gone.event != nullptr)
        spare_events_.push_back(gone.event);
    gone = {};
    free_operations_.push_back(slot);
}

result<std::uint64_t> synapse_core::reach_host(operation& owner, std::span<std::byte> memory, bool writes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    if (auto next = pinned_.upper_bound(begin); next != pinned_.begin())
        if (--next; begin + memory.size() <= next->first + next->second) {
            ++statistics_.pinned;
            return begin;
        }
    if (memory.size() <= bounce_bytes && !free_bounces_.empty()) {
        ++statistics_.bounced;
        owner.bounce = free_bounces_.back();
        free_bounces_.pop_back();
        auto* const room = slab_.bytes().data() + static_cast<std::size_t>(owner.bounce) * bounce_bytes;
        if (writes)
            std::memcpy(room, memory.data(), memory.size());
        else
            owner.deliver_to = memory;
        return reinterpret_cast<std::uintptr_t>(room);
    }
    if (const int status = api_.synHostMap(id_, memory.size(), memory.data()); status != 0)
        return tl::unexpected(
            error(errc::host_range_invalid, fmt::format("synHostMap of {} bytes at {} answers {}",
                                                        memory.size(), fmt::ptr(memory.data()), status)));
    ++statistics_.mapped;
    owner.mapped = memory.data();
    return begin;
}

result<std::uint32_t> synapse_core::start(std::uint32_t slot, std::uint64_t from, std::uint64_t to,
                                          std::uint64_t length, copy_direction direction) {
    auto& begun = operations_[slot];
    int status = 0;
    if (!spare_events_.empty()) {
        begun.event = spare_events_.back();
        spare_events_.pop_back();
    } else {
        status = api_.synEventCreate(&begun.event, id_, 0);
    }
    const auto way = static_cast<int>(direction); // in SynapseAI's order
    auto* const stream = streams_[static_cast<std::size_t>(direction)];
    const char* call = "synEventCreate";
    if (status == 0) {
        call = "synMemCopyAsync";
        status = api_.synMemCopyAsync(stream, from, length, to, way);
    }
    if (status == 0) {
        call = "synEventRecord";
        status = api_.synEventRecord(begun.event, stream);
    }
    ++pending_;
    ++statistics_.copies;
    statistics_.bytes += length;
    if (status != 0) {
        const auto why = failed(call, status);
        finish(begun);
        release(slot);
        return tl::unexpected(why);
    }
    ++statistics_.submissions;
    ++statistics_.packets;
    return slot;
}

result<std::uint32_t> synapse_core::write(device_address to, std::span<const std::byte> from,
                                          const copy_hints& hints) {
    if (from.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes to the device"));
    if (auto checked = check(to, from.size()); !checked)
        return tl::unexpected(checked.error());
    return write_unchecked(to, from, hints);
}

result<std::uint32_t> synapse_core::write_unchecked(device_address to, std::span<const std::byte> from,
                                                    const copy_hints&) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy to the device"));
    const std::lock_guard guard(mutex_);
    const auto slot = new_operation();
    const auto source =
        reach_host(operations_[slot], {const_cast<std::byte*>(from.data()), from.size()}, true);
    if (!source) {
        release(slot);
        return tl::unexpected(source.error());
    }
    return start(slot, *source, to.value(), from.size(), copy_direction::down);
}

result<std::uint32_t> synapse_core::read(std::span<std::byte> to, device_address from,
                                         const copy_hints& hints) {
    if (to.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes from the device"));
    if (auto checked = check(from, to.size()); !checked)
        return tl::unexpected(checked.error());
    return read_unchecked(to, from, hints);
}

result<std::uint32_t> synapse_core::read_unchecked(std::span<std::byte> to, device_address from,
                                                   const copy_hints&) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy from the device"));
    const std::lock_guard guard(mutex_);
    const auto slot = new_operation();
    const auto target = reach_host(operations_[slot], to, false);
    if (!target) {
        release(slot);
        return tl::unexpected(target.error());
    }
    return start(slot, from.value(), *target, to.size(), copy_direction::up);
}

result<std::uint32_t> synapse_core::copy(device_address to, device_address from, std::uint64_t length,
                                         const copy_hints& hints) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes within the device"));
    for (const auto address : {to, from})
        if (auto checked = check(address, length); !checked)
            return tl::unexpected(checked.error());
    if (to < from + length && from < to + length)
        return tl::unexpected(error(errc::ranges_overlap, fmt::format("copy of {} bytes from {:#x} to {:#x}",
                                                                      length, from.value(), to.value())));
    return copy_unchecked(to, from, length, copy_direction::within, hints);
}

result<std::uint32_t> synapse_core::copy_unchecked(device_address to, device_address from,
                                                   std::uint64_t length, copy_direction direction,
                                                   const copy_hints&) {
    if (direction != copy_direction::within) // memory of another device: SynapseAI knows no such thing
        return tl::unexpected(error(errc::copies_absent, "SynapseAI copies within its own device only"));
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy"));
    const std::lock_guard guard(mutex_);
    return start(new_operation(), from.value(), to.value(), length, direction);
}

void synapse_core::finish(operation& done) {
    if (done.bounce >= 0) {
        if (!done.deliver_to.empty() && !done.failure)
            std::memcpy(done.deliver_to.data(),
                        slab_.bytes().data() + static_cast<std::size_t>(done.bounce) * bounce_bytes,
                        done.deliver_to.size());
        free_bounces_.push_back(done.bounce);
        done.bounce = -1;
    }
    if (done.mapped != nullptr)
        api_.synHostUnmap(id_, std::exchange(done.mapped, nullptr));
    done.state = state::finished;
    --pending_;
    ++statistics_.landed;
    if (done.failure)
        ++statistics_.failed;
}

std::size_t synapse_core::collect() {
    std::size_t count = 0;
    if (pending_ == 0)
        return count;
    for (std::uint32_t slot = 0; slot < operations_.size(); ++slot) {
        auto& each = operations_[slot];
        if (each.state != state::pending)
            continue;
        const int status = api_.synEventQuery(each.event);
        if (status == synapse_copies::busy)
            continue;
        if (status != synapse_copies::success)
            each.failure = failed("synEventQuery", status);
        finish(each);
        ++count;
        if (each.dropped)
            release(slot);
    }
    if (count != 0 && event_) {
        const std::uint64_t one = 1;
        (void)!::write(event_.get(), &one, sizeof(one));
    }
    return count;
}

std::size_t synapse_core::poll() {
    if (!device_->ours())
        return 0;
    const std::lock_guard guard(mutex_);
    return collect();
}

bool synapse_core::finished(std::uint32_t slot) {
    const std::lock_guard guard(mutex_);
    return operations_[slot].state == state::finished;
}

bool synapse_core::done(std::uint32_t slot) {
    poll();
    return finished(slot);
}

result<void> synapse_core::wait(std::uint32_t slot, std::chrono::milliseconds limit) {
    for (const auto deadline = clock::now() + limit;; std::this_thread::sleep_for(pause)) {
        poll();
        {
            const std::lock_guard guard(mutex_);
            const auto& asked = operations_[slot];
            if (asked.state == state::finished) {
                if (asked.failure)
                    return tl::unexpected(*asked.failure);
                return {};
            }
        }
        if (clock::now() >= deadline)
            return tl::unexpected(
                error(errc::copy_timeout,
                      fmt::format("copy on {}, waited {} ms", device_->who().bus_id, limit.count())));
    }
}

void synapse_core::drop(std::uint32_t slot) {
    const std::lock_guard guard(mutex_);
    if (operations_[slot].state == state::finished)
        release(slot);
    else
        operations_[slot].dropped = true;
}

// SynapseAI has nothing to sleep on that several could share: a thread looks for those who sleep.
void synapse_core::watch() {
    for (;;) {
        {
            const std::lock_guard guard(mutex_);
            if (ending_)
                return;
            collect();
        }
        std::this_thread::sleep_for(pause);
    }
}

result<int> synapse_core::event_fd() {
    const std::lock_guard guard(mutex_);
    if (!event_) {
        unique_fd made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!made)
            return tl::unexpected(error(errc::descriptors_exhausted, "eventfd", errno));
        sigset_t all, before; // the program's signals are its own
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        watcher_ = std::thread([this] { watch(); });
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        event_ = std::move(made);
    }
    return event_.get();
}

result<pinned_memory> synapse_core::pin(std::span<std::byte> memory) {
    if (const int status = api_.synHostMap(id_, memory.size(), memory.data()); status != 0)
        return tl::unexpected(
            error(errc::host_range_invalid, fmt::format("synHostMap of {} bytes at {} answers {}",
                                                        memory.size(), fmt::ptr(memory.data()), status)));
    const std::lock_guard guard(mutex_);
    pinned_.emplace(reinterpret_cast<std::uintptr_t>(memory.data()), memory.size());
    return pinned_memory(std::make_unique<synapse_pin>(shared_from_this(), memory));
}

void synapse_core::unpin(std::span<std::byte> memory) {
    const std::lock_guard guard(mutex_);
    const auto [first, last] = pinned_.equal_range(reinterpret_cast<std::uintptr_t>(memory.data()));
    const auto found =
        std::find_if(first, last, [&](const auto& each) { return each.second == memory.size(); });
    if (found == last)
        return;
    pinned_.erase(found);
    api_.synHostUnmap(id_, memory.data());
}

copy_statistics synapse_core::statistics() {
    const std::lock_guard guard(mutex_);
    return statistics_;
}

} // namespace gaudi
