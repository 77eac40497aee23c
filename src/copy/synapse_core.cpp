// SPDX-License-Identifier: BSD-3-Clause
// An engine for devices that SynapseAI has open in this process. SynapseAI's scheduler owns the queues, where
// submissions by this library would collide with its own (gotcha 36): all copies go through its calls.
#include "src/copy/synapse_core.hpp"

#include "abi/synapse.h"
#include "src/error/try.hpp"
#include "src/os/internals.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

// How often events are queried: SynapseAI has no descriptor to wait on.
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
                                                      const address_map* map) {
    const auto absent = [&](std::string_view why) {
        return tl::unexpected(
            error(errc::copies_absent, fmt::format("the queues of {} belong to SynapseAI in this process, {}",
                                                   device->identity().bus_id, why)));
    };
    GAUDI_TRY(const auto holder, device->synapse_side());
    const auto api = find_synapse_copies();
    if (!api)
        return absent("which offers no copies");
    GAUDI_TRY(auto slab, bounce_slab::make(32));
    auto core = std::make_shared<synapse_core>(device, map, *api, holder.id, std::move(slab));
    // One stream for each direction, so that copies in opposite directions overlap.
    // The destructor of `core` destroys the streams made so far.
    for (auto& stream : core->streams_)
        if (const int status = api->synStreamCreateGeneric(&stream, holder.id, 0); status != 0)
            return absent(fmt::format("and synStreamCreateGeneric answers {}", status));
    if (const auto mapped = core->map_host(core->slab_.bytes()); !mapped)
        return absent(fmt::format("and {}", mapped.error().observed()));
    core->slab_mapped_ = true;
    return core;
}

synapse_core::synapse_core(std::shared_ptr<hl_device> device, const address_map* map, synapse_copies api,
                           std::uint32_t id, bounce_slab slab)
    : copy_core(std::move(device), map, std::move(slab)), api_(api), id_(id) {}

synapse_core::~synapse_core() {
    if (!device_->valid_in_this_process()) { // a child of fork: SynapseAI belongs to the parent
        event_.abandon();
        return;
    }
    event_.end(mutex_);
    // Memory must not be unmapped while a copy in flight uses it.
    for (const auto deadline = clock::now() + std::chrono::seconds(30);
         pending_ != 0 && !device_->lost() && clock::now() < deadline; std::this_thread::sleep_for(pause))
        poll();
    for (std::uint32_t slot = 0; slot < operations_.size(); ++slot)
        if (auto* const event = operations_[slot].event; event != nullptr)
            api_.synEventDestroy(event);
    for (auto* const event : spare_events_)
        api_.synEventDestroy(event);
    // After the last copy, and before the destructor of the base frees the memory.
    if (slab_mapped_)
        api_.synHostUnmap(id_, slab_.bytes().data());
    for (auto* const stream : streams_)
        if (stream != nullptr)
            api_.synStreamDestroy(stream);
}

error synapse_core::failed(std::string_view call, int status) const {
    if (status == synDeviceReset || status == synSynapseTerminated)
        device_->loss().mark(fmt::format("{} answers {}", call, status));
    // The program may have released the device through SynapseAI, which gives this library no notice.
    if (const auto held = device_->synapse_side(); !held)
        return held.error();
    if (device_->lost())
        return device_->loss().describe("copy");
    return {errc::copy_refused, fmt::format("{} on {} answers {}", call, device_->identity().bus_id, status)};
}

// The allocations in SynapseAI's pool are not known: only its window can be checked.
result<void> synapse_core::check(device_address address, std::uint64_t length) const {
    const auto window = map_ != nullptr ? map_->window_at(address, length) : std::nullopt;
    if (map_ == nullptr || (window && window->device_index == device_->identity().index))
        return {};
    return tl::unexpected(
        error(errc::not_allocated, fmt::format("{} bytes at {:#x} of SynapseAI's pool on {}", length,
                                               address.value(), device_->identity().bus_id)));
}

