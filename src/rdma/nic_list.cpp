// SPDX-License-Identifier: BSD-3-Clause
// Which NICs there are and how near each is to a device. Every NIC is opened for that and closed again: what
// decides (ports, DMA-BUF support) is not in sysfs.
#include "src/rdma/nic_list.hpp"

#include "src/error/try.hpp"
#include "src/os/topology.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>

namespace gaudi {
namespace {

namespace fs = std::filesystem;

struct device_list {
    explicit device_list(const verbs_api& table) : api(table), all(table.ibv_get_device_list(&count)) {}
    ~device_list() {
        if (all != nullptr)
            api.ibv_free_device_list(all);
    }
    device_list(const device_list&) = delete;
    device_list& operator=(const device_list&) = delete;

    const verbs_api& api;
    int count = 0;
    ibv_device** all;
};

// Gbit/s of one lane and the number of lanes, by the codes in the port attributes.
double lane_rate(unsigned code) {
    switch (code) {
    case 1:
        return 2.5;
    case 2:
        return 5;
    case 4:
    case 8:
        return 10;
    case 16:
        return 14;
    case 32:
        return 25;
    case 64:
        return 50;
    case 128:
        return 100;
    default:
        return 0;
    }
}

unsigned lanes(unsigned code) {
    switch (code) {
    case 1:
        return 1;
    case 2:
        return 4;
    case 4:
        return 8;
    case 8:
        return 12;
    case 16:
        return 2;
    default:
        return 0;
    }
}

const char* state_text(ibv_port_state state) {
    constexpr const char* words[] = {"in no state", "down",   "initialising",
                                     "armed",       "active", "active but deferred"};
    const auto index = static_cast<std::size_t>(state);
    return index < std::size(words) ? words[index] : "in an unknown state";
}

std::optional<int> numa_node_below(const fs::path& device) {
    std::ifstream file(device / "numa_node");
    int node = -1;
    return file >> node && node >= 0 ? std::optional(node) : std::nullopt;
}

// Probes whether the driver registers DMA-BUFs: one page, with a descriptor that is not open. EBADF means
// that the driver checked the descriptor, so it does.
std::string dmabuf_refusal(const std::shared_ptr<const verbs_api>& api, ibv_context* context) {
    if (api->ibv_reg_dmabuf_mr == nullptr)
        return fmt::format("{} has no ibv_reg_dmabuf_mr", api->path());
    // Gotcha V6. The driver checks the descriptor before everything else, so that no memory is touched.
    const pd_handle domain(api->ibv_alloc_pd(context), {api});
    if (!domain)
        return fmt::format("no protection domain for the probe: {}", std::strerror(errno));
    errno = 0;
    const mr_handle region(api->ibv_reg_dmabuf_mr(domain.get(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE),
                           {api});
    if (const int reason = errno; !region && reason != EBADF)
        return fmt::format("its driver does not register DMA-BUFs: {}", std::strerror(reason));
    return {};
}

void add_ports(const std::shared_ptr<const verbs_api>& api, ibv_device* device, std::vector<nic_info>& into) {
    nic_info nic;
    nic.name = api->ibv_get_device_name(device);
    const auto folder = fs::path(device->ibdev_path) / "device";
    std::error_code ignored;
    const auto real = fs::canonical(folder, ignored);
    nic.bus_id = real.filename().string();
    nic.numa_node = numa_node_below(folder);
    std::string vendor;
    std::ifstream(folder / "vendor") >> vendor;
    // The driver of a Gaudi's own ports has one user context. Opening it, even to ask what it is, takes the
    // ports away from HCCL. Containers may hide sysfs, so that the driver's names count too.
    nic.of_gaudi = vendor == "0x1da3" || nic.name.starts_with("hbl_");
    if (nic.of_gaudi) {
        nic.state = "not opened: the ports of a Gaudi";
        nic.why_no_dmabuf = nic.state;
        into.push_back(nic);
        return;
    }
    const context_handle context(api->ibv_open_device(device), {api});
    if (!context) {
        nic.state = fmt::format("cannot be opened: {}", std::strerror(errno));
        into.push_back(nic);
        return;
    }
    ibv_device_attr limits{};
    if (api->ibv_query_device(context.get(), &limits) != 0)
        return;
    nic.why_no_dmabuf = dmabuf_refusal(api, context.get());
    nic.dmabuf = nic.why_no_dmabuf.empty();
    for (unsigned port = 1; port <= limits.phys_port_cnt; ++port) {
        ibv_port_attr attributes{};
        if (query_port(*api, context.get(), port, attributes) != 0)
            continue;
        auto info = nic;
        info.port = port;
        info.active = attributes.state == IBV_PORT_ACTIVE;
        info.state = state_text(attributes.state);
        info.link_layer =
            attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? link_layer::ethernet : link_layer::infiniband;
        info.gbps = lane_rate(attributes.active_speed) * lanes(attributes.active_width);
        info.mtu = 128U << attributes.active_mtu;
        info.longest_message = attributes.max_msg_sz;
        into.push_back(info);
    }
}

// Active first, then near, then fast: a fast NIC of another socket sends every byte over the link between the
// sockets.
void sort_by_distance(std::vector<nic_info>& nics) {
    std::stable_sort(nics.begin(), nics.end(), [](const auto& one, const auto& other) {
        return std::tuple(!one.active, one.distance, -one.gbps) <
               std::tuple(!other.active, other.distance, -other.gbps);
    });
}

} // namespace

int query_port(const verbs_api& api, ibv_context* context, unsigned port, ibv_port_attr& into) {
    into = {};
    const auto number = static_cast<std::uint8_t>(port);
    // libibverbs adds operations at the low end of the structure: its size tells whether this one exists.
    const auto* whole = ::verbs_get_ctx(context);
    if (whole != nullptr && whole->sz >= sizeof(*whole) - offsetof(verbs_context, query_port) &&
        whole->query_port != nullptr)
        return whole->query_port(context, number, &into, sizeof(into));
    return api.ibv_query_port(context, number, reinterpret_cast<_compat_ibv_port_attr*>(&into));
}

result<nic_list> enumerate_nics(const std::optional<device_info>& near_to) {
    GAUDI_TRY(auto api, verbs_api::load());
    nic_list seen{api, {}};
    const device_list devices(*api);
    if (devices.all == nullptr)
        return tl::unexpected(
            error(errc::no_nic, fmt::format("ibv_get_device_list of {}", api->path()), errno));
    for (int i = 0; i < devices.count; ++i)
        add_ports(api, devices.all[i], seen.ports);
    near_to ? sort_nics(seen.ports, *near_to) : sort_by_distance(seen.ports);
    return seen;
}

void sort_nics(std::vector<nic_info>& nics, const device_info& near_to) {
    const topology machine;
    for (auto& port : nics) {
        port.distance = machine.between(port.bus_id, near_to.bus_id);
        if (port.distance == nic_distance::unknown && port.numa_node && near_to.numa_node)
            port.distance = port.numa_node == near_to.numa_node ? nic_distance::same_numa_node
                                                                : nic_distance::other_numa_node;
    }
    sort_by_distance(nics);
}

result<context_handle> open_by_name(const std::shared_ptr<const verbs_api>& api, const std::string& name) {
    const device_list devices(*api);
    for (int i = 0; devices.all != nullptr && i < devices.count; ++i) {
        if (name != api->ibv_get_device_name(devices.all[i]))
            continue;
        context_handle opened(api->ibv_open_device(devices.all[i]), {api});
        if (!opened)
            return tl::unexpected(
                error(errc::nic_open_failed, fmt::format("ibv_open_device of {}", name), errno));
        return opened;
    }
    return tl::unexpected(error(errc::nic_unknown, fmt::format("{} is gone", name)));
}

} // namespace gaudi
