// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/topology.hpp"

#include <cstdlib>
#include <hwloc.h>

namespace gaudi {
namespace {

hwloc_obj_t find(hwloc_topology_t machine, const std::string& bus_id) {
    return bus_id.empty() ? nullptr : hwloc_get_pcidev_by_busidstring(machine, bus_id.c_str());
}

// The processors' side of an I/O object, which has the NUMA nodes.
int first_node(hwloc_topology_t machine, hwloc_obj_t device) {
    const auto* host = hwloc_get_non_io_ancestor_obj(machine, device);
    return host != nullptr && host->nodeset != nullptr ? hwloc_bitmap_first(host->nodeset) : -1;
}

// hwloc's own function compares depths, which I/O objects do not have.
hwloc_obj_t joint_ancestor(hwloc_obj_t one, hwloc_obj_t other) {
    for (auto* above = one->parent; above != nullptr; above = above->parent)
        for (auto* each = other->parent; each != nullptr; each = each->parent)
            if (each == above)
                return each;
    return nullptr;
}

} // namespace

void topology::deleter::operator()(hwloc_topology* loaded) const {
    hwloc_topology_destroy(loaded);
}

topology::topology() {
    hwloc_topology_t made = nullptr;
    if (hwloc_topology_init(&made) != 0)
        return;
    loaded_.reset(made);
    hwloc_topology_set_io_types_filter(made, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(made) != 0)
        loaded_.reset();
}

std::optional<topology> topology::described() {
    return std::getenv("HWLOC_XMLFILE") != nullptr ? std::optional<topology>(std::in_place) : std::nullopt;
}

std::optional<int> topology::numa_node(const std::string& bus_id) const {
    auto* device = loaded_ ? find(loaded_.get(), bus_id) : nullptr;
    const auto* host = device != nullptr ? hwloc_get_non_io_ancestor_obj(loaded_.get(), device) : nullptr;
    if (host == nullptr || host->nodeset == nullptr || hwloc_bitmap_weight(host->nodeset) != 1)
        return std::nullopt;
    return hwloc_bitmap_first(host->nodeset);
}

nic_distance topology::between(const std::string& bus_id, const std::string& other_bus_id) const {
    if (!loaded_)
        return nic_distance::unknown;
    auto* one = find(loaded_.get(), bus_id);
    auto* other = find(loaded_.get(), other_bus_id);
    if (one == nullptr || other == nullptr)
        return nic_distance::unknown;
    const auto* joint = joint_ancestor(one, other);
    // Below a host bridge only switches are left.
    if (joint != nullptr && joint->type == HWLOC_OBJ_BRIDGE &&
        joint->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        return nic_distance::same_switch;
    const int node = first_node(loaded_.get(), one), other_node = first_node(loaded_.get(), other);
    if (node < 0 || other_node < 0)
        return nic_distance::unknown;
    return node == other_node ? nic_distance::same_numa_node : nic_distance::other_numa_node;
}

} // namespace gaudi