std::uint32_t synapse_core::new_operation() {
    const auto slot = operations_.take();
    operations_[slot].state = state::pending;
    return slot;
}

void synapse_core::release(std::uint32_t slot) {
    if (auto* const event = operations_[slot].event; event != nullptr)
        spare_events_.push_back(event);
    operations_.release(slot);
}

result<void> synapse_core::map_host(std::span<std::byte> memory) {
    const int status = api_.synHostMap(id_, memory.size(), memory.data());
    if (status == 0)
        return {};
    GAUDI_CHECK(device_->synapse_side());
    return tl::unexpected(
        error(errc::host_range_invalid, fmt::format("synHostMap of {} bytes at {} answers {}", memory.size(),
                                                    fmt::ptr(memory.data()), status)));
}

result<synapse_core::host_pieces> synapse_core::acquire(std::span<std::byte> memory) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()), end = begin + memory.size();
    host_pieces pieces;
    for (auto at = begin; at < end;) {
        auto next = mapped_.upper_bound(at);
        const auto limit = next == mapped_.end() ? end : std::min<std::uintptr_t>(end, next->first);
        auto present = next == mapped_.begin() ? mapped_.end() : std::prev(next);
        if (present == mapped_.end() || present->first + present->second.length <= at) {
            if (const auto mapped = map_host(memory.subspan(at - begin, limit - at)); !mapped) {
                release_pieces(pieces);
                return tl::unexpected(mapped.error());
            }
            present = mapped_.emplace(at, host_mapping_use{limit - at, 0}).first;
        }
        ++present->second.users;
        const auto stop = std::min<std::uintptr_t>(end, present->first + present->second.length);
        pieces.push_back({at, stop - at});
        at = stop;
    }
    return pieces;
}

void synapse_core::release_pieces(const host_pieces& pieces) {
    for (const auto& piece : pieces) {
        const auto used = std::prev(mapped_.upper_bound(piece.begin));
        if (--used->second.users != 0)
            continue;
        api_.synHostUnmap(id_,
                          reinterpret_cast<const void*>(used->first)); // NOLINT(performance-no-int-to-ptr)
        mapped_.erase(used);
    }
}

result<std::uint64_t> synapse_core::reach_host(std::uint32_t slot, std::span<std::byte> memory,
                                               bool to_device) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    auto& begun = operations_[slot];
    auto next = pinned_.upper_bound(begin);
    const bool pinned = next != pinned_.begin() &&
                        begin + memory.size() <= std::prev(next)->first + std::prev(next)->second.length;
    if (!pinned)
        if (const auto offset = slab_.take(begun.bounce, memory, to_device)) {
            ++statistics_.bounced;
            return reinterpret_cast<std::uintptr_t>(slab_.bytes().data()) + *offset;
        }
    GAUDI_TRY(begun.pieces, acquire(memory));
    ++(pinned ? statistics_.pinned : statistics_.mapped);
    // SynapseAI takes host memory by its pointer, which is therefore the address that the caller gets.
    return begin;
}

// One call for each mapping that the host memory lies in.
int synapse_core::copy_pieces(synapse_copies::handle stream, std::uint64_t source, std::uint64_t destination,
                              std::uint64_t length, copy_direction direction,
                              const host_pieces& pieces) const {
    const auto direction_number = static_cast<int>(direction); // in SynapseAI's order
    if (pieces.size() <= 1)
        return api_.synMemCopyAsync(stream, source, length, destination, direction_number);
    std::uint64_t done = 0;
    for (const auto& piece : pieces) {
        if (const int status = api_.synMemCopyAsync(stream, source + done, piece.length, destination + done,
                                                    direction_number);
            status != synSuccess)
            return status;
        done += piece.length;
    }
    return synSuccess;
}

