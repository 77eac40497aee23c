// SPDX-License-Identifier: BSD-3-Clause
// Large copies within this process on the devices' own queues: asynchronous, over several queues. Beyond the
// limit of outstanding copies operations return UCS_ERR_NO_RESOURCE.
#include "ucx/base/component.hpp"
#include "ucx/base/settings.hpp"
#include "ucx/copy/process_iface.hpp"

namespace gaudi_ucx {
namespace {

constexpr unsigned most_batch = gaudi::copy_options{}.batch; // every engine supports this many

struct uct_gaudi_dma_iface_config_t {
    uct_iface_config_t super;
    unsigned queues, batch, in_flight;
    size_t stripe;
    double bandwidth, latency, overhead;
};

process_transport transport_of(uct_gaudi_copy_md_t& md, const uct_gaudi_dma_iface_config_t& config) {
    auto* const bytes = &md.module->counters.dma_bytes;
    process_transport dma{"DMA"};
    dma.hints = {config.queues, config.stripe, config.batch};
    dma.max_short = 256; // UCX stages with short copies, whatever their length
    dma.in_flight = config.in_flight;
    dma.bandwidth = config.bandwidth;
    dma.latency = config.latency;
    dma.overhead = config.overhead;
    dma.short_bytes = dma.bcopy_bytes = dma.zcopy_bytes = bytes;
    return dma;
}

std::string wrong_with(const uct_gaudi_dma_iface_config_t& config) {
    if (config.queues == 0 || config.queues > 4)
        return fmt::format("UCX_GAUDI_DMA_QUEUES={}: use 1 to 4", config.queues);
    if (config.batch == 0 || config.batch > most_batch)
        return fmt::format("UCX_GAUDI_DMA_BATCH={}: use 1 to {}", config.batch, most_batch);
    if (config.in_flight == 0)
        return "UCX_GAUDI_DMA_IN_FLIGHT=0: use 1 or more";
    if (config.stripe < 64 * 1024 || config.stripe > SIZE_MAX / 4) // auto is SIZE_MAX - 1
        return fmt::format("UCX_GAUDI_DMA_STRIPE={}: use 64k or more", config.stripe);
    return first_of({wrong_bandwidth("DMA_BW", config.bandwidth), wrong_time("DMA_LATENCY", config.latency),
                     wrong_time("DMA_OVERHEAD", config.overhead)});
}

ucs_status_t uct_gaudi_dma_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t* params,
                                      const uct_iface_config_t* tl_config, uct_iface_h* iface_p) {
    return no_throw([&]() -> ucs_status_t {
        const auto& config = *reinterpret_cast<const uct_gaudi_dma_iface_config_t*>(tl_config);
        if (const auto wrong = wrong_with(config); !wrong.empty())
            return refuse_setting(*copy_md(md).module, wrong);
        return open_iface(std::make_unique<process_iface>(copy_md(md), transport_of(copy_md(md), config)), md,
                          worker, params, tl_config, iface_p);
    });
}

// No transport where no device has queues that we may use.
ucs_status_t uct_gaudi_dma_query_devices(uct_md_h md, uct_tl_device_resource_t** devices_p,
                                         unsigned* num_devices_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& module = *copy_md(md).module;
        std::string why = "there is no device";
        if (const auto all = gaudi::list_devices())
            for (const auto& each : *all) {
                if (gaudi::may_have_engine(each))
                    return module.ucx.uct_single_device_resource(md, "gaudi_dma", UCT_DEVICE_TYPE_ACC,
                                                                 UCS_SYS_DEVICE_ID_UNKNOWN, devices_p,
                                                                 num_devices_p);
                why = fmt::format("the driver of {} offers no queue for user submissions, and there is no "
                                  "SynapseAI that copies",
                                  each.bus_id);
            }
        gaudi_log(module, DIAG, "gaudi_dma is absent: {}", why);
        *devices_p = nullptr;
        *num_devices_p = 0;
        return UCS_OK;
    });
}

ucs_config_field_t* iface_settings(const ucx_api& ucx) {
    const setting_types type(ucx);
    using config = uct_gaudi_dma_iface_config_t;
    return new ucs_config_field_t[]{
        // never freed: one table per UCX, until the process ends
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_iface_config_table)},
        {"QUEUES", "2", "DMA queues that a copy of STRIPE or more is spread over, 1 to 4; see COPY_QUEUES.",
         offsetof(config, queues), type.unsigned_number()},
        {"STRIPE", "8m", "From this size on a copy is spread over several queues; 64k or more.",
         offsetof(config, stripe), type.bytes()},
        {"BATCH", "256", "Copies that one submission to the driver may carry, 1 to 256.",
         offsetof(config, batch), type.unsigned_number()},
        {"IN_FLIGHT", "256",
         "Maximum outstanding copies per interface; beyond it operations return NO_RESOURCE. UCX's own "
         "staging "
         "cannot wait, and is exempt.",
         offsetof(config, in_flight), type.unsigned_number()},
        {"BW", "17000MBs", "Bandwidth, for UCX's choice between this and gaudi_cpy.",
         offsetof(config, bandwidth), type.bandwidth()},
        {"LATENCY", "7us", "Time that a copy of a few bytes takes.", offsetof(config, latency), type.time()},
        {"OVERHEAD", "1us", "CPU time that starting a copy takes.", offsetof(config, overhead), type.time()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

} // namespace

void register_dma_iface(uct_gaudi_module& module) {
    register_transport(module, module.copy_component(), module.dma_tl, "gaudi_dma",
                       {"gaudi_dma transport", "GAUDI_DMA_", iface_settings(module.ucx),
                        sizeof(uct_gaudi_dma_iface_config_t)},
                       {uct_gaudi_dma_query_devices, uct_gaudi_dma_iface_open});
}

} // namespace gaudi_ucx
