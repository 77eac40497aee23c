// SPDX-License-Identifier: BSD-3-Clause
// UCX's tables of functions for an interface and its endpoints, the same for all transports.
#include "ucx/base/transport.hpp"

#include <algorithm>
#include <cstring>

namespace gaudi_ucx {
namespace {

struct uct_gaudi_ep_t {
    uct_base_ep_t super;
    std::vector<std::byte> peer; // its process address
};

transport& of(uct_iface_h iface) {
    return *reinterpret_cast<uct_gaudi_iface_t*>(iface)->self;
}

ucs_status_t uct_gaudi_iface_query(uct_iface_h iface, uct_iface_attr_t* attr) {
    return guarded([&]() -> ucs_status_t {
        auto& self = of(iface);
        self.module().ucx.uct_base_iface_query(reinterpret_cast<uct_base_iface_t*>(iface), attr);
        attr->iface_addr_len = self.process_address().size();
        attr->device_addr_len = self.machine_address().size();
        attr->ep_addr_len = 0;
        attr->cap.flags = UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_PUT_ZCOPY |
                          UCT_IFACE_FLAG_GET_ZCOPY | UCT_IFACE_FLAG_PENDING;
        attr->cap.event_flags =
            UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_RECV | UCT_IFACE_FLAG_EVENT_FD;
        attr->cap.put.max_zcopy = attr->cap.get.max_zcopy = SIZE_MAX;
        attr->cap.put.opt_zcopy_align = attr->cap.get.opt_zcopy_align = 1;
        attr->cap.put.align_mtu = attr->cap.get.align_mtu = 1;
        attr->cap.put.max_iov = attr->cap.get.max_iov = 1;
        attr->cap.am.opt_zcopy_align = attr->cap.am.align_mtu = 1;
        attr->cap.am.max_iov = 1;
        attr->priority = 0;
        if (const auto longest = self.longest(transport::kind::brief); longest != 0) {
            attr->cap.flags |= UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_GET_SHORT;
            attr->cap.put.max_short = attr->cap.get.max_short = longest;
        }
        if (const auto longest = self.longest(transport::kind::buffered); longest != 0) {
            attr->cap.flags |= UCT_IFACE_FLAG_PUT_BCOPY | UCT_IFACE_FLAG_GET_BCOPY;
            attr->cap.put.max_bcopy = attr->cap.get.max_bcopy = longest;
        }
        self.describe(*attr);
        return UCS_OK;
    });
}

int uct_gaudi_iface_is_reachable_v2(const uct_iface_h iface, const uct_iface_is_reachable_params_t* params) {
    auto& self = of(iface);
    const auto& ucx = self.module().ucx;
    if (ucx.uct_iface_is_reachable_params_addrs_valid(params) == 0)
        return 0;
    const char* why = "out of memory";
    (void)guarded([&] {
        why = self.why_unreachable(params->device_addr, params->iface_addr);
        return UCS_OK;
    });
    if (why == nullptr)
        return ucx.uct_iface_scope_is_reachable(iface, params);
    ucx.uct_iface_fill_info_str_buf(params, "%s", why);
    return 0;
}

unsigned uct_gaudi_iface_progress(uct_iface_h iface) {
    auto& self = of(iface);
    if (self.idle() && !self.any_failures())
        return 0;
    unsigned count = 0;
    (void)guarded([&] {
        count = self.progress();
        for (; self.any_failures(); ++count) {
            const auto [ep, status] = self.next_failure();
            (void)self.module().ucx.uct_iface_handle_ep_err(iface, ep, status);
        }
        return UCS_OK;
    });
    return count;
}

void uct_gaudi_iface_close(uct_iface_h tl_iface) {
    auto* iface = reinterpret_cast<uct_gaudi_iface_t*>(tl_iface);
    const auto& ucx = iface->self->module().ucx;
    (void)guarded([&] {
        iface->self->drain();
        return UCS_OK;
    });
    ucx.uct_base_iface_progress_disable(tl_iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    ucx.ucs_class_call_cleanup_chain(ucx.uct_base_iface_t_class, tl_iface, -1);
    delete iface;
}

ucs_status_t zcopy(uct_ep_h ep, const uct_iov_t* iov, size_t iovcnt, uint64_t remote, uct_rkey_t rkey,
                   uct_completion_t* comp, bool put) {
    return guarded([&]() -> ucs_status_t {
        if (iovcnt == 0 || iov->length == 0)
            return UCS_OK;
        if (iovcnt > 1 || iov->count > 1)
            return UCS_ERR_INVALID_PARAM; // as max_iov says
        return of(ep->iface).begin(ep, *iov, remote, rkey, put, comp);
    });
}

ucs_status_t brief(uct_ep_h ep, void* buffer, std::size_t length, uint64_t remote, uct_rkey_t rkey,
                   bool put) {
    return guarded([&] {
        return length == 0
                   ? UCS_OK
                   : of(ep->iface).copy_now(transport::kind::brief, buffer, length, remote, rkey, put);
    });
}

ssize_t uct_gaudi_ep_put_bcopy(uct_ep_h ep, uct_pack_callback_t pack, void* arg, uint64_t remote,
                               uct_rkey_t rkey) {
    std::size_t length = 0;
    const auto status = guarded([&] {
        auto& self = of(ep->iface);
        length = pack(self.bounce(), arg);
        return self.copy_now(transport::kind::buffered, self.bounce(), length, remote, rkey, true);
    });
    return status == UCS_OK ? static_cast<ssize_t>(length) : static_cast<ssize_t>(status);
}

ucs_status_t uct_gaudi_ep_get_bcopy(uct_ep_h ep, uct_unpack_callback_t unpack, void* arg, size_t length,
                                    uint64_t remote, uct_rkey_t rkey, uct_completion_t*) {
    return guarded([&]() -> ucs_status_t {
        auto& self = of(ep->iface);
        if (length > self.longest(transport::kind::buffered))
            return UCS_ERR_INVALID_PARAM;
        const auto status =
            self.copy_now(transport::kind::buffered, self.bounce(), length, remote, rkey, false);
        if (status == UCS_OK)
            unpack(arg, self.bounce(), length);
        return status;
    });
}

ucs_status_t uct_gaudi_ep_create(const uct_ep_params_t* params, uct_ep_h* ep_p) {
    return guarded([&]() -> ucs_status_t {
        auto& self = of(params->iface);
        const auto& ucx = self.module().ucx;
        if ((params->field_mask & UCT_EP_PARAM_FIELD_DEV_ADDR) != 0 && params->dev_addr != nullptr)
            if (const auto agreed = self.check_settings_of_peer(params->dev_addr); agreed != UCS_OK)
                return agreed;
        auto made = std::make_unique<uct_gaudi_ep_t>();
        if ((params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR) != 0 && params->iface_addr != nullptr) {
            made->peer.resize(self.process_address().size());
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
    const auto& ucx = of(ep->iface).module().ucx;
    (void)guarded([&] {
        of(ep->iface).forget(ep);
        return UCS_OK;
    });
    ucx.ucs_class_call_cleanup_chain(ucx.uct_base_ep_t_class, ep, -1);
    delete reinterpret_cast<uct_gaudi_ep_t*>(ep);
}

ucs_status_t fence(uct_iface_h iface) {
    return guarded([&] {
        of(iface).fence();
        return UCS_OK;
    });
}

uct_iface_ops_t* iface_ops() {
    static uct_iface_ops_t ops = [] {
        uct_iface_ops_t made{};
        made.ep_put_zcopy = [](uct_ep_h ep, const uct_iov_t* iov, size_t count, uint64_t remote,
                               uct_rkey_t rkey, uct_completion_t* comp) {
            return zcopy(ep, iov, count, remote, rkey, comp, true);
        };
        made.ep_get_zcopy = [](uct_ep_h ep, const uct_iov_t* iov, size_t count, uint64_t remote,
                               uct_rkey_t rkey, uct_completion_t* comp) {
            return zcopy(ep, iov, count, remote, rkey, comp, false);
        };
        // UCX stages through these two with any length, whatever the limit says.
        made.ep_put_short = [](uct_ep_h ep, const void* buffer, unsigned length, uint64_t remote,
                               uct_rkey_t rkey) {
            return brief(ep, const_cast<void*>(buffer), length, remote, rkey, true);
        };
        made.ep_get_short = [](uct_ep_h ep, void* buffer, unsigned length, uint64_t remote, uct_rkey_t rkey) {
            return brief(ep, buffer, length, remote, rkey, false);
        };
        made.ep_put_bcopy = uct_gaudi_ep_put_bcopy;
        made.ep_get_bcopy = uct_gaudi_ep_get_bcopy;
        made.ep_pending_add = [](uct_ep_h ep, uct_pending_req_t* request, unsigned) {
            return guarded([&] { return of(ep->iface).wait_for_room(ep, request); });
        };
        made.ep_pending_purge = [](uct_ep_h ep, uct_pending_purge_callback_t visit, void* arg) {
            (void)guarded([&] {
                of(ep->iface).purge(ep, visit, arg);
                return UCS_OK;
            });
        };
        made.ep_flush = [](uct_ep_h ep, unsigned, uct_completion_t* comp) {
            return guarded([&] { return of(ep->iface).flush(comp); });
        };
        made.ep_fence = [](uct_ep_h ep, unsigned) { return fence(ep->iface); };
        made.ep_check = [](uct_ep_h ep, unsigned, uct_completion_t*) {
            return guarded([&] {
                auto& self = of(ep->iface);
                const auto status = self.check_peer(reinterpret_cast<uct_gaudi_ep_t*>(ep)->peer);
                if (status != UCS_OK)
                    self.endpoint_failed(ep, status);
                return UCS_OK;
            });
        };
        made.ep_create = uct_gaudi_ep_create;
        made.ep_destroy = uct_gaudi_ep_destroy;
        made.iface_flush = [](uct_iface_h iface, unsigned, uct_completion_t* comp) {
            return guarded([&] { return of(iface).flush(comp); });
        };
        made.iface_fence = [](uct_iface_h iface, unsigned) { return fence(iface); };
        made.iface_progress = uct_gaudi_iface_progress;
        made.iface_event_fd_get = [](uct_iface_h iface, int* fd) {
            return guarded([&] { return of(iface).event_fd(fd); });
        };
        made.iface_event_arm = [](uct_iface_h iface, unsigned) {
            return guarded([&] { return of(iface).any_failures() ? UCS_ERR_BUSY : of(iface).arm(); });
        };
        made.iface_close = uct_gaudi_iface_close;
        made.iface_query = uct_gaudi_iface_query;
        made.iface_get_device_address = [](uct_iface_h iface, uct_device_addr_t* address) {
            return guarded([&] {
                const auto bytes = of(iface).machine_address();
                std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(address));
                return UCS_OK;
            });
        };
        made.iface_get_address = [](uct_iface_h iface, uct_iface_addr_t* address) {
            return guarded([&] {
                const auto bytes = of(iface).process_address();
                std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(address));
                return UCS_OK;
            });
        };
        made.iface_progress_enable = [](uct_iface_h iface, unsigned flags) {
            of(iface).module().ucx.uct_base_iface_progress_enable(iface, flags);
        };
        made.iface_progress_disable = [](uct_iface_h iface, unsigned flags) {
            of(iface).module().ucx.uct_base_iface_progress_disable(iface, flags);
        };
        made.iface_is_reachable = [](const uct_iface_h iface, const uct_device_addr_t* device,
                                     const uct_iface_addr_t* address) {
            return of(iface).module().ucx.uct_base_iface_is_reachable(iface, device, address);
        };
        return made;
    }();
    return &ops;
}

uct_iface_internal_ops_t* internal_ops() {
    constexpr auto unsupported = [] { return UCS_ERR_UNSUPPORTED; };
    static uct_iface_internal_ops_t ops = {
        .iface_query_v2 =
            [](uct_iface_h iface, uct_iface_attr_v2_t* attr) {
                return of(iface).module().ucx.uct_iface_base_query_v2(iface, attr);
            },
        .iface_estimate_perf =
            [](uct_iface_h iface, uct_perf_attr_t* attr) {
                of(iface).estimate(*attr);
                return UCS_OK;
            },
        .iface_vfs_refresh = [](uct_iface_h) {},
        .ep_query = unsupported,
        .ep_invalidate = unsupported,
        .ep_connect_to_ep_v2 = unsupported,
        .iface_is_reachable_v2 = uct_gaudi_iface_is_reachable_v2,
        .ep_is_connected =
            [](const uct_ep_h ep, const uct_ep_is_connected_params_t* params) {
                return of(ep->iface).module().ucx.uct_base_ep_is_connected(ep, params);
            },
        .ep_get_device_ep = unsupported,
        .ep_put_sgl_zcopy = unsupported,
        .ep_get_sgl_zcopy = unsupported,
        .ep_outstanding_purge = unsupported,
    };
    return &ops;
}

} // namespace

ucs_status_t open_interface(std::unique_ptr<transport> made, uct_md_h md, uct_worker_h worker,
                            const uct_iface_params_t* params, const uct_iface_config_t* config,
                            uct_iface_h* iface_p) {
    const auto& ucx = made->module().ucx;
    auto iface = std::make_unique<uct_gaudi_iface_t>();
    iface->self = std::move(made);
    int count = 1;
    const auto status = ucx.uct_base_iface_t_init(&iface->super, ucx.uct_base_iface_t_class, &count,
                                                  iface_ops(), internal_ops(), md, worker, params, config);
    if (status != UCS_OK) {
        ucx.ucs_class_call_cleanup_chain(ucx.uct_base_iface_t_class, &iface->super, count);
        return status;
    }
    *iface_p = &iface.release()->super.super;
    return UCS_OK;
}

} // namespace gaudi_ucx
