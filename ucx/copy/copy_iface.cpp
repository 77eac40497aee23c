// SPDX-License-Identifier: BSD-3-Clause
// Copies of any length within this process, small ones through a NIC where there is one. UCX stages with this
// transport.
#include "ucx/base/component.hpp"
#include "ucx/base/iface.hpp"
#include "ucx/base/settings.hpp"
#include "ucx/copy/copy_md.hpp"

namespace gaudi_ucx {
namespace {

struct uct_gaudi_copy_iface_config_t {
    uct_iface_config_t super;
    size_t max_short, max_bcopy, max_zcopy;
    double to_device, from_device, within; // bytes per second
    double latency;                        // seconds, of one small copy
    double nic_latency;                    // the same through a NIC
    double overhead;                       // seconds of CPU time to start one
};

// UCX compares transports by these figures: they decide which protocol a message takes, not how fast it is.
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

// Between host and device, and so small that a NIC would copy it.
bool is_small(const uct_perf_attr_t& attr) {
    constexpr auto both = UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE | UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE;
    if ((attr.field_mask & both) == both && attr.local_memory_type == attr.remote_memory_type)
        return false;
    if ((attr.field_mask & UCT_PERF_ATTR_FIELD_OPERATION) == 0)
        return false;
    return attr.operation == UCT_EP_OP_PUT_SHORT || attr.operation == UCT_EP_OP_GET_SHORT ||
           attr.operation == UCT_EP_OP_PUT_BCOPY || attr.operation == UCT_EP_OP_GET_BCOPY;
}

gaudi::copier_options options_of(const uct_gaudi_copy_md_t& md) {
    gaudi::copier_options options;
    options.engines = md.copies;
    options.nic_max = md.nic_max != 0 && any_nic() ? md.nic_max : 0;
    return options;
}

class copy_iface final : public gaudi_iface {
public:
    copy_iface(uct_gaudi_copy_md_t& md, const uct_gaudi_copy_iface_config_t& config)
        : gaudi_iface(*md.module, "copy", lost_staging, options_of(md)), md_(md), config_(config),
          nic_max_(options_of(md).nic_max) {
        policy_.hints.queues = md.copies.queues; // the engine may have been created with another number
    }

    std::vector<std::byte> iface_address() override { return id_.bytes; }
    const char* unreachable_reason(const void*, const void* iface) override {
        return id_.unreachable_reason(iface);
    }
    void query(uct_iface_attr_t& attr) override {
        attr.cap.put.max_zcopy = attr.cap.get.max_zcopy = config_.max_zcopy;
        attr.latency = {config_.latency, 0};
        attr.bandwidth = {0, config_.to_device};
        attr.overhead = config_.overhead;
    }
    void estimate_perf(uct_perf_attr_t& attr) override {
        const bool small = nic_max_ != 0 && nic_max_ >= config_.max_bcopy && is_small(attr);
        fill_perf_attr(attr, bandwidth_of(config_, attr), small ? config_.nic_latency : config_.latency,
                       small ? 0 : config_.overhead);
    }
    [[nodiscard]] std::size_t limit_of(kind which) const override {
        return which == kind::short_copy ? config_.max_short : config_.max_bcopy;
    }

    ucs_status_t ep_zcopy(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey,
                          bool put, uct_completion_t* comp) override {
        if (const auto status = check_key(module(), rkey, remote, local.length); status != UCS_OK)
            return status;
        const auto mine = number(local.buffer), to = put ? remote : mine, from = put ? mine : remote;
        // UCX's own staging passes no key and cannot wait for room (gotcha U13).
        const bool has_key = rkey != UCT_INVALID_RKEY;
        if (has_key && outstanding().others_wait())
            return UCS_ERR_NO_RESOURCE;
        auto started = start({to, from, local.length, local.length > nic_max_ ? &local : nullptr}, has_key);
        if (!started && has_key && started.error().code() == gaudi::errc::too_many_operations)
            return UCS_ERR_NO_RESOURCE;
        if (!started) {
            const auto status = refused(started.error(), local.length, to, from);
            if (!has_key)
                log_consequence();
            return status;
        }
        // A copy that has failed already goes into the list: UCX expects its error in the completion.
        if (started->finished() && started->wait()) {
            completed(*started);
            return UCS_OK;
        }
        outstanding().add(std::move(*started), comp, ep);
        return UCS_INPROGRESS;
    }
    ucs_status_t ep_copy(kind which, void* buffer, std::size_t length, std::uint64_t remote, uct_rkey_t rkey,
                         bool put) override {
        if (const auto status = check_key(module(), rkey, remote, length); status != UCS_OK)
            return status;
        const auto mine = number(buffer), to = put ? remote : mine, from = put ? mine : remote;
        // Short and buffered copies have no completion: they must be complete when the call returns.
        auto started = start({to, from, length}, false);
        if (!started)
            return refused(started.error(), length, to, from);
        if (const auto done = started->wait(); !done) // it may have completed with an error
            return refused(done.error(), length, to, from);
        auto& counters = module().counters;
        (which == kind::short_copy ? counters.short_bytes : counters.bcopy_bytes)
            .fetch_add(length, std::memory_order_relaxed);
        count_loopback(*started);
        return UCS_OK;
    }

private:
    // Where a NIC's queue is full: errc::too_many_operations to a caller that can retry. UCX's own staging,
    // which has no key, cannot (gotcha U13): its copies wait for all earlier ones.
    gaudi::result<gaudi::copy_ticket> start(const copied_range& range, bool can_retry) {
        if (range.length == 0)
            return gaudi::copy_ticket();
        keep_fence();
        auto started = copy_in_process(md_, copies(), range, policy_);
        if (!started && started.error().code() == gaudi::errc::too_many_operations &&
            !(can_retry && !outstanding().none_running())) {
            wait_for_all();
            started = copy_in_process(md_, copies(), range, policy_);
        }
        return started;
    }
    void completed(const gaudi::copy_ticket& copy) override {
        module().counters.zcopy_bytes.fetch_add(copy.bytes(), std::memory_order_relaxed);
        count_loopback(copy);
    }
    void count_loopback(const gaudi::copy_ticket& copy) {
        if (copy.path() == gaudi::copy_path::nic_loopback)
            module().counters.loopback_bytes.fetch_add(copy.bytes(), std::memory_order_relaxed);
    }

