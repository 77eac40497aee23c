// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/lease_set.hpp"

#include "src/error/try.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <sys/socket.h>

namespace gaudi {

result<lease_set::slot_number> lease_set::open(const handle_record& handle) {
    if (leases_.size() >= leases_per_client)
        return tl::unexpected(
            error(errc::leases_exhausted, fmt::format("one process may hold {} leases", leases_per_client)));
    if (table_.data() == nullptr) {
        GAUDI_TRY(table_, shared_memory::make("gaudi-direct leases", leases_per_client * sizeof(lease_word)));
    }
    while (leases_.contains(next_))
        next_ = (next_ + 1) % leases_per_client;
    const auto slot = next_;
    next_ = (next_ + 1) % leases_per_client;
    auto& lease = leases_[slot];
    lease.base = handle.base;
    lease.length = handle.allocated;
    lease.generation = handle.generation;
    lease.secret = handle.secret;
    // The importer can write to the table and may have left any value here.
    word(slot).revoked.store(0);
    word(slot).in_flight.store(0);
    return slot;
}

lease_record* lease_set::find_usable(slot_number slot) {
    const auto lease = leases_.find(slot);
    // The record decides, not the word in shared memory: that one only announces.
    return lease != leases_.end() && !lease->second.revoked && !lease->second.closing ? &lease->second
                                                                                      : nullptr;
}

std::optional<lease_record> lease_set::close(slot_number slot) {
    const auto lease = leases_.find(slot);
    if (lease == leases_.end())
        return {};
    // The owner's engine still copies for it: the record keeps the piece and its pins until then.
    lease->second.closing = true;
    if (lease->second.copies != 0)
        return {};
    const auto closed = lease->second;
    leases_.erase(lease);
    return closed;
}

void lease_set::copy_started(slot_number slot) {
    ++leases_.at(slot).copies;
}

std::optional<lease_record> lease_set::copy_ended(slot_number slot) {
    const auto lease = leases_.find(slot);
    if (lease == leases_.end() || --lease->second.copies != 0 || !lease->second.closing)
        return {};
    return close(slot);
}

void lease_set::dmabuf_released(slot_number slot) {
    if (const auto lease = leases_.find(slot); lease != leases_.end())
        lease->second.dmabuf_given = false;
}

void lease_set::revoke_if(const std::function<bool(const lease_record&)>& chosen) {
    for (auto& [slot, lease] : leases_) {
        if (!chosen(lease))
            continue;
        lease.revoked = true;
        // Before the announcement: an importer that receives it must find the word set.
        word(slot).revoked.store(1);
        // A full socket wakes its reader anyway; a socket without a reader is closed.
        if (revoke_socket_ && ::send(revoke_socket_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
            errno != EAGAIN)
            revoke_socket_.reset();
    }
}

bool lease_set::any(const std::function<bool(const lease_record&)>& chosen) const {
    return std::any_of(leases_.begin(), leases_.end(), [&](const auto& each) { return chosen(each.second); });
}

unsigned lease_set::in_flight(slot_number slot) const {
    // An importer without descriptors cannot access the memory by itself: what it counts means nothing.
    return leases_.at(slot).copies + (importer_copies_ ? word(slot).in_flight.load() : 0);
}

bool lease_set::quiet() const {
    return std::all_of(leases_.begin(), leases_.end(),
                       [&](const auto& each) { return in_flight(each.first) == 0; });
}

unique_fd lease_set::open_revoke_socket() {
    int ends[2];
    // Non-blocking: the owner must never wait for an importer that does not read.
    if (revoke_socket_ || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return {};
    revoke_socket_ = fork_private_fd(unique_fd(ends[0]));
    return unique_fd(ends[1]);
}

} // namespace gaudi
