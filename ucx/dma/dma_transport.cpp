// SPDX-License-Identifier: BSD-3-Clause
// Large copies within this process on the devices' own queues: nothing is waited for, several queues share
// one copy, and who finds the queues full is told so.
#include "ucx/dma/dma_transport.hpp"

#include "ucx/base/operations.hpp"
#include "ucx/base/settings.hpp"
#include "ucx/base/transport.hpp"
#include "ucx/copy/copy_md.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

namespace gaudi_ucx {
namespace {

struct uct_gaudi_dma_iface_config_t {
    uct_iface_config_t super;
    unsigned queues, batch, in_flight;
    size_t stripe;
    double bandwidth, latency, overhead;
};

class dma_transport : public transport {
public:
    dma_transport(uct_gaudi_module& module, const uct_gaudi_dma_iface_config_t& config)
        : transport(module), config_(config) {
        if (::getrandom(&id_, sizeof(id_), GRND_NONBLOCK) != sizeof(id_))
            id_ = number(this) ^ static_cast<std::uint64_t>(::getpid()) << 48;
    }
    ~dma_transport() override {
        if (epoll_ >= 0)
            ::close(epoll_);
    }

    void describe(uct_iface_attr_t& attr) override {
        attr.latency = {config_.latency, 0};
        attr.bandwidth = {0, config_.bandwidth};
        attr.overhead = config_.overhead;
    }
    void estimate(uct_perf_attr_t& attr) override {
        give_estimates(attr, config_.bandwidth, config_.latency, config_.overhead);
    }
    std::vector<std::byte> process_address() override {
        const auto bytes = std::as_bytes(std::span(&id_, 1));
        return {bytes.begin(), bytes.end()};
    }
    // Only itself: device addresses mean something in this process alone.
    const char* why_unreachable(const void*, const void* process) override {
        return process != nullptr && std::memcmp(process, &id_, sizeof(id_)) == 0
                   ? nullptr
                   : "another process's gaudi_dma";
    }

