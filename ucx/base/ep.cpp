// SPDX-License-Identifier: BSD-3-Clause
// The endpoint functions that UCX calls: the same for all transports. Endpoints have no state of their own
// but the peer's address: a copy is the interface's, and only its failure is the endpoint's.
#include "ucx/base/iface.hpp"

#include <cstring>

namespace gaudi_ucx {
namespace {

struct uct_gaudi_ep_t {
    uct_base_ep_t super;
    std::vector<std::byte> peer; // its interface address
};

ucs_status_t zcopy(uct_ep_h ep, const uct_iov_t* iov, size_t iovcnt, uint64_t remote, uct_rkey_t rkey,
                   uct_completion_t* comp, bool put) {
    return no_throw([&]() -> ucs_status_t {
        // A copy of no bytes is complete; UCX's address for it may be anything.
        if (iovcnt == 0 || iov->length == 0)
            return UCS_OK;
        if (iovcnt > 1 || iov->count > 1)
            return UCS_ERR_INVALID_PARAM; // max_iov is 1
        return iface_of(ep->iface).ep_zcopy(ep, *iov, remote, rkey, put, comp);
    });
}

ucs_status_t short_copy(uct_ep_h ep, void* buffer, std::size_t length, uint64_t remote, uct_rkey_t rkey,
                        bool put) {
    return no_throw([&] {
        return length == 0 ? UCS_OK
                           : iface_of(ep->iface).ep_copy(gaudi_iface::kind::short_copy, buffer, length,
                                                         remote, rkey, put);
    });
}

ssize_t uct_gaudi_ep_put_bcopy(uct_ep_h ep, uct_pack_callback_t pack, void* arg, uint64_t remote,
                               uct_rkey_t rkey) {
    std::size_t length = 0;
    const auto status = no_throw([&] {
        auto& self = iface_of(ep->iface);
        length = pack(self.bounce(), arg);
        return self.ep_copy(gaudi_iface::kind::bcopy, self.bounce(), length, remote, rkey, true);
    });
    return status == UCS_OK ? static_cast<ssize_t>(length) : static_cast<ssize_t>(status);
}

ucs_status_t uct_gaudi_ep_get_bcopy(uct_ep_h ep, uct_unpack_callback_t unpack, void* arg, size_t length,
                                    uint64_t remote, uct_rkey_t rkey, uct_completion_t*) {
    return no_throw([&]() -> ucs_status_t {
        auto& self = iface_of(ep->iface);
        if (length > self.limit_of(gaudi_iface::kind::bcopy))
            return UCS_ERR_INVALID_PARAM;
        const auto status =
            self.ep_copy(gaudi_iface::kind::bcopy, self.bounce(), length, remote, rkey, false);
        if (status == UCS_OK)
            unpack(arg, self.bounce(), length);
        return status;
    });
}

ucs_status_t uct_gaudi_ep_create(const uct_ep_params_t* params, uct_ep_h* ep_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& self = iface_of(params->iface);
        const auto& ucx = self.module().ucx;
        // Before the first message: UCX reports a copy that fails later to one side only.
        if ((params->field_mask & UCT_EP_PARAM_FIELD_DEV_ADDR) != 0 && params->dev_addr != nullptr)
            if (const auto agreed = self.check_peer_settings(params->dev_addr); agreed != UCS_OK)
                return agreed;
        auto made = std::make_unique<uct_gaudi_ep_t>();
        if ((params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR) != 0 && params->iface_addr != nullptr) {
            made->peer.resize(self.iface_address().size());
            std::memcpy(made->peer.data(), params->iface_addr, made->peer.size());
        }
        int count = 1;
        const auto status = ucx.uct_base_ep_t_init(&made->super, ucx.uct_base_ep_t_class, &count,
                                                   reinterpret_cast<uct_base_iface_t*>(params->iface));
        if (status == UCS_OK)
            *ep_p = &made.release()->super.super;
        return status;
    });
}

void uct_gaudi_ep_destroy(uct_ep_h ep) {
    const auto& ucx = iface_of(ep->iface).module().ucx;
    (void)no_throw([&] {
        // Copies continue without the endpoint; neither a failure nor a completion may name it any more.
        iface_of(ep->iface).failures().forget(ep);
        iface_of(ep->iface).outstanding().forget(ep);
        return UCS_OK;
    });
    ucx.ucs_class_call_cleanup_chain(ucx.uct_base_ep_t_class, ep, -1);
    delete reinterpret_cast<uct_gaudi_ep_t*>(ep);
}

} // namespace

void fill_ep_ops(uct_iface_ops_t& ops) {
    ops.ep_put_zcopy = [](uct_ep_h ep, const uct_iov_t* iov, size_t count, uint64_t remote, uct_rkey_t rkey,
                          uct_completion_t* comp) { return zcopy(ep, iov, count, remote, rkey, comp, true); };
    ops.ep_get_zcopy = [](uct_ep_h ep, const uct_iov_t* iov, size_t count, uint64_t remote, uct_rkey_t rkey,
                          uct_completion_t* comp) {
        return zcopy(ep, iov, count, remote, rkey, comp, false);
    };
    // UCX stages with these two functions for any length, whatever the limits say.
    ops.ep_put_short = [](uct_ep_h ep, const void* buffer, unsigned length, uint64_t remote,
                          uct_rkey_t rkey) {
        return short_copy(ep, const_cast<void*>(buffer), length, remote, rkey, true);
    };
    ops.ep_get_short = [](uct_ep_h ep, void* buffer, unsigned length, uint64_t remote, uct_rkey_t rkey) {
        return short_copy(ep, buffer, length, remote, rkey, false);
    };
    ops.ep_put_bcopy = uct_gaudi_ep_put_bcopy;
    ops.ep_get_bcopy = uct_gaudi_ep_get_bcopy;
    ops.ep_pending_add = [](uct_ep_h ep, uct_pending_req_t* request, unsigned) {
        return no_throw([&] { return iface_of(ep->iface).pending_add(ep, request); });
    };
    ops.ep_pending_purge = [](uct_ep_h ep, uct_pending_purge_callback_t visit, void* arg) {
        (void)no_throw([&] {
            iface_of(ep->iface).outstanding().purge(ep,
                                                    [&](uct_pending_req_t* request) { visit(request, arg); });
            return UCS_OK;
        });
    };
    ops.ep_flush = [](uct_ep_h ep, unsigned, uct_completion_t* comp) {
        return no_throw([&] { return iface_of(ep->iface).outstanding().flush(comp); });
    };
    ops.ep_fence = [](uct_ep_h ep, unsigned) {
        return no_throw([&] {
            iface_of(ep->iface).outstanding().fence();
            return UCS_OK;
        });
    };
    ops.ep_check = [](uct_ep_h ep, unsigned, uct_completion_t*) {
        return no_throw([&] {
            auto& self = iface_of(ep->iface);
            const auto status = self.ep_check(reinterpret_cast<uct_gaudi_ep_t*>(ep)->peer);
            // Not returned: UCX learns of a dead peer by its error handler, which the next progress calls.
            if (status != UCS_OK)
                self.failures().add(ep, status);
            return UCS_OK;
        });
    };
    ops.ep_create = uct_gaudi_ep_create;
    ops.ep_destroy = uct_gaudi_ep_destroy;
}

} // namespace gaudi_ucx