result<std::uint32_t> synapse_core::start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                          std::uint64_t length, copy_direction direction, const copy_hints&) {
    auto& begun = operations_[slot];
    int status = 0;
    if (!spare_events_.empty()) {
        begun.event = spare_events_.back();
        spare_events_.pop_back();
    } else {
        status = api_.synEventCreate(&begun.event, id_, 0);
    }
    // An event that was recorded on the stream after the copy completes with it: the only report of its end.
    auto* const stream = streams_[static_cast<std::size_t>(direction)];
    const char* call = "synEventCreate";
    if (status == 0) {
        call = "synMemCopyAsync";
        status = copy_pieces(stream, source, destination, length, direction, begun.pieces);
        if (status == 0) {
            call = "synEventRecord";
            status = api_.synEventRecord(begun.event, stream);
        }
        // A part of the copy may be on the stream: its memory must not be unmapped before it has run.
        if (status != 0)
            api_.synStreamSynchronize(stream);
    }
    // Also where a call failed: end_operation() takes it back.
    ++pending_;
    event_.wake();
    ++statistics_.copies;
    statistics_.bytes += length;
    if (status != 0) {
        const auto why = failed(call, status);
        begun.failure = why;
        end_operation(begun);
        release(slot);
        return tl::unexpected(why);
    }
    ++statistics_.submissions;
    ++statistics_.packets;
    return slot;
}

result<std::uint32_t> synapse_core::copy_imported(device_address, device_address, std::uint64_t,
                                                  copy_direction, const copy_details&) {
    return tl::unexpected(error(errc::copies_absent, "SynapseAI copies within its own device only"));
}

void synapse_core::end_operation(synapse_operation& done) {
    release_pieces(std::exchange(done.pieces, {}));
    --pending_;
    finish(done);
}

std::size_t synapse_core::advance() {
    std::size_t count = 0;
    if (pending_ == 0)
        return count;
    for (std::uint32_t slot = 0; slot < operations_.size(); ++slot) {
        auto& polled = operations_[slot];
        if (polled.state != state::pending)
            continue;
        const int status = api_.synEventQuery(polled.event);
        if (status == synBusy)
            continue;
        if (status != synSuccess) {
            polled.failure = failed("synEventQuery", status);
            // What failed is the question: the copy may still run, and its memory must not be unmapped
            // before.
            for (auto* const stream : streams_)
                api_.synStreamSynchronize(stream);
        }
        end_operation(polled);
        ++count;
        if (polled.dropped)
            release(slot);
    }
    return count;
}

void synapse_core::sleep(std::uint32_t, std::chrono::microseconds limit) {
    std::this_thread::sleep_for(std::min(limit, pause));
}

// SynapseAI has no descriptor to wait for: this thread polls on behalf of readers of event_fd().
void synapse_core::watch() {
    std::unique_lock lock(mutex_);
    while (!event_.ending()) {
        if (!event_.wanted() || pending_ == 0) {
            event_.sleep(lock);
            continue;
        }
        advance();
        event_.signal();
        event_.sleep_for(lock, pause);
    }
}

result<pinned_memory> synapse_core::pin(std::span<std::byte> memory) {
    const std::lock_guard guard(mutex_);
    GAUDI_TRY(auto pieces, acquire(memory));
    pinned_.emplace(reinterpret_cast<std::uintptr_t>(memory.data()),
                    pinned_range{memory.size(), std::move(pieces)});
    return internals::wrap<pinned_memory>(std::make_unique<synapse_pin>(shared_from_this(), memory));
}

void synapse_core::unpin(std::span<std::byte> memory) {
    const std::lock_guard guard(mutex_);
    const auto [first, last] = pinned_.equal_range(reinterpret_cast<std::uintptr_t>(memory.data()));
    const auto entry =
        std::find_if(first, last, [&](const auto& range) { return range.second.length == memory.size(); });
    if (entry == last)
        return;
    const auto pieces = std::move(entry->second.pieces);
    pinned_.erase(entry);
    release_pieces(pieces);
}

} // namespace gaudi
