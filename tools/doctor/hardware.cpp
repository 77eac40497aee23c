// SPDX-License-Identifier: BSD-3-Clause
// Gaudis, NICs, and how far they are from each other.
#include "tools/doctor/checks.hpp"
#include "tools/self.hpp"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

namespace tools::doctor {
namespace {

std::string name_of_device(const gaudi::device_info& info) {
    return fmt::format("gaudi {}", info.index);
}

std::string pci_file(const gaudi::device_info& info, std::string_view name) {
    return fmt::format("/sys/bus/pci/devices/{}/{}", info.bus_id, name);
}

// An attribute of the driver, at the places of newer and older kernels.
std::optional<std::string> read_attribute(const gaudi::device_info& info, std::string_view name) {
    for (const auto& path : {fmt::format("/sys/class/accel/accel{}/device/{}", info.index, name),
                             fmt::format("/sys/class/accel/accel{}/{}", info.index, name),
                             fmt::format("/sys/class/habanalabs/hl{}/{}", info.index, name)})
        if (auto text = read_line(path))
            return text;
    return std::nullopt;
}

// The largest window of the device in the machine's address space; nullopt: not readable.
std::optional<std::uint64_t> largest_bar(const gaudi::device_info& info) {
    std::ifstream file(machine_path(pci_file(info, "resource")));
    std::optional<std::uint64_t> largest;
    for (std::string begin, end, flags; file >> begin >> end >> flags;) {
        const auto from = std::strtoull(begin.c_str(), nullptr, 16),
                   to = std::strtoull(end.c_str(), nullptr, 16);
        if (to > from)
            largest = std::max(largest.value_or(0), std::uint64_t{to - from + 1});
    }
    return largest;
}

void check_node(report& into, const gaudi::device_info& info) {
    const auto new_node = fmt::format("/dev/accel/accel{}", info.index),
               old_node = fmt::format("/dev/hl{}", info.index);
    const auto exists = [](const std::string& node) {
        return ::access(machine_path(node).c_str(), F_OK) == 0;
    };
    const auto& node = !exists(new_node) && exists(old_node) ? old_node : new_node;
    const auto subject = name_of_device(info);
    if (!exists(node))
        into.broken("device.node", subject, node + " does not exist",
                    "pass it into the container: --device=" + node);
    else if (::access(machine_path(node).c_str(), R_OK | W_OK) != 0)
        into.broken("device.node", subject, node + " may not be opened by this user",
                    "add the user to the group that owns it (ls -l " + node + ")");
    else
        into.good("device.node", subject, node);
}

void check_link(report& into, const gaudi::device_info& info) {
    const auto speed = read_line(pci_file(info, "current_link_speed")),
               fastest = read_line(pci_file(info, "max_link_speed")),
               width = read_line(pci_file(info, "current_link_width")),
               widest = read_line(pci_file(info, "max_link_width"));
    const auto subject = name_of_device(info);
    if (!speed || !fastest || !width || !widest)
        into.unknown("device.link", subject, "its PCI link cannot be read", "lspci -vv shows it to root");
    else if (*speed != *fastest || *width != *widest)
        into.warning(
            "device.link", subject,
            fmt::format("its PCI link runs at {} x{}, it can do {} x{}", *speed, *width, *fastest, *widest),
            "reseat the card, or look into the firmware's settings of the slot");
    else
        into.good("device.link", subject, fmt::format("PCI {} x{}", *speed, *width));
}

} // namespace

void check_device(report& into, const gaudi::device_info& info, const gaudi::kernel_driver& driver) {
    const auto subject = name_of_device(info);
    if (!info.operational) {
        into.broken("device.status", subject, fmt::format("the driver says: {}", info.status),
                    "hl-smi shows more; a reset or a reboot may help");
    } else
        into.good("device.status", subject,
                  fmt::format("{} {} at {}, {}",
                              info.generation ? name_of(*info.generation) : "unknown generation",
                              info.product, info.bus_id, info.status));
    if (!info.generation)
        into.broken("device.generation", subject, "the driver does not say which generation it is",
                    "use a newer hl-thunk");
    check_node(into, info);
    if (const auto bar = largest_bar(info); !bar)
        into.unknown("device.bar", subject, "its windows cannot be read", "lspci -vv shows them to root");
    else if (*bar < info.memory_total)
        into.broken(
            "device.bar", subject,
            fmt::format("its largest window has {}, its memory {}", human_bytes(*bar),
                        human_bytes(info.memory_total)),
            "switch on \"above 4G decoding\" and large BARs in the firmware: nothing can be exported");
    else
        into.good("device.bar", subject, fmt::format("a window of {}", human_bytes(*bar)));
    check_link(into, info);
    const auto group = read_line(pci_file(info, "iommu_group/type"));
    std::error_code hidden;
    if (!group && std::filesystem::is_empty(machine_path("/sys/kernel/iommu_groups"), hidden) && !hidden)
        into.good("device.iommu", subject, "the machine has no IOMMU, or it is off");
    else if (!group)
        into.unknown("device.iommu", subject, "the type of its IOMMU group cannot be read",
                     "boot with iommu=pt, or without an IOMMU");
    else if (*group != "identity")
        into.warning("device.iommu", subject, fmt::format("its IOMMU group is of type {}", *group),
                     "boot with iommu=pt, so that addresses of other devices are not translated");
    else
        into.good("device.iommu", subject, "not translated by the IOMMU");
    // Firmware and driver are one release; the firmware's version ends with the release's.
    const auto firmware = read_attribute(info, "fw_os_ver");
    const auto release = driver.version.substr(0, driver.version.rfind('.'));
    if (firmware && !release.empty() && firmware->find(release) == std::string::npos)
        into.warning("device.firmware", subject,
                     fmt::format("firmware {}, driver {}", *firmware, driver.version),
                     "install firmware, driver and SynapseAI of one release");
    else if (firmware)
        into.good("device.firmware", subject, *firmware);
    else
        into.unknown("device.firmware", subject, "its version cannot be read",
                     "install firmware, driver and SynapseAI of one release");
}

void check_nic(report& into, const gaudi::nic_info& nic) {
    const auto subject = fmt::format("{}:{}", nic.name, nic.port);
    const auto network = nic.link_layer == gaudi::link_layer::ethernet ? "Ethernet" : "InfiniBand";
    if (nic.of_gaudi) {
        if (nic.port == 1)
            into.good("nic.of_gaudi", nic.name, "a Gaudi's own ports: HCCL's, never opened here");
        return;
    }
    if (nic.state.starts_with("cannot be opened")) {
        into.warning(
            "nic.open", nic.name, nic.state,
            "pass its node into the container (--device=/dev/infiniband), and let this user open it");
        return;
    }
    if (!nic.active)
        into.warning("nic.port", subject, fmt::format("{}, {}", network, nic.state),
                     "connect it, or choose another one");
    else
        into.good("nic.port", subject, fmt::format("{} {:g} Gbit/s, MTU {}", network, nic.gbps, nic.mtu));
    if (nic.dmabuf)
        into.good("nic.dmabuf", subject, "registers DMA-BUFs");
    else
        into.warning("nic.dmabuf", subject, nic.why_no_dmabuf,
                     "use a NIC whose driver registers DMA-BUFs (mlx5, irdma, bnxt_re)");
}

void check_distance(report& into, const gaudi::device_info& info, const std::vector<gaudi::nic_info>& nics) {
    const auto subject = name_of_device(info);
    const auto usable = std::ranges::find_if(nics, &gaudi::nic_info::moves_device_memory);
    if (usable == nics.end()) {
        into.broken("topology.nic", subject, "no NIC here moves its memory",
                    "an active port whose driver registers DMA-BUFs is needed");
        return;
    }
    check_acs(into, info, *usable);
    const auto found = fmt::format("{}:{}, {}", usable->name, usable->port, gaudi::name_of(usable->distance));
    if (usable->distance == gaudi::nic_distance::unknown)
        into.unknown("topology.nic", subject, found, "show /sys to the container, or compare lspci -t");
    else if (usable->distance == gaudi::nic_distance::other_numa_node)
        into.warning("topology.nic", subject, found,
                     "a NIC under the Gaudi's PCI switch is up to twice as fast");
    else
        into.good("topology.nic", subject, found);
}

} // namespace tools::doctor
