// SPDX-License-Identifier: BSD-3-Clause
#include "tools/topo.hpp"

#include "tools/commands.hpp"
#include "tools/self.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace tools {
namespace {

using json = nlohmann::ordered_json;

constexpr std::string_view letter_of(gaudi::nic_distance distance) {
    constexpr std::string_view letters[] = {"S", "N", "X", "?"};
    return letters[static_cast<int>(distance)];
}

std::string name_of_port(const gaudi::nic_info& nic) {
    return fmt::format("{}:{}", nic.name, nic.port);
}

// A row a device and a column a port, so that eight devices with their NICs fit on a screen.
void print_matrix(const json& topology) {
    if (topology.empty())
        return;
    std::size_t width = 6;
    for (const auto& entry : topology[0]["nics"])
        width = std::max(width, entry["nic"].get_ref<const std::string&>().size());
    fmt::print("\n{:<9}", "");
    for (const auto& entry : topology[0]["nics"])
        fmt::print(" {:>{}}", entry["nic"].get<std::string>(), width);
    fmt::print("\n");
    for (const auto& row : topology) {
        fmt::print("gaudi {:<3}", row["index"].get<unsigned>());
        for (const auto& column : topology[0]["nics"])
            for (const auto& entry : row["nics"])
                if (entry["nic"] == column["nic"])
                    fmt::print(" {:>{}}",
                               entry["letter"].get<std::string>() + (entry["taken"].get<bool>() ? "*" : " "),
                               width);
        fmt::print("\n");
    }
    fmt::print(
        "S same PCI switch, N same NUMA node, X another NUMA node, ? not known; * taken by the library\n");
}

} // namespace

json nics_json(const std::vector<gaudi::nic_info>& nics) {
    auto list = json::array();
    for (const auto& nic : nics) {
        if (nic.of_gaudi && nic.port != 1)
            continue;
        list.push_back(
            {{"name", nic.name},
             {"port", nic.of_gaudi ? json(nullptr) : json(nic.port)},
             {"bus_id", nic.bus_id},
             {"numa_node", nic.numa_node ? json(*nic.numa_node) : json(nullptr)},
             {"of_gaudi", nic.of_gaudi},
             {"active", nic.active},
             {"state", nic.state},
             {"link_layer", nic.link_layer == gaudi::link_layer::ethernet ? "ethernet" : "infiniband"},
             {"gbps", nic.gbps},
             {"mtu", nic.mtu},
             {"dmabuf", nic.dmabuf},
             {"why_no_dmabuf", nic.why_no_dmabuf}});
    }
    return list;
}

void print_nics(const json& nics) {
    for (const auto& nic : nics) {
        const auto name = nic["name"].get<std::string>();
        if (nic["of_gaudi"].get<bool>()) {
            fmt::print("nic {:<12} {:<13} a Gaudi's own ports: HCCL's, never opened here\n", name,
                       nic["bus_id"].get<std::string>());
            continue;
        }
        fmt::print("nic {:<12} {:<13} NUMA {:<3} {} {:g} Gbit/s, {}, DMA-BUF {}\n",
                   fmt::format("{}:{}", name, nic["port"].get<unsigned>()), nic["bus_id"].get<std::string>(),
                   nic["numa_node"].is_null() ? "?" : nic["numa_node"].dump(),
                   nic["link_layer"].get<std::string>(), nic["gbps"].get<double>(),
                   nic["state"].get<std::string>(),
                   nic["dmabuf"].get<bool>() ? "yes" : "no: " + nic["why_no_dmabuf"].get<std::string>());
    }
}

json topology_json(const std::vector<gaudi::device_info>& devices, std::vector<gaudi::nic_info> nics) {
    auto rows = json::array();
    for (const auto& device : devices) {
        auto entries = json::array();
        bool taken = false;
        gaudi::sort_nics(nics, device);
        for (const auto& nic : nics) {
            if (nic.of_gaudi)
                continue;
            const bool first = !taken && nic.moves_device_memory();
            taken = taken || first;
            entries.push_back({{"nic", name_of_port(nic)},
                               {"distance", gaudi::name_of(nic.distance)},
                               {"letter", letter_of(nic.distance)},
                               {"taken", first}});
        }
        std::sort(entries.begin(), entries.end(), [](const json& one, const json& other) {
            return one["nic"].get<std::string>() < other["nic"].get<std::string>();
        });
        rows.push_back({{"index", device.index}, {"bus_id", device.bus_id}, {"nics", std::move(entries)}});
    }
    return rows;
}

int topo(bool as_json) {
    const auto driver = gaudi::loaded_driver();
    if (driver && is_virtual(driver->path))
        believe_in_the_lab();
    const auto devices = gaudi::list_devices();
    const auto nics = gaudi::list_nics();
    for (const auto* problem : {devices ? nullptr : &devices.error(), nics ? nullptr : &nics.error()})
        if (problem != nullptr) {
            fmt::print(stderr, "gaudi-direct: {}\n", problem->message());
            return failed;
        }
    const auto topology = topology_json(*devices, *nics);
    if (as_json) {
        fmt::print("{}\n", json({{"nics", nics_json(*nics)}, {"devices", topology}}).dump(2));
        return ok;
    }
    for (const auto& info : *devices)
        fmt::print("gaudi {:<10} {:<13} NUMA {:<3} {} {}, module {}, {}\n", info.index, info.bus_id,
                   info.numa_node ? std::to_string(*info.numa_node) : "?",
                   info.generation ? name_of(*info.generation) : "unknown generation", info.product,
                   info.module_id, info.status);
    print_nics(nics_json(*nics));
    print_matrix(topology);
    return ok;
}

} // namespace tools
