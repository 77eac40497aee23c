// SPDX-License-Identifier: BSD-3-Clause
// What all transports have in common: UCX's table of interface functions, and the rules that UCX expects of
// them. No exception may pass into UCX: each function of the table is wrapped in no_throw.
#include "ucx/base/iface.hpp"

#include <gaudi/nic.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <sys/random.h>
#include <unistd.h>

namespace gaudi_ucx {

gaudi_iface::gaudi_iface(uct_gaudi_module& module, const char* copies_are, const char* after_failure,
                         const gaudi::copier_options& options)
    : module_(module), copies_are_(copies_are), after_failure_(after_failure), copies_(options) {
    module.loss.add(*this);
}

gaudi_iface::~gaudi_iface() {
    // First: another thread may call drop_lost() until it is removed, and remove() waits for such a call.
    module_.loss.remove(*this);
}

unsigned gaudi_iface::progress() {
    // Polled once for all operations: the tickets are then only asked what is known.
    copies_.poll();
    const auto count =
        operations_.progress([](gaudi::copy_ticket& each) { return each.finished(); },
                             [&](gaudi::copy_ticket& each, uct_ep_h ep) { return outcome_of(each, ep); });
    announce_loss();
    return count;
}

ucs_status_t gaudi_iface::pending_add(uct_ep_h ep, uct_pending_req_t* request) {
    // progress() calls the request again when an earlier operation has completed.
    operations_.pending_add(ep, request);
    return UCS_OK;
}

void gaudi_iface::drain() {
    while (!operations_.none_running()) {
        wait_for_all();
        progress();
    }
}

ucs_status_t gaudi_iface::event_fd(int* fd) {
    const auto descriptor = copies_.event_fd();
    if (!descriptor) {
        gaudi_log(module_, ERROR, "{}: {}", copies_are_, descriptor.error().message());
        return status_of(descriptor.error());
    }
    *fd = *descriptor;
    return UCS_OK;
}

ucs_status_t gaudi_iface::arm() {
    if (operations_.none_running() && !operations_.idle())
        // Requests are pending although this interface has nothing in flight: other interfaces use the room,
        // and no completion here would wake the caller.
        return UCS_ERR_BUSY;
    // Armed before the tickets are asked: a copy that completes in between makes the descriptor readable.
    copies_.arm();
    const bool any = operations_.any([](gaudi::copy_ticket& each) { return each.done(); });
    return any ? UCS_ERR_BUSY : UCS_OK; // call progress first
}

void gaudi_iface::keep_fence() {
    if (operations_.take_fence())
        wait_for_all();
}

void gaudi_iface::note_failure(uct_ep_h ep, const gaudi::error& why) {
    // Zero-copy that is required and impossible stays impossible: both sides must fail.
    // Reported in the next progress: UCX's error handler may destroy the endpoint of this very call.
    if (ep != nullptr &&
        (why.code() == gaudi::errc::peer_gone || why.code() == gaudi::errc::zero_copy_impossible))
        failures_.add(ep, status_of(why));
}

ucs_status_t gaudi_iface::refused(const gaudi::error& why, std::size_t length, std::uint64_t to,
                                  std::uint64_t from) {
    gaudi_log_at(module_, level_of_failure(why), "{} of {} bytes from {:#x} to {:#x}: {}", copies_are_,
                 length, from, to, why.message());
    announce_loss();
    return status_of(why);
}

void gaudi_iface::log_consequence() {
    if (const auto* text = std::exchange(after_failure_, nullptr); text != nullptr)
        gaudi_log(module_, ERROR, "{}: {}", copies_are_, text);
}

// After a device was lost, all its outstanding and later copies fail: only the first is logged as an error.
ucs_log_level_t gaudi_iface::level_of_failure(const gaudi::error& why) {
    const bool lost = why.kind() == gaudi::error_kind::device_lost;
    loss_seen_ = loss_seen_ || lost;
    return lost && std::exchange(loss_logged_, true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR;
}

void gaudi_iface::announce_loss() {
    // Operations in flight use the device: only when the last has failed can it be released.
    if (loss_seen_ && operations_.none_running()) {
        loss_seen_ = false;
        module_.loss.drop_lost();
    }
}

void gaudi_iface::wait_for_all() {
    operations_.for_each([](gaudi::copy_ticket& each) { (void)each.wait(); });
}

ucs_status_t gaudi_iface::outcome_of(gaudi::copy_ticket& ticket, uct_ep_h ep) {
    // What remains where building an error's text throws bad_alloc.
    auto status = UCS_ERR_NO_MEMORY;
    (void)no_throw([&] { // the completion must get a status in any case
        const auto result = ticket.wait();
        status = result ? UCS_OK : status_of(result.error());
        if (result) {
            completed(ticket);
        } else {
            gaudi_log_at(module_, level_of_failure(result.error()), "{}: {}", copies_are_,
                         result.error().message());
            log_consequence();
            note_failure(ep, result.error());
        }
        return UCS_OK;
    });
    return status;
}

interface_id::interface_id() {
    // Unique among all processes that exchange addresses: two interfaces with one id would believe that they
    // share memory.
    if (::getrandom(bytes.data(), bytes.size(), GRND_NONBLOCK) != static_cast<ssize_t>(bytes.size())) {
        const auto made = number(this) ^ static_cast<std::uint64_t>(::getpid()) << 48;
        std::memcpy(bytes.data(), &made, bytes.size());
    }
}

const char* interface_id::unreachable_reason(const void* iface) const {
    return iface != nullptr && std::memcmp(iface, bytes.data(), bytes.size()) == 0
               ? nullptr
               : "not this interface: its addresses mean something in its own process alone";
}

bool any_nic() {
    // Once per process, because enumerating opens every NIC.
    static const bool found = [] {
        const auto all = gaudi::list_nics();
        return all &&
               std::any_of(all->begin(), all->end(), std::mem_fn(&gaudi::nic_info::moves_device_memory));
    }();
    return found;
}

void fill_perf_attr(uct_perf_attr_t& attr, double bandwidth, double latency, double overhead) {
    const auto mask = attr.field_mask;
    if ((mask & UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD) != 0)
        attr.send_pre_overhead = overhead;
    if ((mask & UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD) != 0)
        attr.send_post_overhead = 0;
    if ((mask & UCT_PERF_ATTR_FIELD_RECV_OVERHEAD) != 0)
        attr.recv_overhead = 0;
    if ((mask & UCT_PERF_ATTR_FIELD_BANDWIDTH) != 0)
        attr.bandwidth = {0, bandwidth};
    if ((mask & UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH) != 0)
        attr.path_bandwidth = {0, bandwidth};
    if ((mask & UCT_PERF_ATTR_FIELD_LATENCY) != 0)
        attr.latency = {latency, 0};
    if ((mask & UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS) != 0)
        attr.max_inflight_eps = SIZE_MAX;
    if ((mask & UCT_PERF_ATTR_FIELD_FLAGS) != 0)
        attr.flags = 0;
}

// ---- the interface functions that UCX calls ----

namespace {

ucs_status_t uct_gaudi_iface_query(uct_iface_h iface, uct_iface_attr_t* attr) {
    return no_throw([&]() -> ucs_status_t {
        auto& self = iface_of(iface);
        self.module().ucx.uct_base_iface_query(reinterpret_cast<uct_base_iface_t*>(iface), attr);
        attr->iface_addr_len = self.iface_address().size();
        attr->device_addr_len = self.device_address().size();
        attr->ep_addr_len = 0;
        attr->cap.flags = UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_PUT_ZCOPY |
                          UCT_IFACE_FLAG_GET_ZCOPY | UCT_IFACE_FLAG_PENDING;
        attr->cap.event_flags =
            UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_RECV | UCT_IFACE_FLAG_EVENT_FD;
        // Any address and any length: the engines have no alignment rules, and longer copies are split
        // (gotcha 23).
        attr->cap.put.max_zcopy = attr->cap.get.max_zcopy = SIZE_MAX;
        attr->cap.put.opt_zcopy_align = attr->cap.get.opt_zcopy_align = 1;
        attr->cap.put.align_mtu = attr->cap.get.align_mtu = 1;
        attr->cap.put.max_iov = attr->cap.get.max_iov = 1;
        attr->cap.am.opt_zcopy_align = attr->cap.am.align_mtu = 1;
        attr->cap.am.max_iov = 1;
        attr->priority = 0;
        if (const auto limit = self.limit_of(gaudi_iface::kind::short_copy); limit != 0) {
            attr->cap.flags |= UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_GET_SHORT;
            attr->cap.put.max_short = attr->cap.get.max_short = limit;
        }
        if (const auto limit = self.limit_of(gaudi_iface::kind::bcopy); limit != 0) {
            attr->cap.flags |= UCT_IFACE_FLAG_PUT_BCOPY | UCT_IFACE_FLAG_GET_BCOPY;
            attr->cap.put.max_bcopy = attr->cap.get.max_bcopy = limit;
        }
        self.query(*attr);
        return UCS_OK;
    });
}

int uct_gaudi_iface_is_reachable_v2(const uct_iface_h iface, const uct_iface_is_reachable_params_t* params) {
    auto& self = iface_of(iface);
    const auto& ucx = self.module().ucx;
    if (ucx.uct_iface_is_reachable_params_addrs_valid(params) == 0)
        return 0;
    const char* why = "out of memory";
    (void)no_throw([&] {
        why = self.unreachable_reason(params->device_addr, params->iface_addr);
        return UCS_OK;
    });
    if (why == nullptr)
        return ucx.uct_iface_scope_is_reachable(iface, params);
    ucx.uct_iface_fill_info_str_buf(params, "%s", why);
    return 0;
}

unsigned uct_gaudi_iface_progress(uct_iface_h iface) {
    auto& self = iface_of(iface);
    // UCX calls this in its busiest loop, for every interface.
    if (self.outstanding().idle() && self.failures().empty())
        return 0;
    unsigned count = 0;
    (void)no_throw([&] {
        count = self.progress();
        for (; !self.failures().empty(); ++count) {
            const auto [ep, status] = self.failures().take();
            (void)self.module().ucx.uct_iface_handle_ep_err(iface, ep, status);
        }
        return UCS_OK;
    });
    return count;
}

void uct_gaudi_iface_close(uct_iface_h tl_iface) {
    auto* iface = reinterpret_cast<uct_gaudi_iface_t*>(tl_iface);
    const auto& ucx = iface->self->module().ucx;
    (void)no_throw([&] {
        // Outstanding copies still write to their memory, and UCX owns their completions.
        iface->self->drain();
        return UCS_OK;
    });
    ucx.uct_base_iface_progress_disable(tl_iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    ucx.ucs_class_call_cleanup_chain(ucx.uct_base_iface_t_class, tl_iface, -1);
    delete iface;
}

uct_iface_ops_t* iface_ops() {
    static uct_iface_ops_t ops = [] {
        uct_iface_ops_t made{};
        fill_ep_ops(made);
        made.iface_flush = [](uct_iface_h iface, unsigned, uct_completion_t* comp) {
            return no_throw([&] { return iface_of(iface).outstanding().flush(comp); });
        };
        made.iface_fence = [](uct_iface_h iface, unsigned) {
            return no_throw([&] {
                iface_of(iface).outstanding().fence();
                return UCS_OK;
            });
        };
        made.iface_progress = uct_gaudi_iface_progress;
        made.iface_event_fd_get = [](uct_iface_h iface, int* fd) {
            return no_throw([&] { return iface_of(iface).event_fd(fd); });
        };
        made.iface_event_arm = [](uct_iface_h iface, unsigned) {
            return no_throw(
                [&] { return iface_of(iface).failures().empty() ? iface_of(iface).arm() : UCS_ERR_BUSY; });
        };
        made.iface_close = uct_gaudi_iface_close;
        made.iface_query = uct_gaudi_iface_query;
        made.iface_get_device_address = [](uct_iface_h iface, uct_device_addr_t* address) {
            return no_throw([&] {
                const auto bytes = iface_of(iface).device_address();
                std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(address));
                return UCS_OK;
            });
        };
        made.iface_get_address = [](uct_iface_h iface, uct_iface_addr_t* address) {
            return no_throw([&] {
                const auto bytes = iface_of(iface).iface_address();
                std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(address));
                return UCS_OK;
            });
        };
        made.iface_progress_enable = [](uct_iface_h iface, unsigned flags) {
            iface_of(iface).module().ucx.uct_base_iface_progress_enable(iface, flags);
        };
        made.iface_progress_disable = [](uct_iface_h iface, unsigned flags) {
            iface_of(iface).module().ucx.uct_base_iface_progress_disable(iface, flags);
        };
        made.iface_is_reachable = [](const uct_iface_h iface, const uct_device_addr_t* device,
                                     const uct_iface_addr_t* address) {
            return iface_of(iface).module().ucx.uct_base_iface_is_reachable(iface, device, address);
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
                return iface_of(iface).module().ucx.uct_iface_base_query_v2(iface, attr);
            },
        .iface_estimate_perf =
            [](uct_iface_h iface, uct_perf_attr_t* attr) {
                iface_of(iface).estimate_perf(*attr);
                return UCS_OK;
            },
        .iface_vfs_refresh = [](uct_iface_h) {},
        .ep_query = unsupported,
        .ep_invalidate = unsupported,
        .ep_connect_to_ep_v2 = unsupported,
        .iface_is_reachable_v2 = uct_gaudi_iface_is_reachable_v2,
        .ep_is_connected =
            [](const uct_ep_h ep, const uct_ep_is_connected_params_t* params) {
                return iface_of(ep->iface).module().ucx.uct_base_ep_is_connected(ep, params);
            },
        .ep_get_device_ep = unsupported,
        .ep_put_sgl_zcopy = unsupported,
        .ep_get_sgl_zcopy = unsupported,
        .ep_outstanding_purge = unsupported,
    };
    return &ops;
}

} // namespace

ucs_status_t open_iface(std::unique_ptr<gaudi_iface> made, uct_md_h md, uct_worker_h worker,
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
