// SPDX-License-Identifier: BSD-3-Clause
// Copies between places of this process: finds the devices of both addresses, starts a copy, and keeps what
// has not completed. UCX's own staging passes no key, cannot retry, and would take a refused copy for
// completed (gotcha U13): its copies are always started.
#include "ucx/copy/process_iface.hpp"

#include <utility>

namespace gaudi_ucx {

process_iface::process_iface(uct_gaudi_copy_md_t& md, process_transport transport)
    : gaudi_iface(*md.module, transport.copies_are, lost_staging, transport.options), md_(md),
      transport_(std::move(transport)) {
    // Per copy, because all interfaces of the process share the device's engine.
    policy_.hints = transport_.hints;
}

void process_iface::query(uct_iface_attr_t& attr) {
    attr.cap.put.max_zcopy = attr.cap.get.max_zcopy = transport_.max_zcopy;
    attr.latency = {transport_.latency, 0};
    attr.bandwidth = {0, transport_.bandwidth};
    attr.overhead = transport_.overhead;
}

void process_iface::estimate_perf(uct_perf_attr_t& attr) {
    if (transport_.estimate_perf)
        transport_.estimate_perf(attr);
    else
        fill_perf_attr(attr, transport_.bandwidth, transport_.latency, transport_.overhead);
}

ucs_status_t process_iface::ep_zcopy(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote,
                                     uct_rkey_t rkey, bool put, uct_completion_t* comp) {
    if (const auto status = check_key(module(), rkey, remote, local.length); status != UCS_OK)
        return status;
    const bool has_key = rkey != UCT_INVALID_RKEY;
    if (has_key && (!has_room() || outstanding().others_wait()))
        return UCS_ERR_NO_RESOURCE;
    const auto mine = number(local.buffer), to = put ? remote : mine, from = put ? mine : remote;
    const bool pins = local.length > transport_.options.nic_max; // a NIC copies less without pinning it
    auto started = start({to, from, local.length, pins ? &local : nullptr}, has_key);
    if (!started && has_key && started.error().code() == gaudi::errc::too_many_operations)
        return UCS_ERR_NO_RESOURCE;
    if (!started) {
        const auto status = refused(started.error(), local.length, to, from);
        if (!has_key)
            log_consequence();
        return status;
    }
    // An engine's copy is not asked, which would take its lock: it has hardly completed. A copy that has
    // failed already goes into the list: UCX expects its error in the completion.
    if (started->path() != gaudi::copy_path::engine && started->finished() && started->wait()) {
        completed(*started);
        return UCS_OK;
    }
    outstanding().add(std::move(*started), comp, ep);
    return UCS_INPROGRESS;
}

ucs_status_t process_iface::ep_copy(kind which, void* buffer, std::size_t length, std::uint64_t remote,
                                    uct_rkey_t rkey, bool put) {
    if (const auto status = check_key(module(), rkey, remote, length); status != UCS_OK)
        return status;
    const auto mine = number(buffer), to = put ? remote : mine, from = put ? mine : remote;
    // Short and buffered copies have no completion: they must be complete when the call returns.
    auto started = start({to, from, length}, false);
    if (!started)
        return refused(started.error(), length, to, from);
    if (const auto done = started->wait(); !done) // it may have completed with an error
        return refused(done.error(), length, to, from);
    count(*started, which == kind::short_copy ? transport_.short_bytes : transport_.bcopy_bytes);
    return UCS_OK;
}

ucs_status_t process_iface::pending_add(uct_ep_h ep, uct_pending_req_t* request) {
    // Room has appeared since: UCX must retry now, because no completion may follow.
    if (has_room() && !nic_full_ && !outstanding().others_wait())
        return UCS_ERR_BUSY;
    return gaudi_iface::pending_add(ep, request);
}

void process_iface::count(const gaudi::copy_ticket& copy, std::atomic<std::uint64_t>* by_kind) const {
    by_kind->fetch_add(copy.bytes(), std::memory_order_relaxed);
    if (transport_.loopback_bytes != nullptr && copy.path() == gaudi::copy_path::nic_loopback)
        transport_.loopback_bytes->fetch_add(copy.bytes(), std::memory_order_relaxed);
}

// Where a NIC's queue is full: errc::too_many_operations to a caller that can retry when a completion wakes
// it. Other copies wait for all earlier ones.
gaudi::result<gaudi::copy_ticket> process_iface::start(const copied_range& range, bool can_retry) {
    if (range.length == 0)
        return gaudi::copy_ticket();
    keep_fence();
    auto started = start_once(range);
    nic_full_ = !started && started.error().code() == gaudi::errc::too_many_operations;
    if (nic_full_ && !(can_retry && !outstanding().none_running())) {
        wait_for_all();
        started = start_once(range);
    }
    return started;
}

gaudi::result<gaudi::copy_ticket> process_iface::start_once(const copied_range& range) {
    auto started = locate_and_start(range);
    // One more attempt: SynapseAI may have closed and opened the device since the address was last seen.
    if (!started && synapse_reopened(range))
        started = locate_and_start(range);
    return started;
}

gaudi::result<gaudi::copy_ticket> process_iface::locate_and_start(const copied_range& range) {
    // The addresses decide which side is a device: UCX passes no memory type with a copy.
    const auto target = md_.attached.locate_or_attach(range.to),
               source = md_.attached.locate_or_attach(range.from);
    for (const auto& [where, address] : {std::pair(target, range.to), std::pair(source, range.from)}) {
        if (where.device)
            continue;
        if (in_device_space(address))
            return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "memory of no open device"));
        if (module().gpus_here)
            refuse_gpu_memory(module(), address, range.length);
    }
    if (!transport_.within_host && !target.device && !source.device)
        return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "neither side is device memory"));
    if (range.pinned != nullptr && target.device != source.device)
        keep_pinned(module(), *range.pinned, target.device ? target.index : source.index, copies());
    return copies().copy(place_of(target, range.to, range.length), place_of(source, range.from, range.length),
                         policy_);
}

// Whether SynapseAI had closed the device and now has the memory open again.
bool process_iface::synapse_reopened(const copied_range& range) {
    for (const auto address : {range.to, range.from})
        if (const auto where = locate(address); where.device) {
            auto device = gaudi::find_open_device(where.index);
            if (!drop_if_closed(device))
                continue;
            module().loss.drop_lost(); // in every interface
            copies().forget(where.index);
            return md_.attached.attach_again(address);
        }
    return false;
}

} // namespace gaudi_ucx
