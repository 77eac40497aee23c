// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/consistency.hpp"

#include <fmt/format.h>
#include <map>
#include <set>

namespace lab {
namespace {

// The ports of a Gaudi are functions of its PCI device.
result<void> place_ports_of_gaudis(description& wanted, std::string_view name) {
    std::set<unsigned> taken;
    for (unsigned i = 0; i < wanted.hcas.size(); ++i) {
        auto& hca = wanted.hcas[i];
        const auto refuse = [&](const std::string& why) {
            return tl::unexpected(problem{fmt::format("{}: hca {}: {}", name, i, why)});
        };
        if (!hca.of_gaudi && hca.ports > max_ports)
            return refuse(
                fmt::format("ports = {}: expected 1 to {}; only the ports of a Gaudi (of_gaudi) may "
                            "be more",
                            hca.ports, max_ports));
        if (!hca.of_gaudi)
            continue;
        if (*hca.of_gaudi >= wanted.gaudis.size())
            return refuse(fmt::format("of_gaudi = {}: this lab has only {} Gaudis", *hca.of_gaudi,
                                      wanted.gaudis.size()));
        if (!taken.insert(*hca.of_gaudi).second)
            return refuse(
                fmt::format("of_gaudi = {}: another nic has the ports of that Gaudi", *hca.of_gaudi));
        const auto& gaudi = wanted.gaudis[*hca.of_gaudi];
        hca.bus_id = gaudi.bus_id;
        hca.numa_node = gaudi.numa_node;
        hca.pci_switch = gaudi.pci_switch;
    }
    return {};
}

result<void> check_unique(const description& wanted, std::string_view name) {
    std::map<std::string, unsigned> bus_ids;
    std::map<unsigned, unsigned> modules;
    std::set<std::string> used_bus_ids;
    for (const auto& device : wanted.gaudis)
        used_bus_ids.insert(device.bus_id);
    for (unsigned i = 0; i < wanted.gaudis.size(); ++i) {
        if (const auto [other, fresh] = bus_ids.emplace(wanted.gaudis[i].bus_id, i); !fresh)
            return tl::unexpected(problem{fmt::format("{}: gaudi {} and gaudi {} have the same bus_id {}",
                                                      name, other->second, i, wanted.gaudis[i].bus_id)});
        if (const auto [other, fresh] = modules.emplace(wanted.gaudis[i].module_id, i); !fresh)
            return tl::unexpected(problem{fmt::format("{}: gaudi {} and gaudi {} have the same module_id {}",
                                                      name, other->second, i, wanted.gaudis[i].module_id)});
    }
    for (unsigned i = 0; i < wanted.hcas.size(); ++i)
        if (!wanted.hcas[i].of_gaudi && !used_bus_ids.insert(wanted.hcas[i].bus_id).second)
            return tl::unexpected(problem{fmt::format("{}: hca {} has the bus_id {} of another device", name,
                                                      i, wanted.hcas[i].bus_id)});
    return {};
}

result<void> check_drivers(const description& wanted, std::string_view name) {
    for (unsigned i = 0; i < wanted.gaudis.size(); ++i) {
        const auto& device = wanted.gaudis[i];
        const auto* const lacks = device.driver == driver::vendor           ? nullptr
                                  : device.generation == generation::gaudi3 ? "Gaudi3"
                                  : device.dmabuf_import                    ? "import of DMA-BUFs"
                                                                            : nullptr;
        if (lacks != nullptr)
            return tl::unexpected(problem{fmt::format("{}: gaudi {}: driver = {}: upstream has no {}", name,
                                                      i, name_of(device.driver), lacks)});
    }
    return {};
}

} // namespace

result<void> make_consistent(description& wanted, std::string_view name) {
    if (const auto placed = place_ports_of_gaudis(wanted, name); !placed)
        return placed;
    if (const auto possible = check_drivers(wanted, name); !possible)
        return possible;
    return check_unique(wanted, name);
}

} // namespace lab
