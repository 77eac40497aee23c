// SPDX-License-Identifier: BSD-3-Clause
// Weak references, unless the copier was told to keep engines: a copier must not keep a device open by
// accident, because nothing else could open it then (gotcha 1).
#include "src/transfer/device_table.hpp"

#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/ipc/lease_core.hpp"
#include "src/memory/editable_address_map.hpp"
#include "src/os/internals.hpp"

#include <fmt/format.h>

namespace gaudi {

device_table::entry& device_table::at(unsigned index) {
    if (index >= entries_.size())
        entries_.resize(index + 1);
    return entries_[index];
}

result<std::shared_ptr<copy_core>> device_table::engine_of(unsigned index) {
    const std::lock_guard guard(mutex_);
    auto& entry_of_device = at(index);
    if (auto core = entry_of_device.kept ? entry_of_device.kept : entry_of_device.engine.lock();
        core && !core->device().lost())
        return core;
    const auto owner = find_open_device(index);
    if (!owner)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("device {} is not open in this process", index)));
    // For this context only: the device may be opened again, with SynapseAI in the process for instance.
    if (entry_of_device.why_none && entry_of_device.without_engine.lock() == core_of(*owner))
        return tl::unexpected(*entry_of_device.why_none);
    const auto engine = owner->copies(options_.engines);
    if (!engine) {
        if (engine.error().code() == errc::copies_absent) {
            entry_of_device.without_engine = core_of(*owner);
            entry_of_device.why_none = engine.error();
        }
        return tl::unexpected(engine.error());
    }
    const auto& core = core_of(*engine);
    if (options_.keep)
        entry_of_device.kept = core;
    if (when_new_ && entry_of_device.engine.lock() != core)
        when_new_(*core);
    entry_of_device.engine = core;
    return core;
}

result<std::shared_ptr<device>> device_table::device_of(const copy_end& end, std::uint64_t length) {
    auto owner = find_open_device(end.device);
    if (!owner)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("{} bytes at {:#x}", length, end.address.value())));
    auto index = end.device;
    // The allocations within SynapseAI's pool are not known: its window is checked instead.
    if (owner->attached()) {
        const auto window = known_memory().window_at(end.address, length);
        if (!window)
            return tl::unexpected(no_allocation(end.address, length, " of SynapseAI's pool"));
        index = window->device_index;
    } else {
        GAUDI_TRY(const auto allocation, known_memory().find(end.address, length));
        index = allocation.device_index;
    }
    if (index != end.device)
        return tl::unexpected(
            error(errc::wrong_device, fmt::format("{} bytes at {:#x} are not memory of {}", length,
                                                  end.address.value(), core_of(*owner)->identity().bus_id)));
    return owner;
}

std::shared_ptr<copy_core> device_table::find_joined(const owner_link* link, std::uint64_t node) {
    const std::lock_guard guard(mutex_);
    for (const auto& joined : joined_)
        if (joined.link == link && joined.node == node)
            if (auto engine = joined.engine.lock())
                return engine;
    return nullptr;
}

result<std::shared_ptr<copy_core>> device_table::engine_on_context(const lease_core& lease) {
    const auto* const link = lease.link().get(); // nullptr: memory of this process
    const auto node = lease.handle().device;
    if (auto engine = find_joined(link, node))
        return engine;
    // A device of this process may have this very context: joining it once more would take another number of
    // a member.
    for (const auto& device : registry::self().all_open()) // the same context, whichever process opened it
        if (core_of(*device)->node() == node)
            if (auto own = engine_of(core_of(*device)->identity().index))
                return own;
    if (lease.local())
        return tl::unexpected(lease.gone_error());
    GAUDI_TRY(const auto joined, lease.link()->contexts().engine(*lease.link(), node, lease.slot()));
    const auto& engine = core_of(joined);
    const std::lock_guard guard(mutex_);
    // The link may have ended and its address may be another link's by now: only live engines count.
    std::erase_if(joined_, [&](const auto& other) {
        return other.engine.expired() || (other.link == link && other.node == node);
    });
    if (when_new_)
        when_new_(*engine);
    joined_.push_back({link, node, engine});
    return engine;
}

void device_table::forget(unsigned index) {
    std::shared_ptr<copy_core> gone; // destroyed after unlocking: an engine may wait for its copies
    const std::lock_guard guard(mutex_);
    auto& entry_of_device = at(index); // `engine` stays, so that copies in flight are still polled
    gone = std::move(entry_of_device.kept);
    entry_of_device.why_none.reset();
}

void device_table::drop_lost() {
    std::vector<std::shared_ptr<copy_core>> gone;
    const std::lock_guard guard(mutex_);
    for (auto& entry_of_device : entries_)
        if (entry_of_device.kept && entry_of_device.kept->device().lost())
            gone.push_back(std::move(entry_of_device.kept));
}

void device_table::when_new(std::function<void(copy_core&)> visit) {
    const std::lock_guard guard(mutex_);
    when_new_ = std::move(visit);
}

} // namespace gaudi