    uct_gaudi_copy_md_t& md_;
    const uct_gaudi_copy_iface_config_t config_;
    const std::uint64_t nic_max_; // the longest copy that a NIC makes; 0: there is none
    gaudi::copy_policy policy_;
    interface_id id_;
};

std::string wrong_with(const uct_gaudi_copy_iface_config_t& config) {
    if (config.max_short == 0 || config.max_short > 1 << 20)
        return fmt::format("UCX_GAUDI_COPY_SHORT_MAX={}: use 1 to 1m", config.max_short);
    if (config.max_bcopy < config.max_short || config.max_bcopy > 1 << 30)
        return fmt::format("UCX_GAUDI_COPY_BCOPY_MAX={}: use SHORT_MAX ({}) to 1g", config.max_bcopy,
                           config.max_short);
    if (config.max_zcopy < config.max_bcopy || config.max_zcopy == auto_bytes)
        return fmt::format("UCX_GAUDI_COPY_ZCOPY_MAX={}: use BCOPY_MAX ({}) or more, or inf",
                           config.max_zcopy == auto_bytes ? "auto" : std::to_string(config.max_zcopy),
                           config.max_bcopy);
    return first_of(
        {wrong_bandwidth("COPY_BW_TO_DEVICE", config.to_device),
         wrong_bandwidth("COPY_BW_FROM_DEVICE", config.from_device),
         wrong_bandwidth("COPY_BW_WITHIN", config.within), wrong_time("COPY_LATENCY", config.latency),
         wrong_time("COPY_NIC_LATENCY", config.nic_latency), wrong_time("COPY_OVERHEAD", config.overhead)});
}

ucs_status_t uct_gaudi_copy_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t* params,
                                       const uct_iface_config_t* tl_config, uct_iface_h* iface_p) {
    return no_throw([&]() -> ucs_status_t {
        const auto& config = *reinterpret_cast<const uct_gaudi_copy_iface_config_t*>(tl_config);
        if (const auto wrong = wrong_with(config); !wrong.empty())
            return refuse_setting(*copy_md(md).module, wrong);
        return open_iface(std::make_unique<copy_iface>(copy_md(md), config), md, worker, params, tl_config,
                          iface_p);
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
        // never freed: one table per UCX, until the process ends
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_iface_config_table)},
        {"SHORT_MAX", "256", "Largest put and get that is announced as short.", offsetof(config, max_short),
         type.bytes()},
        {"BCOPY_MAX", "32k", "Largest buffered put and get.", offsetof(config, max_bcopy), type.bytes()},
        {"ZCOPY_MAX", "1g", "Largest put and get without buffering.", offsetof(config, max_zcopy),
         type.bytes()},
        {"BW_TO_DEVICE", "17000MBs", "Bandwidth of copies to a device, for UCX's choice of protocols.",
         offsetof(config, to_device), type.bandwidth()},
        {"BW_FROM_DEVICE", "17000MBs", "Bandwidth of copies from a device.", offsetof(config, from_device),
         type.bandwidth()},
        {"BW_WITHIN", "17000MBs", "Bandwidth of copies within a device.", offsetof(config, within),
         type.bandwidth()},
        {"LATENCY", "7us", "Time that a copy of a few bytes takes.", offsetof(config, latency), type.time()},
        {"NIC_LATENCY", "1us", "The same where a NIC in loopback copies small pieces.",
         offsetof(config, nic_latency), type.time()},
        {"OVERHEAD", "1us", "CPU time that starting a copy takes.", offsetof(config, overhead), type.time()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

} // namespace

void register_copy_iface(uct_gaudi_module& module) {
    register_transport(module, module.copy_component(), module.copy_tl, "gaudi_cpy",
                       {"gaudi_cpy transport", "GAUDI_COPY_", iface_settings(module.ucx),
                        sizeof(uct_gaudi_copy_iface_config_t)},
                       {uct_gaudi_copy_query_devices, uct_gaudi_copy_iface_open});
}

} // namespace gaudi_ucx
