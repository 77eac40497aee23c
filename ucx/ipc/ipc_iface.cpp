// SPDX-License-Identifier: BSD-3-Clause
// Between processes of one host: gaudi::imported_buffer as a transport. Peers decide by addresses alone
// whether they can use it: whatever could make a copy fail later (host, network namespace, users, settings)
// is in them.
#include <gaudi/nic.hpp>

#include "ucx/base/component.hpp"
#include "ucx/base/iface.hpp"
#include "ucx/base/memory.hpp"
#include "ucx/base/settings.hpp"
#include "ucx/ipc/ipc_md.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace gaudi_ucx {
namespace {

struct uct_gaudi_ipc_iface_config_t {
    uct_iface_config_t super;
    double bandwidth, latency, overhead;
    char* require;
};

// Importers connect to abstract sockets, which belong to a network namespace.
std::uint32_t network_namespace() {
    struct stat status {};
    return ::stat("/proc/self/ns/net", &status) == 0 ? static_cast<std::uint32_t>(status.st_ino) : 0;
}

// UCX spreads a message over transports of similar bandwidth. Within one host a NIC would move the bytes over
// the same link twice: the value exceeds every NIC's by more than the factor of four up to which UCX combines
// transports.
double above_every_nic() {
    static const double found = [] {
        double fastest = 4e9;
        if (const auto all = gaudi::list_nics())
            for (const auto& each : *all)
                fastest = std::max(fastest, each.gbps * 1e9 / 8);
        return 5 * fastest;
    }();
    return found;
}

// In a user namespace user ids have another meaning; the kernel translates them for the peer that connects.
constexpr std::uint32_t unknown_user = UINT32_MAX;
std::uint32_t own_user() {
    std::uint64_t inside = 0, outside = 0, count = 0;
    // The map of the initial user namespace is the identity over all ids.
    const bool everybody = std::ifstream("/proc/self/uid_map") >> inside >> outside >> count && inside == 0 &&
                           outside == 0 && count >= UINT32_MAX - 1;
    return everybody ? ::geteuid() : unknown_user;
}

// Where a process runs and which users it serves: peers need it to choose this transport. It is sent in UCX's
// addresses, which have room for 31 bytes.
struct place_name {
    std::array<std::uint32_t, 2> machine{};
    std::uint32_t network = 0, user = 0;
    std::uint8_t allowed = 0;
    std::uint8_t more = 0;   // further users are served, for whom there is no room here
    std::uint8_t copies = 0; // it has engines and can copy for others
    std::uint8_t flags = 0;
    static constexpr std::uint8_t gives_dmabufs = 1, requires_zero_copy = 2;
    std::array<std::uint32_t, 2> allow{};

    [[nodiscard]] bool has(std::uint8_t flag) const { return (flags & flag) != 0; }
    [[nodiscard]] bool cannot_be_served_by(const place_name& owner) const {
        return has(requires_zero_copy) && !owner.has(gives_dmabufs);
    }
    [[nodiscard]] bool serves(std::uint32_t other) const {
        return user == other || more != 0 || user == unknown_user || other == unknown_user ||
               std::find(allow.begin(), allow.begin() + allowed, other) != allow.begin() + allowed;
    }
};
static_assert(sizeof(place_name) == 28 && std::is_trivially_copyable_v<place_name>);

// Whether a device here can copy, on our queues or on SynapseAI's.
bool any_engine() {
    const auto all = gaudi::list_devices();
    return all && std::any_of(all->begin(), all->end(), gaudi::may_have_engine);
}

place_name own_place(std::uint64_t machine, bool zero_copy) {
    place_name made;
    made.machine = std::bit_cast<std::array<std::uint32_t, 2>>(machine);
    made.network = network_namespace();
    made.user = own_user();
    const auto settings = gaudi::get_ipc().value_or(gaudi::ipc_settings{});
    made.copies = any_engine() ? 1 : 0;
    if (settings.give != gaudi::ipc_give::nothing)
        made.flags |= place_name::gives_dmabufs;
    if (zero_copy)
        made.flags |= place_name::requires_zero_copy;
    made.allowed = static_cast<std::uint8_t>(std::min(settings.allow.size(), made.allow.size()));
    made.more = settings.allow.size() > made.allow.size() ? 1 : 0;
    std::copy_n(settings.allow.begin(), made.allowed, made.allow.begin());
    return made;
}

class ipc_iface final : public gaudi_iface {
public:
    ipc_iface(uct_gaudi_module& module, const uct_gaudi_ipc_iface_config_t& config)
        : gaudi_iface(module, "copy between processes", nullptr, {}), config_(config),
          here_(own_place(process_.machine, config.require == std::string_view("zero-copy"))) {
        policy_.zero_copy = here_.has(place_name::requires_zero_copy);
    }