    ucs_status_t begin(const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey, bool put,
                       uct_completion_t* comp) override {
        if (const auto status = check_key(module(), rkey, remote, local.length); status != UCS_OK)
            return status;
        if (operations_.running() >= config_.in_flight)
            return UCS_ERR_NO_RESOURCE;
        if (operations_.take_fence())
            operations_.for_each([](gaudi::copy_ticket& before) { (void)before.wait(); });
        const auto mine = number(local.buffer);
        auto started = start(local, put ? remote : mine, put ? mine : remote);
        if (!started) {
            gaudi_log(module(), ERROR, "DMA of {} bytes between {:#x} and {:#x}: {}", local.length, mine,
                      remote, started.error().message());
            return status_of(started.error());
        }
        module().counters.dma_bytes.fetch_add(local.length, std::memory_order_relaxed);
        operations_.add(std::move(*started), comp);
        return UCS_INPROGRESS;
    }
    // UCX stages with these, whatever the length.
    std::size_t longest_short() const override { return 256; }
    ucs_status_t copy_now(void* buffer, std::size_t length, std::uint64_t remote, uct_rkey_t rkey,
                          bool put) override {
        if (const auto status = check_key(module(), rkey, remote, length); status != UCS_OK)
            return status;
        if (operations_.take_fence())
            operations_.for_each([](gaudi::copy_ticket& before) { (void)before.wait(); });
        uct_iov_t local{};
        local.buffer = buffer;
        local.length = length;
        local.memh = UCT_MEM_HANDLE_NULL;
        const auto mine = number(buffer);
        auto started = start(local, put ? remote : mine, put ? mine : remote);
        const auto done = started ? started->wait() : tl::unexpected(started.error());
        if (done) {
            module().counters.dma_bytes.fetch_add(length, std::memory_order_relaxed);
            return UCS_OK;
        }
        gaudi_log(module(), ERROR, "DMA of {} bytes: {}", length, done.error().message());
        return status_of(done.error());
    }
    bool idle() const override { return operations_.idle(); }
    unsigned progress() override {
        for (auto& [index, engine] : engines_)
            engine.poll();
        const auto count =
            operations_.progress([](const gaudi::copy_ticket& each) { return each.finished(); },
                                 [&](gaudi::copy_ticket& each) {
                                     const auto outcome = each.wait();
                                     if (outcome)
                                         return UCS_OK;
                                     gaudi_log(module(), ERROR, "DMA: {}", outcome.error().message());
                                     return status_of(outcome.error());
                                 });
        if (operations_.none_running()) // so that a device that was reset can be opened again
            std::erase_if(engines_, [](const auto& each) { return each.second.lost(); });
        return count;
    }
    ucs_status_t flush(uct_completion_t* comp) override { return operations_.flush(comp); }
    void fence() override { operations_.fence(); }
    ucs_status_t wait_for_room(uct_ep_h ep, uct_pending_req_t* request) override {
        if (operations_.running() < config_.in_flight && !operations_.anybody_waits())
            return UCS_ERR_BUSY;
        operations_.wait_for_room(ep, request);
        return UCS_OK;
    }
    void purge(uct_ep_h ep, uct_pending_purge_callback_t visit, void* arg) override {
        operations_.purge(ep, [&](uct_pending_req_t* request) { visit(request, arg); });
    }
    ucs_status_t event_fd(int* fd) override {
        if (epoll_ < 0) {
            epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
            if (epoll_ < 0)
                return UCS_ERR_IO_ERROR;
            for (auto& [index, engine] : engines_)
                watch(engine);
        }
        *fd = epoll_;
        return UCS_OK;
    }
    ucs_status_t arm() override {
        epoll_event seen[8];
        if (epoll_ >= 0)
            (void)::epoll_wait(epoll_, seen, 8, 0); // what came until now is looked at here
        for (auto& [index, engine] : engines_)
            engine.poll();
        return operations_.any([](const gaudi::copy_ticket& each) { return each.finished(); })
                   ? UCS_ERR_BUSY // progress first
                   : UCS_OK;
    }
    void drain() override {
        while (!operations_.none_running()) {
            operations_.for_each([](gaudi::copy_ticket& each) { (void)each.wait(); });
            progress();
        }
    }

private:
    gaudi::result<gaudi::copy_ticket> start(const uct_iov_t& local, std::uint64_t to, std::uint64_t from) {
        const auto target = locate(to), source = locate(from);
        if (!target.device && !source.device)
            return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "neither side is device memory"));
        if (target.device && source.device && target.index != source.index)
            return tl::unexpected(
                gaudi::error(gaudi::errc::wrong_device, "the two sides are on two devices"));
        auto engine = engine_of(target.device ? target.index : source.index);
        if (!engine)
            return tl::unexpected(engine.error());
        if (target.device != source.device && worth_pinning(local))
            pin(local, *engine);
        const gaudi::copy_hints hints{config_.queues, config_.stripe};
        if (!source.device)
            return engine->write(gaudi::device_address(to),
                                 {reinterpret_cast<std::byte*>(from), local.length}, hints);
        if (!target.device)
            return engine->read({reinterpret_cast<std::byte*>(to), local.length}, gaudi::device_address(from),
                                hints);
        return engine->copy(gaudi::device_address(to), gaudi::device_address(from), local.length, hints);
    }
    gaudi::result<gaudi::copy_engine> engine_of(unsigned index) {
        if (const auto known = engines_.find(index); known != engines_.end() && !known->second.lost())
            return known->second;
        const auto device = gaudi::find_open_device(index);
        if (!device)
            return tl::unexpected(
                gaudi::error(gaudi::errc::not_allocated, fmt::format("device {} is not open here", index)));
        gaudi::copy_options options; // count if nobody has the engine yet
        options.queues = config_.queues;
        options.batch = config_.batch;
        options.stripe_bytes = config_.stripe;
        auto engine = device->copies(options);
        if (!engine)
            return engine;
        engines_.insert_or_assign(index, *engine);
        if (epoll_ >= 0)
            watch(*engine);
        return engine;
    }
    void watch(gaudi::copy_engine& engine) {
        const auto fd = engine.event_fd();
        if (!fd) {
            gaudi_log(module(), ERROR, "event descriptor of the copy engine: {}", fd.error().message());
            return;
        }
        epoll_event event{}; // edges: the descriptor is everybody's, so nobody reads it
        event.events = EPOLLIN | EPOLLET;
        ::epoll_ctl(epoll_, EPOLL_CTL_ADD, *fd, &event);
    }

