// SPDX-License-Identifier: BSD-3-Clause
// The path for what no engine can copy, and for small copies, which it makes faster than one. Both ends are
// registered with the same NIC; only the remote end needs a key with rights, which lies in a domain that no
// peer reaches.
#include "src/transfer/paths/nic_loopback.hpp"
#include "src/os/internals.hpp"

#include "src/error/try.hpp"
#include "src/transfer/device_table.hpp"
#include "src/transfer/pending_copy.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <thread>

namespace gaudi {
namespace {

using kind = copy_end::kind;

constexpr std::size_t bounce_bytes = 16 * 1024;
constexpr auto retry_interval = std::chrono::seconds(1);
constexpr auto both_rights = remote_access::read | remote_access::write;

// Keeps a memory region; a child of fork does not deregister it. In a braced list the key is read before
// the region moves.
std::shared_ptr<const void> keep(const std::shared_ptr<nic>& opened_nic, mr_handle region) {
    return {region.release(), [opened_nic, destroy = std::move(region.get_deleter())](ibv_mr* last) {
                if (core_of(*opened_nic)->valid_in_this_process())
                    destroy(last);
            }};
}

} // namespace

class nic_copy final : public pending_copy {
public:
    nic_copy(const copy_job& job, std::shared_ptr<std::atomic<bool>> failed, nic_loopback::ready prepared,
             std::uint64_t number)
        : pending_copy(copy_path::nic_loopback, job.length, job.kept), failed_(std::move(failed)),
          prepared_(std::move(prepared)), number_(number) {}

private:
    using clock = std::chrono::steady_clock;

    std::optional<result<void>> check() override {
        // All copies of one queue pair are polled together: a completion may be another copy's.
        const std::lock_guard guard(prepared_.copier->mutex);
        auto& copier = *prepared_.copier->copies;
        const auto completed = copier.poll();
        if (completed >= number_)
            return result<void>();
        // Progress of any copy counts: this one may have to wait for many before it.
        if (std::exchange(seen_, completed) != completed)
            since_ = clock::now();
        // The queue pair's own timeout and retries end sooner, unless the NIC itself has failed and reports
        // nothing.
        constexpr auto stall_limit = std::chrono::seconds(30);
        if (clock::now() - since_ > stall_limit)
            copier.end(error(errc::connection_broken, "the NIC does not complete a transfer to itself"));
        if (!copier.broken())
            return std::nullopt;
        failed_->store(true, std::memory_order_relaxed);
        return result<void>(tl::unexpected(*copier.broken()));
    }
    void release_resources() override {
        // Registrations of foreign DMA-BUFs and of host memory last as long as the copy, not as long as its
        // ticket.
        prepared_.local.kept.reset();
        prepared_.remote.kept.reset();
    }
    void sleep(std::chrono::milliseconds) override { std::this_thread::yield(); }

