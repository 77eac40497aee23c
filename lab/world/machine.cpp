// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/machine.hpp"

#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace lab {
namespace {

std::string pci_folder(const std::string& bus_id) {
    return fmt::format("devices/pci{}/{}", bus_id.substr(0, 7), bus_id);
}

class writer {
public:
    void file(const std::string& path, std::string_view text) {
        files_.push_back({path, fmt::format("{}\n", text)});
    }
    void link(const std::string& path, const std::string& target) { files_.push_back({path, target, true}); }
    // Of a PCI device: what both Gaudis and NICs have.
    void pci(const std::string& bus_id, unsigned numa_node, unsigned vendor, unsigned device) {
        const auto folder = "sys/" + pci_folder(bus_id);
        file(folder + "/numa_node", std::to_string(numa_node));
        file(folder + "/vendor", fmt::format("{:#06x}", vendor));
        file(folder + "/device", fmt::format("{:#06x}", device));
        for (const auto* which : {"current", "max"}) {
            file(fmt::format("{}/{}_link_speed", folder, which), "32.0 GT/s PCIe");
            file(fmt::format("{}/{}_link_width", folder, which), "16");
        }
        file(folder + "/iommu_group/type", "identity");
        link("sys/bus/pci/devices/" + bus_id, "../../../" + pci_folder(bus_id));
    }
    std::vector<machine_file> finish() { return std::move(files_); }

private:
    std::vector<machine_file> files_;
};

void add_kernel(writer& into, driver whose) {
    const auto* const release = whose == driver::upstream_6_6 ? "6.6.0-lab" : "6.12.0-lab";
    into.file("proc/sys/kernel/osrelease", release);
    into.file("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz iommu=pt");
    into.file(fmt::format("boot/config-{}", release),
              "CONFIG_PCI_P2PDMA=y\nCONFIG_INFINIBAND_USER_MEM=y\nCONFIG_DMABUF_MOVE_NOTIFY=y");
    if (whose == driver::vendor) // Linux's own module has no version
        into.file("sys/module/habanalabs/version", "1.24.1-lab");
    else
        into.file("sys/module/habanalabs/parameters/timeout_locked", "30");
}

void add_gaudi(writer& into, const gaudi_description& gaudi, unsigned index) {
    constexpr std::pair<std::string_view, unsigned> types[] = {
        {"GAUDI", 0x1000}, {"GAUDI2", 0x1020}, {"GAUDI3", 0x1060}};
    const auto& [type, id] = types[static_cast<int>(gaudi.generation)];
    const auto folder = "sys/" + pci_folder(gaudi.bus_id);
    into.pci(gaudi.bus_id, gaudi.numa_node, vendor_of_gaudi, id);
    into.file(folder + "/status", gaudi.broken ? "Disabled" : "Operational");
    into.file(folder + "/device_type", type);
    into.file(folder + "/pci_addr", gaudi.bus_id);
    into.file(folder + "/module_id", std::to_string(gaudi.module_id));
    into.file(folder + "/fw_os_ver", "hl-gaudi-lab-fw-1.24.1");
    // Configuration, MSI-X, memory: beginning, end and flags of each BAR.
    const std::uint64_t memory = gaudi.small_bar ? 256ULL << 20 : 128ULL << 30, at = 1ULL << 44;
    into.file(folder + "/resource",
              fmt::format("{0:#018x} {1:#018x} 0x000000000014220c\n"
                          "{2:#018x} {3:#018x} 0x000000000014220c",
                          at, at + (128ULL << 20) - 1, at + (memory << 1), at + (memory << 1) + memory - 1));
    into.link(fmt::format("sys/class/accel/accel{}/device", index), "../../../" + pci_folder(gaudi.bus_id));
}

void add_nic(writer& into, const description& machine, unsigned index) {
    const auto& hca = machine.hcas[index];
    const auto name = machine.name_of_hca(index);
    const auto pci = pci_folder(hca.bus_id), nic = pci + "/infiniband/" + name;
    if (!hca.of_gaudi) // otherwise the PCI device is the Gaudi's
        into.pci(hca.bus_id, hca.numa_node, 0x6764, 1);
    into.file("sys/" + nic + "/node_type", "1: CA");
    into.file("sys/" + nic + "/hca_type", "VHCA");
    into.link("sys/" + nic + "/device", "../../../" + hca.bus_id);
    into.link("sys/class/infiniband/" + name, "../../" + nic);
}

} // namespace

std::vector<machine_file> machine_files(const description& machine) {
    writer into;
    add_kernel(into, machine.gaudis.empty() ? driver::vendor : machine.gaudis.front().driver);
    for (unsigned i = 0; i < machine.gaudis.size(); ++i)
        add_gaudi(into, machine.gaudis[i], i);
    for (unsigned i = 0; i < machine.hcas.size(); ++i)
        add_nic(into, machine, i);
    into.link("dev/accel", "../accel");
    return into.finish();
}

} // namespace lab
