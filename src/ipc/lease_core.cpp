// SPDX-License-Identifier: BSD-3-Clause
// An importer's lease. Whether it was revoked is one load from memory that the owner writes, so that each
// copy can ask. What gives access to the memory is created when a path first needs it.
#include "src/ipc/lease_core.hpp"

#include "src/error/try.hpp"
#include "src/os/fork_count.hpp"
#include "src/os/internals.hpp"
#include "src/rdma/nic_core.hpp"

#include <fmt/format.h>

namespace gaudi {

lease_resources::~lease_resources() {
    for (auto& [nic, region] : regions)
        if (!core_of(*region.first)->valid_in_this_process())
            (void)region.second.release(); // in a child of fork the region belongs to the parent
    if (!link || forks != fork_count())
        return;
    // Registrations and imports hold references to the DMA-BUF: only when all are gone can the owner's device
    // be closed (gotcha 9), and only then is the owner notified.
    regions.clear();
    imports.clear();
    dmabuf.reset();
    link->post_unanswered(release_dmabuf_request{slot});
}

lease_core::lease_core(const handle_record& handle) : handle_(handle), forks_(fork_count()) {}

result<std::shared_ptr<lease_core>> lease_core::open(const std::shared_ptr<owner_link>& link,
                                                     const handle_record& handle) {
    // The table and the revoke socket come with the first lease of a connection and serve all later ones.
    GAUDI_TRY(auto answer, link->ask(open_lease_request{handle, link->table() == nullptr ? 1U : 0U}));
    const auto [slot, passed] = answer.body;
    if ((passed & opened_lease::table) != 0)
        GAUDI_CHECK(link->set_table(std::move(answer.passed[0])));
    if ((passed & opened_lease::revoke_socket) != 0)
        link->set_revoke_socket(std::move(answer.passed[1]));
    // The owner chooses the slot: beyond the table it would be an address outside the mapping.
    if (link->table() == nullptr || slot >= leases_per_client)
        return tl::unexpected(error(errc::protocol_violated, fmt::format("lease {} of the owner", slot)));
    auto made = std::make_shared<lease_core>(handle);
    made->link_ = link;
    made->slot_ = slot;
    made->word_ = link->table() + slot;
    return made;
}

lease_core::~lease_core() {
    if (!link_ || forks_ != fork_count())
        return;
    resources_.reset(); // released before the owner learns that the lease is closed
    link_->post_unanswered(close_lease_request{slot_});
}

bool lease_core::gone() const {
    if (forks_ != fork_count())
        return true;
    if (link_)
        return link_->gone() || word_->revoked.load(std::memory_order_acquire) != 0;
    // Memory of this process: without an owner's table the generation tells a later allocation from this one.
    // SynapseAI's has none.
    const auto known = known_memory().find(base());
    return handle_.generation != 0 && (!known || known->generation != handle_.generation);
}

error lease_core::gone_error() const {
    if (forks_ != fork_count())
        return {errc::forked,
                fmt::format("a lease of {} bytes of process {}", handle_.allocated, handle_.pid)};
    if (!link_)
        return {errc::handle_stale, fmt::format("{} bytes at {:#x}", handle_.allocated, handle_.base)};
    if (link_->gone())
        return link_->gone_error();
    return {errc::lease_revoked,
            fmt::format("{} bytes at {:#x} of process {}", handle_.allocated, handle_.base, handle_.pid)};
}

result<void> lease_core::check() const {
    if (gone())
        return tl::unexpected(gone_error());
    return {};
}

result<std::shared_ptr<const void>> lease_core::begin_copy() {
    GAUDI_CHECK(check());
    // The importer increments the count before it reads the flag; the owner sets the flag before it waits for
    // the count. Either the importer sees the revocation, or the owner sees the copy.
    word_->in_flight.fetch_add(1);
    auto counted = std::shared_ptr<const void>(word_, [self = shared_from_this()](const void*) {
        // In a child of fork the count is the parent's: its own copy still runs.
        if (self->forks_ == fork_count())
            self->word_->in_flight.fetch_sub(1);
    });
    // Sequentially consistent, as the increment: a weaker order could let both sides miss each other.
    if (word_->revoked.load() != 0)
        return tl::unexpected(gone_error());
    return counted;
}

std::shared_ptr<lease_resources> lease_core::resources() const {
    const std::lock_guard guard(mutex_);
    return resources_;
}

void lease_core::release_resources() {
    // Receives the old resources, which are destroyed after unlocking.
    auto last = std::make_shared<lease_resources>();
    const std::lock_guard guard(mutex_);
    // Copies that start now get new ones, and fail: the lease is gone. Copies in flight keep the old ones.
    resources_.swap(last);
}

// Requests the DMA-BUF when a path first needs it. The caller holds the mutex of `resources`.
result<void> lease_core::fetch_dmabuf(lease_resources& resources) {
    if (resources.dmabuf)
        return {};
    if (resources.no_dmabuf)
        return tl::unexpected(*resources.no_dmabuf);
    if (gone())
        return tl::unexpected(gone_error());
    // From here on the owner may count the DMA-BUF as passed, so that the destructor must report its release.
    resources.link = link_;
    resources.slot = slot_;
    resources.forks = fork_count();
    auto answer = link_->ask(open_dmabuf_request{slot_});
    if (!answer) {
        const auto kind = answer.error().kind();
        // The owner will not answer otherwise later.
        if (kind == error_kind::not_permitted || kind == error_kind::unsupported)
            resources.no_dmabuf = answer.error();
        return tl::unexpected(answer.error());
    }
    resources.dmabuf = fork_private_fd(std::move(answer->passed[0]));
    resources.skip = answer->body.skip;
    resources.window = answer->body.window;
    if (!lies_within(resources.skip, handle_.length, resources.window)) {
        resources.dmabuf.reset();
        return tl::unexpected(
            error(errc::protocol_violated,
                  fmt::format("process {} passed a DMA-BUF of {} bytes, {} of them before the memory",
                              handle_.pid, resources.window, resources.skip)));
    }
    return {};
}

result<device_address> lease_core::imported_by(lease_resources& resources,
                                               const std::shared_ptr<hl_device>& device) {
    const std::lock_guard guard(resources.mutex);
    GAUDI_CHECK(fetch_dmabuf(resources));
    // An import keeps its device open, and a lost device can be opened again only when nothing holds it.
    std::erase_if(resources.imports, [](const auto& each) { return each.second.first->lost(); });
    auto found = resources.imports.find(device.get());
    if (found == resources.imports.end()) {
        if (resources.no_import)
            return tl::unexpected(*resources.no_import);
        auto made = device->import_dmabuf(resources.dmabuf.get(), resources.window);
        if (!made) {
            // The driver does not support it, now or later.
            if (made.error().code() == errc::import_unsupported)
                resources.no_import = made.error();
            return tl::unexpected(made.error());
        }
        found = resources.imports.try_emplace(device.get(), device, std::move(*made)).first;
    }
    return found->second.second.address() + (resources.skip - handle_.offset);
}

result<std::uint32_t> lease_core::key_on(lease_resources& resources, const std::shared_ptr<nic>& nic) {
    const std::lock_guard guard(resources.mutex);
    GAUDI_CHECK(fetch_dmabuf(resources));
    auto found = resources.regions.find(nic.get());
    if (found == resources.regions.end()) {
        // The key has remote rights: in this domain no connection's queue pair can use it.
        GAUDI_TRY(const auto domain, core_of(*nic)->loopback_pd());
        GAUDI_TRY(auto made, core_of(*nic)->register_dmabuf(
                                 {resources.dmabuf.get(), resources.skip,
                                  device_address(handle_.base + handle_.offset), handle_.length},
                                 remote_access::read | remote_access::write, domain));
        found = resources.regions.try_emplace(nic.get(), nic, std::move(made)).first;
    }
    return found->second.second->rkey;
}

} // namespace gaudi