    const uct_gaudi_dma_iface_config_t config_;
    std::uint64_t id_ = 0;
    operations<gaudi::copy_ticket> operations_;
    std::map<unsigned, gaudi::copy_engine> engines_; // by device
    int epoll_ = -1;
};

std::string wrong_with(const uct_gaudi_dma_iface_config_t& config) {
    if (config.queues == 0 || config.queues > 4)
        return fmt::format("UCX_GAUDI_DMA_QUEUES={}: use 1 to 4", config.queues);
    if (config.batch == 0 || config.batch > 4096)
        return fmt::format("UCX_GAUDI_DMA_BATCH={}: use 1 to 4096", config.batch);
    if (config.in_flight == 0)
        return "UCX_GAUDI_DMA_IN_FLIGHT=0: use 1 or more";
    if (config.stripe < 64 * 1024)
        return fmt::format("UCX_GAUDI_DMA_STRIPE={}: use 64k or more", config.stripe);
    if (config.bandwidth <= 0)
        return "UCX_GAUDI_DMA_BW: a bandwidth must be more than 0";
    return {};
}

ucs_status_t uct_gaudi_dma_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t* params,
                                      const uct_iface_config_t* tl_config, uct_iface_h* iface_p) {
    return guarded([&]() -> ucs_status_t {
        auto& module = *copy_md(md).module;
        const auto& config = *reinterpret_cast<const uct_gaudi_dma_iface_config_t*>(tl_config);
        if (const auto wrong = wrong_with(config); !wrong.empty()) {
            gaudi_log(module, ERROR, "{}", wrong);
            return UCS_ERR_INVALID_PARAM;
        }
        return open_interface(std::make_unique<dma_transport>(module, config), md, worker, params, tl_config,
                              iface_p);
    });
}

// Absent where no device has queues for us.
ucs_status_t uct_gaudi_dma_query_devices(uct_md_h md, uct_tl_device_resource_t** devices_p,
                                         unsigned* num_devices_p) {
    return guarded([&]() -> ucs_status_t {
        auto& module = *copy_md(md).module;
        std::string why = "there is no device";
        if (const auto all = gaudi::list_devices())
            for (const auto& each : *all) {
                if (each.generation && gaudi::has_user_queues(*each.generation))
                    return module.ucx.uct_single_device_resource(md, "gaudi_dma", UCT_DEVICE_TYPE_ACC,
                                                                 UCS_SYS_DEVICE_ID_UNKNOWN, devices_p,
                                                                 num_devices_p);
                why = fmt::format("the driver of {} offers no queue for user submissions", each.bus_id);
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
        // one per UCX, for as long as the process lives
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_iface_config_table)},
        {"QUEUES", "4", "DMA queues that a copy of STRIPE or more is spread over, 1 to 4.",
         offsetof(config, queues), type.unsigned_number()},
        {"STRIPE", "8m", "From this size on a copy is spread over several queues; 64k or more.",
         offsetof(config, stripe), type.bytes()},
        {"BATCH", "256", "Copies that one submission to the driver may carry, 1 to 4096.",
         offsetof(config, batch), type.unsigned_number()},
        {"IN_FLIGHT", "256", "Copies of one interface under way; who wants more waits for room.",
         offsetof(config, in_flight), type.unsigned_number()},
        {"BW", "13000MBs", "Bandwidth, for UCX's choice between this and gaudi_cpy.",
         offsetof(config, bandwidth), type.bandwidth()},
        {"LATENCY", "60us", "Time that a copy of a few bytes takes.", offsetof(config, latency), type.time()},
        {"OVERHEAD", "1us", "CPU time that starting a copy takes.", offsetof(config, overhead), type.time()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

} // namespace

void fill_dma_tl(uct_gaudi_module& module) {
    auto& tl = module.dma_tl;
    tl = {};
    std::strcpy(tl.name, "gaudi_dma");
    tl.query_devices = uct_gaudi_dma_query_devices;
    tl.iface_open = uct_gaudi_dma_iface_open;
    tl.config.name = "gaudi_dma transport";
    tl.config.prefix = "GAUDI_DMA_";
    tl.config.table = iface_settings(module.ucx);
    tl.config.size = sizeof(uct_gaudi_dma_iface_config_t);
}

} // namespace gaudi_ucx
