// SPDX-License-Identifier: BSD-3-Clause
// Leases are cached, because opening one asks another process. No lock is held while that process answers, so
// that two threads may open the same lease: the second one found is dropped.
#include "src/ipc/importer.hpp"

#include "src/error/try.hpp"
#include "src/os/internals.hpp"
#include "src/os/per_process.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace gaudi {

importer& importer::self() {
    return per_process<importer>();
}

result<std::shared_ptr<owner_link>> importer::link_to(const process_identity& owner,
                                                      const ipc_settings& settings) {
    {
        const std::lock_guard guard(mutex_);
        if (const auto found = links_.find(owner.random); found != links_.end())
            if (auto alive = found->second.lock(); alive && !alive->gone())
                return alive;
    }
    // Without the mutex: the broker's thread takes it in owner_gone(), also for another owner.
    auto made = owner_link::connect(owner, settings, [owner] { importer::self().owner_gone(owner); });
    if (!made)
        return made;
    const std::lock_guard guard(mutex_);
    auto& known = links_[owner.random];
    if (auto alive = known.lock(); alive && !alive->gone())
        return alive; // another thread connected first
    known = *made;
    lost_.erase(owner.random); // the owner answers: it has not ended
    std::erase_if(links_, [](const auto& each) { return each.second.expired(); });
    return made;
}

void importer::owner_gone(const process_identity& owner) {
    std::shared_ptr<owner_link> newer; // released after unlocking
    {
        const std::lock_guard guard(mutex_);
        // The hang-up of an earlier connection may be reported after a new one was made.
        if (const auto link = links_.find(owner.random); link != links_.end())
            newer = link->second.lock();
        const bool ended = !newer || newer->gone();
        if (ended)
            links_.erase(owner.random);
        // A bound for processes that see many owners end. Beyond it has_ended() relies on /proc alone.
        if (ended && lost_.size() < 4096)
            lost_.insert(owner.random);
    }
    release_revoked();
}

void importer::evict(std::size_t limit, std::vector<std::shared_ptr<lease_core>>& out) {
    while (leases_.size() > limit) {
        auto oldest = leases_.begin();
        for (auto each = leases_.begin(); each != leases_.end(); ++each)
            if (each->second.last_use < oldest->second.last_use)
                oldest = each;
        out.push_back(std::move(oldest->second.lease));
        leases_.erase(oldest);
        ++counts_.evicted;
    }
    // An evicted lease stays in in_use_ while a buffer holds it, so that the next import finds it again.
    std::erase_if(in_use_, [](const auto& each) { return each.second.expired(); });
}

result<std::shared_ptr<lease_core>> importer::open(const handle_record& handle) {
    // With generation and secret: an address that was freed and shared again is another lease.
    const key wanted{handle.random, handle.base, handle.generation, handle.secret};
    // Destroyed after unlocking: each sends a message to its owner.
    std::vector<std::shared_ptr<lease_core>> dropped;
    {
        const std::lock_guard guard(mutex_);
        if (const auto found = leases_.find(wanted); found != leases_.end()) {
            if (!found->second.lease->gone()) {
                ++counts_.hits;
                found->second.last_use = ++uses_;
                return found->second.lease;
            }
        }
        if (const auto found = in_use_.find(wanted); found != in_use_.end())
            if (auto alive = found->second.lock(); alive && !alive->gone()) {
                ++counts_.hits;
                leases_[wanted] = {alive, ++uses_};
                return alive;
            }
        ++counts_.misses;
        // The owner waits until the importer closes the leases that it revoked.
        for (auto each = leases_.begin(); each != leases_.end();) {
            if (each->second.lease->gone())
                dropped.push_back(std::move(each->second.lease));
            each = each->second.lease ? std::next(each) : leases_.erase(each);
        }
    }
    // Before the owner is asked: it may be waiting for exactly these.
    dropped.clear();
    GAUDI_TRY(const auto settings, get_ipc());
    if (handle.machine != own_identity().machine)
        return tl::unexpected(error(errc::other_host, fmt::format("memory of process {}", handle.pid)));
    result<std::shared_ptr<lease_core>> made = nullptr;
    if (handle.owner() == own_identity()) {
        // A handle of this process needs no lease: the address map tells whether the memory is still there.
        made = std::make_shared<lease_core>(handle);
        if ((*made)->gone())
            return tl::unexpected((*made)->gone_error());
    } else {
        GAUDI_TRY(const auto link, link_to(handle.owner(), settings));
        made = lease_core::open(link, handle);
        if (!made)
            return made;
    }
    const std::lock_guard guard(mutex_);
    if (const auto found = in_use_.find(wanted); found != in_use_.end())
        if (auto faster = found->second.lock(); faster && !faster->gone()) { // another thread opened it first
            dropped.push_back(std::move(*made));
            leases_[wanted] = {faster, ++uses_};
            return faster;
        }
    leases_[wanted] = {*made, ++uses_};
    in_use_[wanted] = *made;
    evict(std::max<std::size_t>(settings.imports, 1), dropped);
    return made;
}

void importer::release_revoked() {
    std::vector<std::shared_ptr<lease_core>> all; // released after unlocking
    {
        const std::lock_guard guard(mutex_);
        // Copies in flight keep their resources, also of leases that are no longer cached.
        for (const auto& [which, each] : in_use_)
            if (auto alive = each.lock())
                all.push_back(std::move(alive));
        for (auto each = leases_.begin(); each != leases_.end();) {
            const bool gone = each->second.lease->gone();
            if (gone)
                all.push_back(std::move(each->second.lease));
            each = gone ? leases_.erase(each) : std::next(each);
        }
    }
    for (const auto& each : all)
        if (each->gone())
            each->release_resources();
}

bool importer::lost(const std::array<std::uint64_t, 2>& owner) {
    const std::lock_guard guard(mutex_);
    return lost_.contains(owner);
}

void importer::drop_all() {
    decltype(leases_) dropped;
    {
        const std::lock_guard guard(mutex_);
        dropped.swap(leases_);
    }
}

void importer::count(ipc_statistics& into) {
    const std::lock_guard guard(mutex_);
    into.hits = counts_.hits;
    into.misses = counts_.misses;
    into.evicted = counts_.evicted;
    into.imports = static_cast<std::uint64_t>(std::count_if(
        in_use_.begin(), in_use_.end(), [](const auto& each) { return !each.second.expired(); }));
}

// ---- the public functions and class ----

result<void> check_handle(const memory_handle& handle) {
    return read_handle(handle.bytes).map([](const handle_record&) {});
}

result<imported_buffer> import_memory(std::span<const std::byte> handle, const import_options& options) {
    GAUDI_TRY(const auto record, read_handle(handle));
    GAUDI_TRY(auto lease, importer::self().open(record));
    return internals::wrap<imported_buffer>(std::move(lease), record.offset, record.length, options);
}

imported_buffer::imported_buffer() = default;
imported_buffer::imported_buffer(std::shared_ptr<lease_core> lease, std::uint64_t offset,
                                 std::uint64_t length, const import_options& options)
    : lease_(std::move(lease)), offset_(offset), length_(length), options_(options) {}
imported_buffer::imported_buffer(imported_buffer&&) noexcept = default;
imported_buffer& imported_buffer::operator=(imported_buffer&&) noexcept = default;
imported_buffer::~imported_buffer() = default;

bool imported_buffer::gone() const {
    return !lease_ || lease_->gone();
}

} // namespace gaudi