    std::shared_ptr<std::atomic<bool>> failed_;
    nic_loopback::ready prepared_;
    const std::uint64_t number_;
    std::uint64_t seen_ = 0;
    clock::time_point since_ = clock::now();
};

result<std::shared_ptr<nic_loop>> nic_loop::make(const std::shared_ptr<nic>& opened_nic) {
    auto made = std::make_shared<nic_loop>();
    made->opened_nic = opened_nic;
    GAUDI_TRY(made->small, nic_copier::make(opened_nic));
    GAUDI_TRY(made->domain, core_of(*opened_nic)->loopback_pd());
    GAUDI_TRY(made->bounce, mapping::anonymous(bounce_bytes));
    GAUDI_TRY(made->bounce_region,
              core_of(*opened_nic)->register_host(made->bounce.bytes(), both_rights, made->domain));
    made->remote_memory = std::make_shared<registration_cache>(core_of(*opened_nic), registration_limits{},
                                                               both_rights, made->domain);
    return made;
}

nic_loop::~nic_loop() {
    // In a child of fork the region belongs to the parent.
    if (opened_nic && !core_of(*opened_nic)->valid_in_this_process())
        (void)bounce_region.release();
}

nic_loopback::nic_loopback(const path_tools& tools) : devices_(tools.devices), pending_(tools.pending) {}
nic_loopback::~nic_loopback() = default;

const char* nic_loopback::unsuited(const copy_job& job) const {
    return job.to.is(kind::host) && job.from.is(kind::host) ? "the CPU copies within host memory" : nullptr;
}

result<void> nic_loopback::make_loop(entry& of, const std::shared_ptr<device>& near_to) {
    nic_choice choice;
    choice.needs_dmabuf = true;
    if (near_to)
        choice.near_to = near_to->info();
    GAUDI_TRY(const auto opened_nic, open_nic(choice));
    for (const auto& each : loops_) // several devices may have the same nearest NIC
        if (const auto known = each.lock();
            known && known->opened_nic->info().name == opened_nic->info().name &&
            known->opened_nic->info().port == opened_nic->info().port && !known->small->broken()) {
            of.loop = known;
            return {};
        }
    GAUDI_TRY(of.loop, nic_loop::make(opened_nic));
    std::erase_if(loops_, [](const auto& each) { return each.expired(); });
    loops_.push_back(of.loop);
    return {};
}

result<nic_loopback::entry*> nic_loopback::entry_for(const copy_job& job, std::shared_ptr<device>& owner) {
    const bool on_device = job.has(kind::device);
    const auto index = on_device ? std::size_t{job.end_of(kind::device).device} + 1 : 0;
    if (index >= entries_.size())
        entries_.resize(index + 1);
    auto& found = entries_[index];
    if (on_device) {
        owner = found.owner.lock();
        if (!owner || owner->lost()) {
            owner = find_open_device(job.end_of(kind::device).device);
            if (!owner)
                return tl::unexpected(error(errc::not_allocated, "memory of a device that was closed"));
            // The device was closed and opened again: registrations and refusals of the old context do not
            // apply.
            if (found.core.lock() != core_of(*owner))
                found = {};
            found.owner = owner;
            found.core = core_of(*owner);
        }
    }
    if (found.loop && !found.loop->small->broken())
        return &found;
    // Not tried again for every copy: forget() or a new context of the device clears it.
    const auto now = std::chrono::steady_clock::now();
    if (found.why_none && now < found.try_again)
        return tl::unexpected(*found.why_none);
    if (const auto made = make_loop(found, owner); !made) {
        found.why_none = made.error();
        const auto kind = made.error().kind(); // a shortage may pass, another reason does not
        const bool may_pass = kind == error_kind::exhausted || kind == error_kind::busy;
        found.try_again = may_pass ? now + retry_interval : std::chrono::steady_clock::time_point::max();
        return tl::unexpected(made.error());
    }
    return &found;
}

result<void> nic_loopback::move_small(nic_loop& loop, device& owner, const copy_job& job) {
    const bool to_device = job.to.is(kind::device);
    const auto& there = to_device ? job.to : job.from;
    auto* const here = to_device ? job.from.host : job.to.host;
    const auto bounce = loop.bounce.bytes();
    const nic_copier::region remote{reinterpret_cast<std::uintptr_t>(bounce.data()),
                                    loop.bounce_region->rkey};
    for (std::size_t done = 0; done < job.length;) {
        const auto bytes = std::min<std::size_t>(job.length - done, bounce.size());
        // The device is the local end, addressed by its local key: this needs no remote key to its memory.
        GAUDI_TRY(const auto region, loop.opened_nic->region(owner, there.address + done, bytes));
        if (to_device)
            std::memcpy(bounce.data(), here + done, bytes);
        GAUDI_CHECK(
            loop.small->carry_out(!to_device, {region.address(), region.local_key(), true}, remote, bytes));
        if (!to_device)
            std::memcpy(here + done, bounce.data(), bytes);
        done += bytes;
    }
    return {};
}

result<copy_ticket> nic_loopback::copy_now(const copy_job& job) {
    const std::lock_guard guard(mutex_);
    std::shared_ptr<device> owner;
    GAUDI_TRY(auto* const known, entry_for(job, owner));
    if (const auto moved = move_small(*known->loop, *owner, job); !moved) {
        const auto kind = moved.error().kind();
        // Neither says anything about the NIC: the next small copy may use it.
        if (kind != error_kind::invalid && kind != error_kind::exhausted)
            failed_->store(true, std::memory_order_relaxed);
        return tl::unexpected(moved.error());
    }
    count_copy(which(), job.length);
    return internals::wrap<copy_ticket>(nullptr, 0U, which(), job.length);
}

result<nic_loopback::registered_end> nic_loopback::local_end(nic_loop& loop, const copy_job& job,
                                                             const copy_end& end) {
    const auto& opened_nic = loop.opened_nic;
    if (end.is(kind::dmabuf)) {
        GAUDI_TRY(auto region,
                  core_of(*opened_nic)
                      ->register_dmabuf({end.fd, end.offset, device_address(end.offset), job.length}));
        return registered_end{{end.offset, region->lkey, true}, keep(opened_nic, std::move(region))};
    }
    const bool on_device = end.is(kind::device);
    std::shared_ptr<device> owner;
    if (on_device) {
        GAUDI_TRY(owner, devices_.device_of(end, job.length));
    }
    auto region = on_device ? opened_nic->region(*owner, end.address, job.length)
                            : opened_nic->region(job.host_of(end));
    if (!region && end.is(kind::host) && &end == &job.from) { // perhaps it is read-only
        const auto host = job.host_of(end);
        GAUDI_TRY(auto source, core_of(*opened_nic)->register_source(host));
        return registered_end{{reinterpret_cast<std::uintptr_t>(host.data()), source->lkey, false},
                              keep(opened_nic, std::move(source))};
    }
    GAUDI_CHECK(region);
    const nic_copier::region at{region->address(), region->local_key(), on_device};
    return registered_end{at, std::make_shared<const local_region>(std::move(*region))};
}

result<nic_loopback::registered_end> nic_loopback::remote_end(nic_loop& loop, const copy_job& job,
                                                              const copy_end& end) {
    const auto& opened_nic = loop.opened_nic;
    switch (end.what) {
    case kind::host: {
        const auto host = job.host_of(end);
        GAUDI_TRY(auto region, &end == &job.from
                                   ? core_of(*opened_nic)->register_source(host, loop.domain)
                                   : core_of(*opened_nic)->register_host(host, both_rights, loop.domain));
        return registered_end{{reinterpret_cast<std::uintptr_t>(host.data()), region->rkey, false},
                              keep(opened_nic, std::move(region))};
    }
    case kind::device: {
        GAUDI_TRY(const auto owner, devices_.device_of(end, job.length));
        GAUDI_TRY(
            auto region,
            owner->attached()
                ? loop.remote_memory->find_or_register_pool(*owner, end.address, job.length)
                : loop.remote_memory->find_or_register(*core_of(owner->heap()), end.address, job.length));
        const auto key = internals::registration(region)->remote_key();
        return registered_end{{end.address.value(), key, true},
                              std::make_shared<const local_region>(std::move(region))};
    }
    case kind::leased: {
        // The owner's DMA-BUF is registered once for the lease, not for each copy.
        auto resources = job.lease->resources(); // the copy keeps them, also if the owner ends
        GAUDI_TRY(const auto key, job.lease->key_on(*resources, opened_nic));
        return registered_end{{end.address.value(), key, true}, std::move(resources)};
    }
    case kind::dmabuf: {
        GAUDI_TRY(auto region,
                  core_of(*opened_nic)
                      ->register_dmabuf({end.fd, end.offset, device_address(end.offset), job.length},
                                        both_rights, loop.domain));
        return registered_end{{end.offset, region->rkey, true}, keep(opened_nic, std::move(region))};
    }
    }
    return tl::unexpected(error(errc::no_path, "an unknown kind of place"));
}

// The remote end is the one that has a remote key anyway; the local end is registered for this process
// anyway.
result<nic_loopback::ready> nic_loopback::register_both(const copy_job& job) {
    ready made;
    std::shared_ptr<nic_loop> loop;
    {
        const std::lock_guard guard(mutex_);
        std::shared_ptr<device> owner;
        GAUDI_TRY(const auto* const known, entry_for(job, owner));
        loop = known->loop;
        if (!loop->large || loop->large->broken()) {
            GAUDI_TRY(auto copies, nic_copier::make(loop->opened_nic));
            loop->large = std::make_shared<shared_copier>(std::move(copies));
        }
        made.copier = loop->large;
    }
    const auto* remote = &job.from;
    for (const auto first : {kind::host, kind::dmabuf, kind::leased}) // the last kind present decides
        if (job.has(first) && !(first == kind::host && !job.has(kind::device)))
            remote = &job.end_of(first);
    made.write = remote == &job.to;
    GAUDI_TRY(made.local, local_end(*loop, job, made.write ? job.from : job.to));
    GAUDI_TRY(made.remote, remote_end(*loop, job, *remote));
    return made;
}

result<void> nic_loopback::prepare(const copy_job& job) {
    return register_both(job).map([](const ready&) {});
}

result<copy_ticket> nic_loopback::start(const copy_job& job) {
    GAUDI_TRY(auto made, register_both(job));
    std::uint64_t number = 0;
    {
        const std::lock_guard guard(made.copier->mutex);
        GAUDI_TRY(number, made.copier->copies->start(made.write, made.local.at, made.remote.at, job.length));
    }
    return pending_.add(std::make_shared<nic_copy>(job, failed_, std::move(made), number));
}

// Drops whole NICs: a NIC may serve several devices and keeps the registrations of each.
void nic_loopback::drop_loops(const std::function<bool(const entry&)>& of) {
    std::vector<std::shared_ptr<nic_loop>> gone;
    for (const auto& each : entries_)
        if (each.loop && of(each))
            gone.push_back(each.loop);
    for (auto& each : entries_)
        if (std::find(gone.begin(), gone.end(), each.loop) != gone.end())
            each.loop.reset();
}

void nic_loopback::forget(unsigned device_index) {
    const std::lock_guard guard(mutex_);
    const auto index = device_index + std::size_t{1};
    if (index >= entries_.size())
        return;
    drop_loops([&](const entry& each) { return &each == &entries_[index]; });
    entries_[index] = {};
}

void nic_loopback::drop_lost() {
    const std::lock_guard guard(mutex_);
    const auto is_gone = [&](const entry& each) {
        if (&each == &entries_.front()) // the entry for copies without a device
            return false;
        const auto core = each.core.lock();
        return !core || core->lost();
    };
    drop_loops(is_gone);
    for (auto& each : entries_)
        if (is_gone(each))
            each = {};
}

} // namespace gaudi
