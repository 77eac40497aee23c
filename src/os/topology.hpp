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

// Where PCI devices sit in this machine, as hwloc knows it.
class topology {
public:
    topology();
    // The machine that hwloc was told to believe in (HWLOC_XMLFILE); nothing without: then hwloc, after a
    // long look, knows no more of one card than sysfs.
    [[nodiscard]] static std::optional<topology> described();

    // The one node a card is near to.
    [[nodiscard]] std::optional<int> numa_node(const std::string& bus_id) const;
    // The nodes that have one of these processors.
    [[nodiscard]] std::set<int> nodes_of(const std::vector<unsigned>& processors) const;
    [[nodiscard]] nic_distance between(const std::string& bus_id, const std::string& other_bus_id) const;

private:
    struct deleter {
        void operator()(hwloc_topology* loaded) const;
    };
    std::unique_ptr<hwloc_topology, deleter> loaded_; // empty where hwloc could not read the machine
};

// The NUMA nodes that this thread may run on; none where nobody knows.
[[nodiscard]] std::set<int> own_nodes();

} // namespace gaudi
