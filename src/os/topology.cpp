// SPDX-License-Identifier: BSD-3-Clause
// Distances between PCI devices, and the NUMA nodes of this process, as hwloc reports them. PCI devices are
// I/O objects, for which some of hwloc's functions must not be called (gotcha V10).
#include "src/os/topology.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <hwloc.h>
#include <sched.h>

namespace gaudi {
namespace {

hwloc_obj_t find(hwloc_topology_t machine, const std::string& bus_id) {
    return bus_id.empty() ? nullptr : hwloc_get_pcidev_by_busidstring(machine, bus_id.c_str());
}

// I/O objects have no NUMA nodes; their first ancestor that is no I/O object has.
int first_node(hwloc_topology_t machine, hwloc_obj_t device) {
    const auto* host = hwloc_get_non_io_ancestor_obj(machine, device);
    return host != nullptr && host->nodeset != nullptr ? hwloc_bitmap_first(host->nodeset) : -1;
}

// hwloc_get_common_ancestor_obj() compares depths, which I/O objects do not have, and crashes.
hwloc_obj_t joint_ancestor(hwloc_obj_t one, hwloc_obj_t other) {
    for (auto* above = one->parent; above != nullptr; above = above->parent)
        for (auto* other_above = other->parent; other_above != nullptr; other_above = other_above->parent)
            if (other_above == above)
                return other_above;
    return nullptr;
}

struct bitmap {
    bitmap() : bits(hwloc_bitmap_alloc()) {}
    explicit bitmap(const std::vector<unsigned>& members) : bitmap() {
        for (const auto member : members)
            hwloc_bitmap_set(bits, member);
    }
    ~bitmap() { hwloc_bitmap_free(bits); }
    bitmap(const bitmap&) = delete;
    bitmap& operator=(const bitmap&) = delete;
    hwloc_bitmap_t bits;
};

std::vector<unsigned> own_processors() {
    std::vector<unsigned> processors;
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) // fails with more processors than fit
        for (unsigned i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &allowed))
                processors.push_back(i);
    return processors;
}

} // namespace

void topology::deleter::operator()(hwloc_topology* loaded) const {
    hwloc_topology_destroy(loaded);
}

topology::topology() {
    hwloc_topology_t loaded = nullptr;
    if (hwloc_topology_init(&loaded) != 0)
        return;
    loaded_.reset(loaded);
    // hwloc omits PCI devices and bridges unless they are asked for.
    hwloc_topology_set_io_types_filter(loaded, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(loaded) != 0)
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

std::set<int> topology::nodes_of(const std::vector<unsigned>& processors) const {
    std::set<int> nodes;
    const bitmap wanted(processors);
    for (hwloc_obj_t node = nullptr;
         loaded_ && (node = hwloc_get_next_obj_by_type(loaded_.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;)
        if (hwloc_bitmap_intersects(node->cpuset, wanted.bits) != 0)
            nodes.insert(static_cast<int>(node->os_index));
    return nodes;
}

std::set<int> own_nodes() {
    const auto processors = own_processors();
    if (const auto machine = topology::described())
        return machine->nodes_of(processors);
    std::set<int> nodes;
    const bitmap own(processors), local;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", missing)) {
        const auto name = entry.path().filename().string();
        std::string list;
        int node = -1;
        if (std::sscanf(name.c_str(), "node%d", &node) == 1 &&
            std::getline(std::ifstream(entry.path() / "cpulist") >> std::ws, list) &&
            hwloc_bitmap_list_sscanf(local.bits, list.c_str()) == 0 &&
            hwloc_bitmap_intersects(local.bits, own.bits) != 0)
            nodes.insert(node);
    }
    return nodes;
}

nic_distance topology::between(const std::string& bus_id, const std::string& other_bus_id) const {
    if (!loaded_)
        return nic_distance::unknown;
    auto* one = find(loaded_.get(), bus_id);
    auto* other = find(loaded_.get(), other_bus_id);
    if (one == nullptr || other == nullptr)
        return nic_distance::unknown;
    const auto* joint = joint_ancestor(one, other);
    // A common bridge below the host bridge is a switch.
    if (joint != nullptr && joint->type == HWLOC_OBJ_BRIDGE &&
        joint->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        return nic_distance::same_switch;
    const int node = first_node(loaded_.get(), one), other_node = first_node(loaded_.get(), other);
    if (node < 0 || other_node < 0)
        return nic_distance::unknown;
    return node == other_node ? nic_distance::same_numa_node : nic_distance::other_numa_node;
}

std::string_view name_of(nic_distance distance) {
    constexpr std::string_view names[] = {
        "on the same PCI switch as the Gaudi", "on the NUMA node of the Gaudi",
        "on another NUMA node than the Gaudi", "at an unknown distance from the Gaudi"};
    return names[static_cast<std::size_t>(distance)];
}

} // namespace gaudi
