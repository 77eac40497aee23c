// SPDX-License-Identifier: BSD-3-Clause
// Two queue pairs of one NIC, connected to each other. All requests are posted on `local_`; `remote_` only
// answers, in a protection domain that no peer's queue pair belongs to.
#include "src/rdma/nic_copier.hpp"
#include "src/os/internals.hpp"

#include "src/error/try.hpp"
#include "src/os/round_up.hpp"
#include "src/rdma/completion_status.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace gaudi {

result<std::unique_ptr<nic_copier>> nic_copier::make(const std::shared_ptr<nic>& opened) {
    return make(opened, queue_limits());
}

result<std::unique_ptr<nic_copier>> nic_copier::make(const std::shared_ptr<nic>& opened,
                                                     const queue_limits& limits) {
    if (!opened->info().dmabuf)
        return tl::unexpected(error(errc::dmabuf_unsupported, opened->info().why_no_dmabuf));
    auto made = std::make_unique<nic_copier>(opened);
    GAUDI_TRY(const auto loopback, core_of(*opened)->loopback_pd());
    constexpr auto both = remote_access::read | remote_access::write;
    const auto prepare = [&](std::span<std::byte> byte, remote_access rights, ibv_pd* domain,
                             mr_handle& region, queue_pair& pair) -> result<void> {
        GAUDI_TRY(region, core_of(*opened)->register_host(byte, rights, domain));
        GAUDI_TRY(pair, queue_pair::make(core_of(*opened), limits.depth, 1, rights, domain));
        return {};
    };
    // No rights for the remote side at the local end, and no domain of its own: it uses the registrations
    // that the process has in any case.
    GAUDI_CHECK(prepare(made->local_byte_, remote_access::none, nullptr, made->local_region_, made->local_));
    GAUDI_CHECK(prepare(made->remote_byte_, both, loopback, made->remote_region_, made->remote_));
    GAUDI_CHECK(made->connect(limits));
    return made;
}

nic_copier::~nic_copier() {
    if (core_of(*opened_nic_)->valid_in_this_process())
        return;
    local_.abandon(); // in a child of fork the queue pairs belong to the parent
    remote_.abandon();
    (void)local_region_.release();
    (void)remote_region_.release();
}

result<void> nic_copier::connect(const queue_limits& limits) {
    const auto local = local_.endpoint(), remote = remote_.endpoint();
    GAUDI_CHECK(local_.connect(local, remote, limits.timeout, limits.retries));
    return remote_.connect(remote, local, limits.timeout, limits.retries);
}

void nic_copier::end(error why) {
    if (broken_)
        return;
    local_.destroy(); // no posted request moves data after this
    broken_ = std::move(why);
}

result<void> nic_copier::carry_out(bool write, region local, region remote, std::uint64_t length) {
    GAUDI_TRY(const auto number, start(write, local, remote, length));
    // The queue pair's own timeout and retries end sooner, unless the NIC itself has failed and reports
    // nothing. The clock is not read before that is likely: reading it takes as long as a short transfer.
    std::optional<std::chrono::steady_clock::time_point> deadline;
    for (unsigned polls = 1; poll() < number; ++polls) {
        if (broken_)
            return tl::unexpected(*broken_);
        if (polls % 65536 != 0)
            continue;
        const auto now = std::chrono::steady_clock::now();
        if (!deadline)
            deadline = now + std::chrono::seconds(10);
        if (now > *deadline)
            end(error(errc::connection_broken, "the NIC does not complete a transfer to itself"));
    }
    return {};
}

result<std::uint64_t> nic_copier::start(bool write, region local, region remote, std::uint64_t length) {
    const auto longest = std::min<std::uint64_t>(opened_nic_->info().longest_message, 1ULL << 30);
    const auto pieces = static_cast<unsigned>((length + longest - 1) / longest);
    const bool push = write ? remote.device : local.device;
    const auto needed = pieces + (push ? 1 : 0);
    if (broken_)
        return tl::unexpected(*broken_);
    if (needed > local_.sends())
        return tl::unexpected(
            error(errc::size_beyond_memory, fmt::format("copy of {} bytes by a NIC", length)));
    if (posted_ + needed > local_.sends())
        (void)poll(); // completions free entries of the queue
    if (posted_ + needed > local_.sends())
        return tl::unexpected(
            error(errc::too_many_operations, fmt::format("{} requests are on the NIC's queue", posted_)));
    requests_.resize(needed);
    entries_.resize(needed);
    for (unsigned i = 0; i < pieces; ++i) {
        const auto done = i * longest;
        const auto bytes = static_cast<std::uint32_t>(std::min(length - done, longest));
        entries_[i] = {local.address + done, bytes, local.key};
        requests_[i].opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
        requests_[i].wr.rdma = {remote.address + done, remote.key};
    }
    // A one-byte read back pushes the data to the device: on PCIe a read does not pass the writes before it.
    if (push && write) {
        entries_[pieces] = {reinterpret_cast<std::uintptr_t>(local_byte_), 1, local_region_->lkey};
        requests_[pieces].opcode = IBV_WR_RDMA_READ;
        requests_[pieces].wr.rdma = {remote.address + length - 1, remote.key};
    } else if (push) {
        entries_[pieces] = {local.address + length - 1, 1, local.key};
        requests_[pieces].opcode = IBV_WR_RDMA_WRITE;
        requests_[pieces].wr.rdma = {reinterpret_cast<std::uintptr_t>(remote_byte_), remote_region_->rkey};
    }
    for (unsigned i = 0; i < needed; ++i) {
        // A write may start before an RDMA Read that was posted earlier has completed, unless it is fenced.
        requests_[i].send_flags = push && !write && i == pieces ? unsigned{IBV_SEND_FENCE} : 0U;
        requests_[i].sg_list = &entries_[i];
        requests_[i].num_sge = 1;
        requests_[i].wr_id = needed; // requests that have completed when the signalled one completes
        requests_[i].next = i + 1 < needed ? &requests_[i + 1] : nullptr;
    }
    // One completion for each copy, so that completions counted are copies completed, in order.
    requests_.back().send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (const int rc = ::ibv_post_send(local_.get(), requests_.data(), &bad); rc != 0) {
        // Some requests may have been posted (gotcha V12): the queue pair ends, so that they cannot write
        // later.
        end(error(errc::connection_broken, "ibv_post_send to the NIC itself", rc));
        return tl::unexpected(*broken_);
    }
    posted_ += needed;
    return ++started_;
}

result<std::uint64_t> nic_copier::start_flush(region local) {
    local.device = false; // nothing is written to it
    return start(true, local, {reinterpret_cast<std::uintptr_t>(remote_byte_), remote_region_->rkey}, 1);
}

std::uint64_t nic_copier::poll() {
    constexpr int most = 16;
    ibv_wc done[most];
    for (int count = most; !broken_ && count == most;) {
        count = ::ibv_poll_cq(local_.completions(), most, done);
        if (count < 0)
            end(error(errc::connection_broken, "ibv_poll_cq of the NIC's transfers to itself"));
        for (int i = 0; i < count && !broken_; ++i) {
            if (done[i].status != IBV_WC_SUCCESS) {
                end(error(errc::connection_broken,
                          fmt::format("a transfer of {} to itself: {}", opened_nic_->info().name,
                                      name_of(done[i].status))));
                break;
            }
            // The entries of the unsignalled requests become free with this completion (gotcha V5).
            posted_ -= static_cast<unsigned>(done[i].wr_id);
            ++completed_;
        }
    }
    return completed_;
}

} // namespace gaudi
