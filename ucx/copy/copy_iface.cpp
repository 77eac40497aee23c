// SPDX-License-Identifier: BSD-3-Clause
// Copies of any length within this process, small ones through a NIC where there is one. UCX stages with this
// transport.
#include "ucx/base/component.hpp"
#include "ucx/base/settings.hpp"
#include "ucx/copy/process_iface.hpp"

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

process_transport transport_of(uct_gaudi_copy_md_t& md, const uct_gaudi_copy_iface_config_t& config) {
    auto& counters = md.module->counters;
    process_transport copy{"copy"};
    copy.options.engines = md.copies;
    copy.options.nic_max = md.nic_max != 0 && any_nic() ? md.nic_max : 0;
    copy.hints.queues = md.copies.queues; // the engine may have been created with another number
    copy.max_short = config.max_short;
    copy.max_bcopy = config.max_bcopy;
    copy.max_zcopy = config.max_zcopy;
    copy.within_host = true;
    copy.bandwidth = config.to_device;
    copy.latency = config.latency;
    copy.overhead = config.overhead;
    const bool nic_first = copy.options.nic_max != 0 && copy.options.nic_max >= config.max_bcopy;
    copy.estimate_perf = [config, nic_first](uct_perf_attr_t& attr) {
        const bool small = nic_first && is_small(attr);
        fill_perf_attr(attr, bandwidth_of(config, attr), small ? config.nic_latency : config.latency,
                       small ? 0 : config.overhead);
    };
    copy.short_bytes = &counters.short_bytes;
    copy.bcopy_bytes = &counters.bcopy_bytes;
    copy.zcopy_bytes = &counters.zcopy_bytes;
    copy.loopback_bytes = &counters.loopback_bytes;
    return copy;
}

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
        return open_iface(std::make_unique<process_iface>(copy_md(md), transport_of(copy_md(md), config)), md,
                          worker, params, tl_config, iface_p);
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
