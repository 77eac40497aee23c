// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic_distance.hpp>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

struct hwloc_topology;

namespace gaudi {

// The positions of PCI devices in this machine, according to hwloc.
class topology {
public:
    topology();
    // The machine described by HWLOC_XMLFILE; nullopt where it is not set: there sysfs already has what hwloc
    // knows about a single device, and hwloc takes long to load.
    [[nodiscard]] static std::optional<topology> described();

    // The NUMA node that the PCI device is attached to; nullopt: not known, or not exactly one.
    [[nodiscard]] std::optional<int> numa_node(const std::string& bus_id) const;
    // The NUMA nodes that contain one of these processors.
    [[nodiscard]] std::set<int> nodes_of(const std::vector<unsigned>& processors) const;
    [[nodiscard]] nic_distance between(const std::string& bus_id, const std::string& other_bus_id) const;

private:
    struct deleter {
        void operator()(hwloc_topology* loaded) const;
    };
    std::unique_ptr<hwloc_topology, deleter> loaded_; // empty where hwloc could not read the machine
};

// The NUMA nodes that this thread may run on; empty: not known.
[[nodiscard]] std::set<int> own_nodes();

} // namespace gaudi
