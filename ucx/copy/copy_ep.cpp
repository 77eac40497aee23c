// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/copy/copy_iface.hpp"

#include <cstring>
#include <utility>

namespace gaudi_ucx {
namespace {

std::byte* host_pointer(std::uint64_t address) {
    return reinterpret_cast<std::byte*>(address);
}

// One copy between any two places: started, or done where no engine is needed.
struct started {
    ucs_status_t status;
    gaudi::copy_ticket ticket;
};

started refused(uct_gaudi_copy_iface_t& iface, const gaudi::error& error, std::uint64_t to,
                std::uint64_t from, std::size_t length) {
    gaudi_log(iface.module(), ERROR, "copy of {} bytes from {:#x} to {:#x}: {}", length, from, to,
              error.message());
    return {status_of(error), {}};
}

// Between two devices of this process, which takes two engines in turn.
gaudi::result<gaudi::across_report> across(unsigned to_index, std::uint64_t to, unsigned from_index,
                                           std::uint64_t from, std::size_t length) {
    const auto to_device = gaudi::find_open_device(to_index),
               from_device = gaudi::find_open_device(from_index);
    if (!to_device || !from_device)
        return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "the device was closed"));
    return gaudi::copy_across(*to_device, gaudi::device_address(to), *from_device,
                              gaudi::device_address(from), length);
}

// A small copy between host and device through a NIC. False: it was not possible, the engine shall do it, and
// say why not.
bool by_nic(uct_gaudi_copy_iface_t& iface, unsigned index, bool down, std::uint64_t to, std::uint64_t from,
            std::size_t length) {
    const auto device = gaudi::find_open_device(index);
    auto* loop = device ? loop_of(iface, *device, index) : nullptr;
    if (loop == nullptr)
        return false;
    const auto done = down ? loop->write(*device, gaudi::device_address(to), {host_pointer(from), length})
                           : loop->read(*device, {host_pointer(to), length}, gaudi::device_address(from));
    if (!done) {
        // What is wrong with the memory the engine says as well; anything else would fail every time.
        if (status_of(done.error()) != UCS_ERR_INVALID_ADDR) {
            gaudi_log(iface.module(), DIAG, "no more small copies through a NIC: {}", done.error().message());
            iface.loops[index].reset();
        }
        return false;
    }
    iface.module().counters.loopback_bytes.fetch_add(length, std::memory_order_relaxed);
    return true;
}

started start(uct_gaudi_copy_iface_t& iface, std::uint64_t to, std::uint64_t from, std::size_t length) {
    if (length == 0)
        return {UCS_OK, {}};
    if (iface.copies.take_fence()) // outcomes are told by progress, and nowhere else
        iface.copies.for_each([](gaudi::copy_ticket& before) { (void)before.wait(); });
    const auto target = locate_or_attach(iface.md(), to), source = locate_or_attach(iface.md(), from);
    if ((!target.device && in_device_space(to)) || (!source.device && in_device_space(from)))
        return refused(iface, gaudi::error(gaudi::errc::not_allocated, "memory of no open device"), to, from,
                       length);
    if (!target.device && !source.device) {
        std::memcpy(host_pointer(to), host_pointer(from), length);
        return {UCS_OK, {}};
    }
    if (target.device && source.device && target.index != source.index) {
        const auto report = across(target.index, to, source.index, from, length);
        return report ? started{UCS_OK, {}} : refused(iface, report.error(), to, from, length);
    }
    const auto index = target.device ? target.index : source.index;
    const bool between = target.device != source.device; // host and device
    if (between && length <= iface.md().nic_max && by_nic(iface, index, target.device, to, from, length))
        return {UCS_OK, {}};
    auto engine = engine_of(iface, index);
    if (!engine) {
        // Queues that are SynapseAI's, a Gaudi3: then the NIC is the only way, for any length.
        if (engine.error().code() == gaudi::errc::copies_absent && between &&
            by_nic(iface, index, target.device, to, from, length))
            return {UCS_OK, {}};
        return refused(iface, engine.error(), to, from, length);
    }
    auto ticket = !source.device ? engine->write(gaudi::device_address(to), {host_pointer(from), length})
                  : !target.device
                      ? engine->read({host_pointer(to), length}, gaudi::device_address(from))
                      : engine->copy(gaudi::device_address(to), gaudi::device_address(from), length);
    if (!ticket)
        return refused(iface, ticket.error(), to, from, length);
    return {UCS_INPROGRESS, std::move(*ticket)};
}

