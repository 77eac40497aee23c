// SPDX-License-Identifier: BSD-3-Clause
// Large copies within this process on the devices' own queues: asynchronous, over several queues. Beyond the
// limit of outstanding copies operations return UCS_ERR_NO_RESOURCE.
#include "ucx/base/component.hpp"
#include "ucx/base/iface.hpp"
#include "ucx/base/settings.hpp"
#include "ucx/copy/copy_md.hpp"

namespace gaudi_ucx {
namespace {

constexpr unsigned most_batch = gaudi::copy_options{}.batch; // every engine supports this many

struct uct_gaudi_dma_iface_config_t {
    uct_iface_config_t super;
    unsigned queues, batch, in_flight;
    size_t stripe;
    double bandwidth, latency, overhead;
};

class dma_iface final : public gaudi_iface {
public:
    dma_iface(uct_gaudi_copy_md_t& md, const uct_gaudi_dma_iface_config_t& config)
        : gaudi_iface(*md.module, "DMA", lost_staging, {}), md_(md), config_(config) {
        // Per copy, because all interfaces of the process share the device's engine.
        policy_.hints = {config.queues, config.stripe, config.batch};
    }

    std::vector<std::byte> iface_address() override { return id_.bytes; }
    const char* unreachable_reason(const void*, const void* iface) override {
        return id_.unreachable_reason(iface);
    }

    void query(uct_iface_attr_t& attr) override {
        attr.latency = {config_.latency, 0};
        attr.bandwidth = {0, config_.bandwidth};
        attr.overhead = config_.overhead;
    }
    void estimate_perf(uct_perf_attr_t& attr) override {
        fill_perf_attr(attr, config_.bandwidth, config_.latency, config_.overhead);
    }
    // UCX stages with short copies, whatever their length.
    [[nodiscard]] std::size_t limit_of(kind which) const override {
        return which == kind::short_copy ? 256 : 0;
    }

    ucs_status_t ep_zcopy(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey,
                          bool put, uct_completion_t* comp) override {
        // UCX's own staging passes no key, cannot retry, and would take a refused copy for completed (gotcha
        // U13): such copies always go into the engine's queue.
        if (rkey != UCT_INVALID_RKEY &&
            (outstanding().running() >= config_.in_flight || outstanding().others_wait()))
            return UCS_ERR_NO_RESOURCE;
        const auto status =
            run(local, remote, rkey, put, [&](gaudi::copy_ticket& ticket) -> gaudi::result<ucs_status_t> {
                outstanding().add(std::move(ticket), comp, ep);
                return UCS_INPROGRESS;
            });
        if (UCS_STATUS_IS_ERR(status) && rkey == UCT_INVALID_RKEY)
            log_consequence();
        return status;
    }
    ucs_status_t ep_copy(kind, void* buffer, std::size_t length, std::uint64_t remote, uct_rkey_t rkey,
                         bool put) override {
        uct_iov_t local{};
        local.buffer = buffer;
        local.length = length;
        local.memh = UCT_MEM_HANDLE_NULL;
        return run(local, remote, rkey, put, [&](gaudi::copy_ticket& ticket) -> gaudi::result<ucs_status_t> {
            if (const auto done = ticket.wait(); !done)
                return tl::unexpected(done.error());
            completed(ticket);
            return UCS_OK;
        });
    }
    ucs_status_t pending_add(uct_ep_h ep, uct_pending_req_t* request) override {
        // Room has appeared since: UCX must retry now, because no completion may follow.
        if (outstanding().running() < config_.in_flight && !outstanding().others_wait())
            return UCS_ERR_BUSY;
        return gaudi_iface::pending_add(ep, request);
    }

private:
    // Starts a copy; `go_on` keeps the ticket or waits for it.
    template <typename F>
    ucs_status_t run(const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey, bool put, F&& go_on) {
        if (const auto status = check_key(module(), rkey, remote, local.length); status != UCS_OK)
            return status;
        keep_fence();
        const auto mine = number(local.buffer), to = put ? remote : mine, from = put ? mine : remote;
        const copied_range range{to, from, local.length, &local, false};
        auto started = copy_in_process(md_, copies(), range, policy_);
        if (!started && started.error().code() == gaudi::errc::too_many_operations) { // a NIC's queue is full
            // With nothing in flight here no completion would wake UCX to try again: the copy waits instead.
            if (rkey != UCT_INVALID_RKEY && !outstanding().none_running())
                return UCS_ERR_NO_RESOURCE;
            wait_for_all();
            started = copy_in_process(md_, copies(), range, policy_);
        }
        const auto status = started ? go_on(*started) : tl::unexpected(started.error());
        return status ? *status : refused(status.error(), local.length, to, from);
    }
    void completed(const gaudi::copy_ticket& copy) override {
        module().counters.dma_bytes.fetch_add(copy.bytes(), std::memory_order_relaxed);
    }
    uct_gaudi_copy_md_t& md_;
    const uct_gaudi_dma_iface_config_t config_;
    gaudi::copy_policy policy_;
    interface_id id_;
};

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
        return open_iface(std::make_unique<dma_iface>(copy_md(md), config), md, worker, params, tl_config,
                          iface_p);
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