    void query(uct_iface_attr_t& attr) override {
        attr.cap.flags |= UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE | UCT_IFACE_FLAG_EP_CHECK;
        attr.latency = {config_.latency, 0};
        attr.bandwidth = {0, config_.bandwidth};
        attr.overhead = config_.overhead;
    }
    void estimate_perf(uct_perf_attr_t& attr) override {
        fill_perf_attr(attr, config_.bandwidth, config_.latency, config_.overhead);
    }
    std::vector<std::byte> device_address() override { return bytes_of(here_); }
    std::vector<std::byte> iface_address() override { return bytes_of(process_); }
    const char* unreachable_reason(const void* device, const void* process) override {
        place_name there;
        if (device != nullptr)
            std::memcpy(&there, device, sizeof(there));
        if (device == nullptr || there.machine != here_.machine)
            return "another host";
        if (there.network != here_.network)
            return "another network namespace, which the owner's socket cannot be reached from";
        if (there.allowed > there.allow.size() || !there.serves(here_.user))
            return "a process of another user, who does not serve this one (UCX_GAUDI_IPC_ALLOW there)";
        if (there.user != 0 && !here_.serves(there.user))
            return "a process of another user, who is not on this one's list (UCX_GAUDI_IPC_ALLOW here)";
        if (there.copies == 0 && (!there.has(place_name::gives_dmabufs) || !any_nic()))
            return "no path: its devices have no queues for copies, and no NIC here could access its memory";
        if (process != nullptr && std::memcmp(process, &process_, sizeof(process_)) == 0)
            return "the same process, which gaudi_cpy and gaudi_dma serve";
        return nullptr;
    }

    // When a copy fails in a rendezvous, UCX reports it to one of the two sides only; the other waits for
    // ever. What is known to fail is therefore refused on both sides before any message.
    ucs_status_t check_peer_settings(const void* device) override {
        place_name there;
        std::memcpy(&there, device, sizeof(there));
        const bool refused_here = here_.cannot_be_served_by(there),
                   refused_there = there.cannot_be_served_by(here_);
        if (!refused_here && !refused_there)
            return UCS_OK;
        gaudi_log(module(), ERROR,
                  "zero-copy was required (UCX_GAUDI_IPC_REQUIRE=zero-copy {}) and is impossible: {} "
                  "passes no descriptor (UCX_GAUDI_IPC_GIVE=nothing); change one of the two",
                  refused_here ? "here" : "at the peer", refused_here ? "the peer" : "this process");
        return UCS_ERR_UNREACHABLE;
    }

    ucs_status_t ep_zcopy(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey,
                          bool put, uct_completion_t* comp) override {
        if (outstanding().others_wait())
            return UCS_ERR_NO_RESOURCE;
        keep_fence();
        auto& key = *reinterpret_cast<uct_gaudi_ipc_rkey_t*>(rkey);
        const auto mine = number(local.buffer), to = put ? remote : mine, from = put ? mine : remote;
        auto started = start(key, local, remote, put);
        if (!started) {
            if (started.error().code() == gaudi::errc::too_many_operations)
                return UCS_ERR_NO_RESOURCE;
            note_failure(ep, started.error());
            return refused(started.error(), local.length, to, from);
        }
        gaudi_log(module(), TRACE, "{} of {} bytes at {:#x} by {}", put ? "put" : "get", local.length, remote,
                  gaudi::name_of(started->path()));
        if (started->done()) {
            const auto outcome = started->wait();
            if (outcome)
                completed(*started);
            else
                note_failure(ep, outcome.error());
            return outcome ? UCS_OK : refused(outcome.error(), local.length, to, from);
        }
        outstanding().add(std::move(*started), comp, ep);
        return UCS_INPROGRESS;
    }
    ucs_status_t ep_check(const std::vector<std::byte>& peer) override {
        gaudi::process_name process;
        if (peer.size() != sizeof(process))
            return UCS_OK;
        std::memcpy(&process, peer.data(), sizeof(process));
        return gaudi::has_ended(process) ? UCS_ERR_ENDPOINT_TIMEOUT : UCS_OK;
    }

protected:
    void completed(const gaudi::copy_ticket& copy) override {
        module().counters.ipc_bytes[static_cast<std::size_t>(copy.path())].fetch_add(
            copy.bytes(), std::memory_order_relaxed);
    }

private:
    template <typename T>
    static std::vector<std::byte> bytes_of(const T& record) {
        const auto bytes = std::as_bytes(std::span(&record, 1));
        return {bytes.begin(), bytes.end()};
    }