ucs_status_t copy_now(uct_gaudi_copy_iface_t& iface, std::uint64_t to, std::uint64_t from,
                      std::size_t length) {
    auto begun = start(iface, to, from, length);
    if (begun.status != UCS_INPROGRESS)
        return begun.status;
    const auto done = begun.ticket.wait();
    return done ? UCS_OK : refused(iface, done.error(), to, from, length).status;
}

// What short and buffered operations have in common: the key, the counter, the copy.
ucs_status_t checked_copy(uct_gaudi_copy_iface_t& iface, bool put, std::uint64_t local, std::size_t length,
                          std::uint64_t remote, uct_rkey_t rkey,
                          std::atomic<std::uint64_t> uct_gaudi_counters::*counter) {
    if (const auto status = check_key(iface.module(), rkey, remote, length); status != UCS_OK)
        return status;
    (iface.module().counters.*counter).fetch_add(length, std::memory_order_relaxed);
    return copy_now(iface, put ? remote : local, put ? local : remote, length);
}

// Registered host memory stays pinned for the engine that is used with it.
void keep_pinned(uct_gaudi_copy_iface_t& iface, const uct_iov_t& iov, std::uint64_t other) {
    const auto device = locate(other);
    if (!device.device || !worth_pinning(iov))
        return;
    if (auto engine = engine_of(iface, device.index))
        pin(iov, *engine);
}

ucs_status_t zcopy(uct_ep_h ep, const uct_iov_t* iov, size_t iovcnt, std::uint64_t remote, uct_rkey_t rkey,
                   uct_completion_t* comp, bool put) {
    return guarded([&]() -> ucs_status_t {
        auto& iface = copy_iface(ep->iface);
        if (iovcnt == 0)
            return UCS_OK;
        if (iovcnt > 1 || iov->count > 1)
            return UCS_ERR_INVALID_PARAM; // as max_iov says
        if (const auto status = check_key(iface.module(), rkey, remote, iov->length); status != UCS_OK)
            return status;
        keep_pinned(iface, *iov, remote);
        const auto local = number(iov->buffer);
        auto begun = start(iface, put ? remote : local, put ? local : remote, iov->length);
        if (!UCS_STATUS_IS_ERR(begun.status))
            iface.module().counters.zcopy_bytes.fetch_add(iov->length, std::memory_order_relaxed);
        if (begun.status != UCS_INPROGRESS)
            return begun.status;
        iface.copies.add(std::move(begun.ticket), comp);
        return UCS_INPROGRESS;
    });
}

ucs_status_t uct_gaudi_copy_ep_put_zcopy(uct_ep_h ep, const uct_iov_t* iov, size_t iovcnt, uint64_t remote,
                                         uct_rkey_t rkey, uct_completion_t* comp) {
    return zcopy(ep, iov, iovcnt, remote, rkey, comp, true);
}

ucs_status_t uct_gaudi_copy_ep_get_zcopy(uct_ep_h ep, const uct_iov_t* iov, size_t iovcnt, uint64_t remote,
                                         uct_rkey_t rkey, uct_completion_t* comp) {
    return zcopy(ep, iov, iovcnt, remote, rkey, comp, false);
}

// UCX stages through these two with any length, whatever the limit says.
ucs_status_t uct_gaudi_copy_ep_put_short(uct_ep_h ep, const void* buffer, unsigned length, uint64_t remote,
                                         uct_rkey_t rkey) {
    return guarded([&] {
        return checked_copy(copy_iface(ep->iface), true, number(buffer), length, remote, rkey,
                            &uct_gaudi_counters::short_bytes);
    });
}

ucs_status_t uct_gaudi_copy_ep_get_short(uct_ep_h ep, void* buffer, unsigned length, uint64_t remote,
                                         uct_rkey_t rkey) {
    return guarded([&] {
        return checked_copy(copy_iface(ep->iface), false, number(buffer), length, remote, rkey,
                            &uct_gaudi_counters::short_bytes);
    });
}

