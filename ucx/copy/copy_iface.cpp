// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/copy/copy_iface.hpp"

#include <gaudi/nic.hpp>

#include "ucx/base/settings.hpp"

#include <algorithm>
#include <cstring>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

namespace gaudi_ucx {
namespace {

// Of a copy that is finished, or that is waited for here.
ucs_status_t outcome_of(uct_gaudi_copy_iface_t& iface, gaudi::copy_ticket& ticket) {
    auto status = UCS_ERR_NO_MEMORY;
    (void)guarded([&] { // whatever happens, the completion must be told something
        const auto result = ticket.wait();
        status = result ? UCS_OK : status_of(result.error());
        if (!result)
            gaudi_log(iface.module(), ERROR, "copy: {}", result.error().message());
        return UCS_OK;
    });
    return status;
}

// ---- attributes ----

ucs_status_t uct_gaudi_copy_iface_query(uct_iface_h tl_iface, uct_iface_attr_t* attr) {
    auto& iface = copy_iface(tl_iface);
    const auto& config = iface.config;
    iface.module().ucx.uct_base_iface_query(&iface.super, attr);
    attr->iface_addr_len = sizeof(iface.id);
    attr->device_addr_len = 0;
    attr->ep_addr_len = 0;
    attr->cap.flags = UCT_IFACE_FLAG_CONNECT_TO_IFACE | UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_PUT_BCOPY |
                      UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_GET_SHORT | UCT_IFACE_FLAG_GET_BCOPY |
                      UCT_IFACE_FLAG_GET_ZCOPY | UCT_IFACE_FLAG_PENDING;
    attr->cap.event_flags =
        UCT_IFACE_FLAG_EVENT_SEND_COMP | UCT_IFACE_FLAG_EVENT_RECV | UCT_IFACE_FLAG_EVENT_FD;
    attr->cap.put.max_short = attr->cap.get.max_short = config.max_short;
    attr->cap.put.max_bcopy = attr->cap.get.max_bcopy = config.max_bcopy;
    attr->cap.put.min_zcopy = attr->cap.get.min_zcopy = 0;
    attr->cap.put.max_zcopy = attr->cap.get.max_zcopy = config.max_zcopy;
    attr->cap.put.opt_zcopy_align = attr->cap.get.opt_zcopy_align = 1;
    attr->cap.put.align_mtu = attr->cap.get.align_mtu = 1;
    attr->cap.put.max_iov = attr->cap.get.max_iov = 1;
    attr->cap.am.opt_zcopy_align = attr->cap.am.align_mtu = 1;
    attr->cap.am.max_iov = 1;
    attr->latency = {config.latency, 0};
    attr->bandwidth.dedicated = 0;
    attr->bandwidth.shared = config.to_device;
    attr->overhead = config.overhead;
    attr->priority = 0;
    return UCS_OK;
}

double bandwidth_of(const uct_gaudi_copy_iface_config_t& config, const uct_perf_attr_t& attr) {
    constexpr auto both = UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE | UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE;
    if ((attr.field_mask & both) != both)
        return config.to_device;
    const bool operation_known = (attr.field_mask & UCT_PERF_ATTR_FIELD_OPERATION) != 0;
    const bool get =
        operation_known && attr.operation >= UCT_EP_OP_GET_SHORT && attr.operation <= UCT_EP_OP_GET_ZCOPY;
    const auto from = get ? attr.remote_memory_type : attr.local_memory_type;
    const auto to = get ? attr.local_memory_type : attr.remote_memory_type;
    if (from == UCS_MEMORY_TYPE_GAUDI && to == UCS_MEMORY_TYPE_GAUDI)
        return config.within;
    return from == UCS_MEMORY_TYPE_GAUDI ? config.from_device : config.to_device;
}

// Whether a NIC would carry the operation out.
bool small_by_nic(uct_gaudi_copy_iface_t& iface, const uct_perf_attr_t& attr) {
    if (!iface.nic_there || (attr.field_mask & UCT_PERF_ATTR_FIELD_OPERATION) == 0 ||
        iface.md().nic_max < iface.config.max_bcopy)
        return false;
    constexpr auto both = UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE | UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE;
    if ((attr.field_mask & both) == both && attr.local_memory_type == attr.remote_memory_type)
        return false;
    return attr.operation == UCT_EP_OP_PUT_SHORT || attr.operation == UCT_EP_OP_GET_SHORT ||
           attr.operation == UCT_EP_OP_PUT_BCOPY || attr.operation == UCT_EP_OP_GET_BCOPY;
}

ucs_status_t uct_gaudi_copy_estimate_perf(uct_iface_h tl_iface, uct_perf_attr_t* attr) {
    auto& iface = copy_iface(tl_iface);
    const auto& config = iface.config;
    const auto mask = attr->field_mask;
    const uct_ppn_bandwidth_t bandwidth{0, bandwidth_of(config, *attr)};
    if ((mask & UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD) != 0)
        attr->send_pre_overhead = small_by_nic(iface, *attr) ? 0 : config.overhead;
    if ((mask & UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD) != 0)
        attr->send_post_overhead = 0;
    if ((mask & UCT_PERF_ATTR_FIELD_RECV_OVERHEAD) != 0)
        attr->recv_overhead = 0;
    if ((mask & UCT_PERF_ATTR_FIELD_BANDWIDTH) != 0)
        attr->bandwidth = bandwidth;
    if ((mask & UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH) != 0)
        attr->path_bandwidth = bandwidth;
    if ((mask & UCT_PERF_ATTR_FIELD_LATENCY) != 0)
        attr->latency = {small_by_nic(iface, *attr) ? config.nic_latency : config.latency, 0};
    if ((mask & UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS) != 0)
        attr->max_inflight_eps = SIZE_MAX;
    if ((mask & UCT_PERF_ATTR_FIELD_FLAGS) != 0)
        attr->flags = 0;
    return UCS_OK;
}

ucs_status_t uct_gaudi_copy_iface_get_address(uct_iface_h tl_iface, uct_iface_addr_t* address) {
    std::memcpy(address, &copy_iface(tl_iface).id, sizeof(uint64_t));
    return UCS_OK;
}

// Only itself: device addresses mean something in this process alone.
int uct_gaudi_copy_iface_is_reachable_v2(const uct_iface_h tl_iface,
                                         const uct_iface_is_reachable_params_t* params) {
    auto& iface = copy_iface(tl_iface);
    const auto& ucx = iface.module().ucx;
    if (ucx.uct_iface_is_reachable_params_addrs_valid(params) == 0)
        return 0;
    uint64_t id = 0;
    if (params->iface_addr != nullptr)
        std::memcpy(&id, params->iface_addr, sizeof(id));
    if (id != iface.id) {
        ucx.uct_iface_fill_info_str_buf(params, "another process's gaudi_copy");
        return 0;
    }
    return ucx.uct_iface_scope_is_reachable(tl_iface, params);
}

// ---- progress ----

unsigned uct_gaudi_copy_iface_progress(uct_iface_h tl_iface) {
    auto& iface = copy_iface(tl_iface);
    if (iface.copies.idle())
        return 0;
    unsigned count = 0;
    (void)guarded([&] {
        count = progress(iface);
        return UCS_OK;
    });
    return count;
}

ucs_status_t uct_gaudi_copy_iface_flush(uct_iface_h tl_iface, unsigned, uct_completion_t* comp) {
    return guarded([&] { return copy_iface(tl_iface).copies.flush(comp); });
}

ucs_status_t uct_gaudi_copy_iface_fence(uct_iface_h tl_iface, unsigned) {
    copy_iface(tl_iface).copies.fence();
    return UCS_OK;
}

void watch(uct_gaudi_copy_iface_t& iface, gaudi::copy_engine& engine) {
    const auto fd = engine.event_fd();
    if (!fd) {
        gaudi_log(iface.module(), ERROR, "event descriptor of the copy engine: {}", fd.error().message());
        return;
    }
    // Edges: the descriptor is everybody's, so nobody reads it.
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ::epoll_ctl(iface.event_fd, EPOLL_CTL_ADD, *fd, &event);
}

ucs_status_t uct_gaudi_copy_iface_event_fd_get(uct_iface_h tl_iface, int* fd_p) {
    return guarded([&]() -> ucs_status_t {
        auto& iface = copy_iface(tl_iface);
        if (iface.event_fd < 0) {
            iface.event_fd = ::epoll_create1(EPOLL_CLOEXEC);
            if (iface.event_fd < 0)
                return UCS_ERR_IO_ERROR;
            for (auto& [index, engine] : iface.engines)
                watch(iface, engine);
        }
        *fd_p = iface.event_fd;
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_iface_event_arm(uct_iface_h tl_iface, unsigned) {
    return guarded([&]() -> ucs_status_t {
        auto& iface = copy_iface(tl_iface);
        epoll_event seen[8];
        if (iface.event_fd >= 0)
            (void)::epoll_wait(iface.event_fd, seen, 8, 0); // what came until now is looked at here
        for (auto& [index, engine] : iface.engines)
            engine.poll();
        const bool done = iface.copies.any([](const gaudi::copy_ticket& copy) { return copy.finished(); });
        return done ? UCS_ERR_BUSY : UCS_OK; // progress first
    });
}

// ---- life ----

void uct_gaudi_copy_iface_close(uct_iface_h tl_iface) {
    auto* iface = &copy_iface(tl_iface);
    const auto& ucx = iface->module().ucx;
    (void)guarded([&] {
        drain(*iface);
        return UCS_OK;
    });
    ucx.uct_base_iface_progress_disable(tl_iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    ucx.ucs_class_call_cleanup_chain(ucx.uct_base_iface_t_class, tl_iface, -1);
    if (iface->event_fd >= 0)
        ::close(iface->event_fd);
    delete iface;
}

uct_iface_ops_t* iface_ops() {
    static uct_iface_ops_t ops = [] {
        uct_iface_ops_t made{};
        fill_copy_ep_ops(made);
        made.iface_flush = uct_gaudi_copy_iface_flush;
        made.iface_fence = uct_gaudi_copy_iface_fence;
        made.iface_progress = uct_gaudi_copy_iface_progress;
        made.iface_event_fd_get = uct_gaudi_copy_iface_event_fd_get;
        made.iface_event_arm = uct_gaudi_copy_iface_event_arm;
        made.iface_close = uct_gaudi_copy_iface_close;
        made.iface_query = uct_gaudi_copy_iface_query;
        made.iface_get_device_address = [](uct_iface_h, uct_device_addr_t*) { return UCS_OK; };
        made.iface_get_address = uct_gaudi_copy_iface_get_address;
        made.iface_progress_enable = [](uct_iface_h iface, unsigned flags) {
            copy_iface(iface).module().ucx.uct_base_iface_progress_enable(iface, flags);
        };
        made.iface_progress_disable = [](uct_iface_h iface, unsigned flags) {
            copy_iface(iface).module().ucx.uct_base_iface_progress_disable(iface, flags);
        };
        made.iface_is_reachable = [](const uct_iface_h iface, const uct_device_addr_t* device,
                                     const uct_iface_addr_t* address) {
            return copy_iface(iface).module().ucx.uct_base_iface_is_reachable(iface, device, address);
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
                return copy_iface(iface).module().ucx.uct_iface_base_query_v2(iface, attr);
            },
        .iface_estimate_perf = uct_gaudi_copy_estimate_perf,
        .iface_vfs_refresh = [](uct_iface_h) {},
        .ep_query = unsupported,
        .ep_invalidate = unsupported,
        .ep_connect_to_ep_v2 = unsupported,
        .iface_is_reachable_v2 = uct_gaudi_copy_iface_is_reachable_v2,
        .ep_is_connected =
            [](const uct_ep_h ep, const uct_ep_is_connected_params_t* params) {
                return copy_iface(ep->iface).module().ucx.uct_base_ep_is_connected(ep, params);
            },
        .ep_get_device_ep = unsupported,
        .ep_put_sgl_zcopy = unsupported,
        .ep_get_sgl_zcopy = unsupported,
        .ep_outstanding_purge = unsupported,
    };
    return &ops;
}

std::string wrong_with(const uct_gaudi_copy_iface_config_t& config) {
    if (config.max_short == 0 || config.max_short > 1 << 20)
        return fmt::format("UCX_GAUDI_COPY_MAX_SHORT={}: use 1 to 1m", config.max_short);
    if (config.max_bcopy < config.max_short || config.max_bcopy > 1 << 30)
        return fmt::format("UCX_GAUDI_COPY_MAX_BCOPY={}: use MAX_SHORT ({}) to 1g", config.max_bcopy,
                           config.max_short);
    if (config.max_zcopy < config.max_bcopy)
        return fmt::format("UCX_GAUDI_COPY_MAX_ZCOPY={}: use MAX_BCOPY ({}) or more", config.max_zcopy,
                           config.max_bcopy);
    if (config.to_device <= 0 || config.from_device <= 0 || config.within <= 0)
        return "UCX_GAUDI_COPY_BW_*: bandwidths must be more than 0";
    return {};
}

// Whether some NIC could reach device memory; asked once.
bool any_nic() {
    static const bool found = [] {
        const auto all = gaudi::list_nics();
        return all && std::any_of(all->begin(), all->end(), [](const auto& each) {
                   return each.active && each.dmabuf && !each.of_gaudi;
               });
    }();
    return found;
}

ucs_status_t uct_gaudi_copy_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t* params,
                                       const uct_iface_config_t* tl_config, uct_iface_h* iface_p) {
    return guarded([&]() -> ucs_status_t {
        auto& module = *copy_md(md).module;
        const auto& config = *reinterpret_cast<const uct_gaudi_copy_iface_config_t*>(tl_config);
        if (const auto wrong = wrong_with(config); !wrong.empty()) {
            gaudi_log(module, ERROR, "{}", wrong);
            return UCS_ERR_INVALID_PARAM;
        }
        auto made = std::make_unique<uct_gaudi_copy_iface_t>();
        int count = 1;
        const auto status =
            module.ucx.uct_base_iface_t_init(&made->super, module.ucx.uct_base_iface_t_class, &count,
                                             iface_ops(), internal_ops(), md, worker, params, tl_config);
        if (status != UCS_OK) {
            module.ucx.ucs_class_call_cleanup_chain(module.ucx.uct_base_iface_t_class, &made->super, count);
            return status;
        }
        made->config = config;
        made->nic_there = copy_md(md).nic_max != 0 && any_nic();
        if (::getrandom(&made->id, sizeof(made->id), GRND_NONBLOCK) != sizeof(made->id))
            made->id = reinterpret_cast<std::uintptr_t>(made.get()) ^ static_cast<uint64_t>(::getpid()) << 48;
        *iface_p = &made.release()->super.super;
        return UCS_OK;
    });
}

ucs_status_t uct_gaudi_copy_query_devices(uct_md_h md, uct_tl_device_resource_t** devices_p,
                                          unsigned* num_devices_p) {
    return copy_md(md).module->ucx.uct_single_device_resource(
        md, "gaudi_copy", UCT_DEVICE_TYPE_ACC, UCS_SYS_DEVICE_ID_UNKNOWN, devices_p, num_devices_p);
}

ucs_config_field_t* iface_settings(const ucx_api& ucx) {
    const setting_types type(ucx);
    using config = uct_gaudi_copy_iface_config_t;
    return new ucs_config_field_t[]{
        // one per UCX, for as long as the process lives
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_iface_config_table)},
        {"MAX_SHORT", "256", "Largest put and get that is announced as short.", offsetof(config, max_short),
         type.bytes()},
        {"MAX_BCOPY", "32k", "Largest buffered put and get.", offsetof(config, max_bcopy), type.bytes()},
        {"MAX_ZCOPY", "1g", "Largest put and get without buffering.", offsetof(config, max_zcopy),
         type.bytes()},
        {"BW_TO_DEVICE", "13000MBs", "Bandwidth of copies to a device, for UCX's choice of protocols.",
         offsetof(config, to_device), type.bandwidth()},
        {"BW_FROM_DEVICE", "13000MBs", "Bandwidth of copies from a device.", offsetof(config, from_device),
         type.bandwidth()},
        {"BW_WITHIN", "13000MBs", "Bandwidth of copies within a device.", offsetof(config, within),
         type.bandwidth()},
        {"LATENCY", "60us", "Time that a copy of a few bytes takes.", offsetof(config, latency), type.time()},
        {"NIC_LATENCY", "1us", "The same where a NIC in loopback copies small pieces.",
         offsetof(config, nic_latency), type.time()},
        {"OVERHEAD", "2us", "CPU time that starting a copy takes.", offsetof(config, overhead), type.time()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

} // namespace

gaudi::loopback* loop_of(uct_gaudi_copy_iface_t& iface, gaudi::device& device, unsigned device_index) {
    if (!iface.nic_there)
        return nullptr;
    auto [known, fresh] = iface.loops.try_emplace(device_index);
    if (fresh) {
        gaudi::nic_choice choice;
        choice.near_to = device.info();
        choice.needs_dmabuf = true;
        auto nic = gaudi::open_nic(choice);
        auto made = nic ? gaudi::loopback::make(*nic) : tl::unexpected(nic.error());
        if (made)
            known->second = std::move(*made);
        else
            gaudi_log(iface.module(), DEBUG, "no small copies through a NIC: {}", made.error().message());
    }
    return known->second ? &*known->second : nullptr;
}

gaudi::result<gaudi::copy_engine> engine_of(uct_gaudi_copy_iface_t& iface, unsigned device_index) {
    const auto device = gaudi::find_open_device(device_index);
    if (!device)
        return tl::unexpected(gaudi::error(gaudi::errc::not_allocated,
                                           fmt::format("device {} is not open here", device_index)));
    auto engine = device->copies(iface.md().copies);
    if (!engine)
        return engine;
    auto [known, fresh] = iface.engines.try_emplace(device_index, *engine);
    if (!fresh && known->second.core() != engine->core()) { // the device was closed and opened again
        known->second = *engine;
        fresh = true;
    }
    if (fresh && iface.event_fd >= 0)
        watch(iface, known->second);
    return engine;
}

unsigned progress(uct_gaudi_copy_iface_t& iface) {
    for (auto& [index, engine] : iface.engines)
        engine.poll();
    const auto count =
        iface.copies.progress([](const gaudi::copy_ticket& copy) { return copy.finished(); },
                              [&](gaudi::copy_ticket& copy) { return outcome_of(iface, copy); });
    if (iface.copies.none_running()) // so that a device that was reset can be opened again
        std::erase_if(iface.engines, [](const auto& each) { return each.second.lost(); });
    return count;
}

void drain(uct_gaudi_copy_iface_t& iface) {
    while (!iface.copies.none_running()) {
        iface.copies.for_each([](gaudi::copy_ticket& copy) { (void)copy.wait(); });
        progress(iface);
    }
}

void fill_copy_tl(uct_gaudi_module& module) {
    auto& tl = module.copy_tl;
    tl = {};
    std::strcpy(tl.name, "gaudi_cpy");
    tl.query_devices = uct_gaudi_copy_query_devices;
    tl.iface_open = uct_gaudi_copy_iface_open;
    tl.config.name = "gaudi_cpy transport";
    tl.config.prefix = "GAUDI_COPY_";
    tl.config.table = iface_settings(module.ucx);
    tl.config.size = sizeof(uct_gaudi_copy_iface_config_t);
}

} // namespace gaudi_ucx