    gaudi::result<gaudi::copy_ticket> start(uct_gaudi_ipc_rkey_t& key, const uct_iov_t& local,
                                            std::uint64_t remote, bool put) {
        // UCX may use one key on several workers, each with a thread of its own.
        const std::lock_guard guard(key.mutex);
        if (!key.opened || key.opened->gone()) {
            auto opened = gaudi::import_memory(key.handle);
            if (!opened)
                return tl::unexpected(opened.error());
            key.opened = std::move(*opened);
        }
        // An address before the base wraps around and is out of range as well.
        const auto offset = remote - key.base;
        const auto address = number(local.buffer);
        const auto where = locate(address);
        if (!where.device && in_device_space(address))
            return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, "memory of no open device"));
        const auto here = place_of(where, address, local.length);
        const gaudi::place there(*key.opened, offset, local.length);
        return put ? copies().copy(there, here, policy_) : copies().copy(here, there, policy_);
    }

    const uct_gaudi_ipc_iface_config_t config_;
    const gaudi::process_name process_ = gaudi::own_process();
    const place_name here_;
    gaudi::copy_policy policy_;
};

ucs_status_t uct_gaudi_ipc_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t* params,
                                      const uct_iface_config_t* tl_config, uct_iface_h* iface_p) {
    return no_throw([&]() -> ucs_status_t {
        auto& module = *ipc_md(md).module;
        const auto& config = *reinterpret_cast<const uct_gaudi_ipc_iface_config_t*>(tl_config);
        auto chosen = config;
        if (config.bandwidth == UCS_CONFIG_DBL_AUTO)
            chosen.bandwidth = above_every_nic();
        if (const auto wrong = first_of({wrong_bandwidth("IPC_BW", chosen.bandwidth),
                                         wrong_time("IPC_LATENCY", chosen.latency),
                                         wrong_time("IPC_OVERHEAD", chosen.overhead)});
            !wrong.empty())
            return refuse_setting(module, wrong);
        if (const std::string_view require = config.require; require != "none" && require != "zero-copy")
            return refuse_setting(module,
                                  fmt::format("UCX_GAUDI_IPC_REQUIRE={}: use none or zero-copy", require));
        return open_iface(std::make_unique<ipc_iface>(module, chosen), md, worker, params, tl_config,
                          iface_p);
    });
}

ucs_config_field_t* iface_settings(const ucx_api& ucx) {
    const setting_types type(ucx);
    using config = uct_gaudi_ipc_iface_config_t;
    return new ucs_config_field_t[]{
        // never freed: one table per UCX, until the process ends
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_iface_config_table)},
        {"BW", "auto",
         "Bandwidth between processes, for UCX's choice of protocols. auto: so much more than every NIC "
         "here\n"
         "claims that UCX does not send part of the bytes through one.",
         offsetof(config, bandwidth), type.bandwidth()},
        {"LATENCY", "10us", "Time that a copy of a few bytes takes.", offsetof(config, latency), type.time()},
        {"OVERHEAD", "2us", "CPU time that starting a copy takes.", offsetof(config, overhead), type.time()},
        {"REQUIRE", "none",
         "zero-copy: memory that could only be reached through host memory is an error; none: it is staged, "
         "or\n"
         "its owner copies.",
         offsetof(config, require), type.string()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

} // namespace

void register_ipc_iface(uct_gaudi_module& module) {
    constexpr auto query_devices = [](uct_md_h md, uct_tl_device_resource_t** devices_p,
                                      unsigned* num_devices_p) {
        return ipc_md(md).module->ucx.uct_single_device_resource(
            md, "gaudi_ipc", UCT_DEVICE_TYPE_SHM, UCS_SYS_DEVICE_ID_UNKNOWN, devices_p, num_devices_p);
    };
    register_transport(module, module.ipc_component(), module.ipc_tl, "gaudi_ipc",
                       {"gaudi_ipc transport", "GAUDI_IPC_", iface_settings(module.ucx),
                        sizeof(uct_gaudi_ipc_iface_config_t)},
                       {query_devices, uct_gaudi_ipc_iface_open});
}

} // namespace gaudi_ucx