ssize_t uct_gaudi_copy_ep_put_bcopy(uct_ep_h ep, uct_pack_callback_t pack, void* arg, uint64_t remote,
                                    uct_rkey_t rkey) {
    std::size_t length = 0;
    const auto status = guarded([&] {
        auto& iface = copy_iface(ep->iface);
        iface.bounce.resize(iface.config.max_bcopy);
        length = pack(iface.bounce.data(), arg);
        return checked_copy(iface, true, number(iface.bounce.data()), length, remote, rkey,
                            &uct_gaudi_counters::bcopy_bytes);
    });
    return status == UCS_OK ? static_cast<ssize_t>(length) : static_cast<ssize_t>(status);
}

ucs_status_t uct_gaudi_copy_ep_get_bcopy(uct_ep_h ep, uct_unpack_callback_t unpack, void* arg, size_t length,
                                         uint64_t remote, uct_rkey_t rkey, uct_completion_t*) {
    return guarded([&]() -> ucs_status_t {
        auto& iface = copy_iface(ep->iface);
        if (length > iface.config.max_bcopy)
            return UCS_ERR_INVALID_PARAM;
        iface.bounce.resize(iface.config.max_bcopy);
        const auto status = checked_copy(iface, false, number(iface.bounce.data()), length, remote, rkey,
                                         &uct_gaudi_counters::bcopy_bytes);
        if (status == UCS_OK)
            unpack(arg, iface.bounce.data(), length);
        return status;
    });
}

ucs_status_t uct_gaudi_copy_ep_flush(uct_ep_h ep, unsigned, uct_completion_t* comp) {
    return guarded([&] { return copy_iface(ep->iface).copies.flush(comp); });
}

ucs_status_t uct_gaudi_copy_ep_fence(uct_ep_h ep, unsigned) {
    copy_iface(ep->iface).copies.fence();
    return UCS_OK;
}

ucs_status_t uct_gaudi_copy_ep_create(const uct_ep_params_t* params, uct_ep_h* ep_p) {
    return guarded([&]() -> ucs_status_t {
        auto& iface = copy_iface(params->iface);
        const auto& ucx = iface.module().ucx;
        auto made = std::make_unique<uct_gaudi_copy_ep_t>();
        int count = 1;
        const auto status =
            ucx.uct_base_ep_t_init(&made->super, ucx.uct_base_ep_t_class, &count, &iface.super);
        if (status == UCS_OK)
            *ep_p = &made.release()->super.super;
        return status;
    });
}

void uct_gaudi_copy_ep_destroy(uct_ep_h ep) {
    const auto& ucx = copy_iface(ep->iface).module().ucx;
    ucx.ucs_class_call_cleanup_chain(ucx.uct_base_ep_t_class, ep, -1);
    delete reinterpret_cast<uct_gaudi_copy_ep_t*>(ep);
}

} // namespace

void fill_copy_ep_ops(uct_iface_ops_t& ops) {
    ops.ep_put_short = uct_gaudi_copy_ep_put_short;
    ops.ep_put_bcopy = uct_gaudi_copy_ep_put_bcopy;
    ops.ep_put_zcopy = uct_gaudi_copy_ep_put_zcopy;
    ops.ep_get_short = uct_gaudi_copy_ep_get_short;
    ops.ep_get_bcopy = uct_gaudi_copy_ep_get_bcopy;
    ops.ep_get_zcopy = uct_gaudi_copy_ep_get_zcopy;
    // Nothing is ever refused for lack of room, so nobody has to wait for it.
    ops.ep_pending_add = [](uct_ep_h, uct_pending_req_t*, unsigned) { return UCS_ERR_BUSY; };
    ops.ep_pending_purge = [](uct_ep_h, uct_pending_purge_callback_t, void*) {};
    ops.ep_flush = uct_gaudi_copy_ep_flush;
    ops.ep_fence = uct_gaudi_copy_ep_fence;
    ops.ep_create = uct_gaudi_copy_ep_create;
    ops.ep_destroy = uct_gaudi_copy_ep_destroy;
}

} // namespace gaudi_ucx
