// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/topology.hpp"

#include <fmt/format.h>
#include <map>

namespace lab {
namespace {

// hwloc's text for a set with one member: words of 32 bits, the highest first.
std::string only(unsigned member) {
    auto text = fmt::format("0x{:08x}", 1U << member % 32);
    for (unsigned word = member / 32; word > 0; --word)
        text += ",0x0";
    return text;
}

std::string sets(const std::string& members) {
    return fmt::format(R"(cpuset="{0}" complete_cpuset="{0}" nodeset="{0}" complete_nodeset="{0}")", members);
}

struct place {
    std::string bus_id;
    const char* type; // PCI class and ids
};
// Devices and nics by switch; 0: no switch.
using devices_by_switch = std::map<unsigned, std::vector<place>>;

class writer {
public:
    void line(const std::string& object) {
        text_ += fmt::format("<object gp_index=\"{}\" {}\n", ++objects_, object);
    }
    void end() { text_ += "</object>\n"; }

    void devices(const std::vector<place>& all) {
        for (const auto& [bus_id, type] : all)
            line(fmt::format(R"(type="PCIDev" pci_busid="{}" pci_type="{}" pci_link_speed="0.000000"/>)",
                             bus_id, type));
    }
    // One core and one NUMA node with the devices and nics below its host bridge.
    void node(unsigned index, const devices_by_switch& switches) {
        const auto members = sets(only(index));
        line(fmt::format(R"(type="Package" os_index="{}" {}>)", index, members));
        line(fmt::format(R"(type="NUMANode" os_index="{}" {} local_memory="1073741824"/>)", index, members));
        line(fmt::format(R"(type="PU" os_index="{}" {}/>)", index, members));
        line(R"(type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-ff]">)");
        for (const auto& [number, all] : switches) {
            if (number != 0)
                line(fmt::format(R"(type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[00-ff]" )"
                                 R"(pci_busid="0000:{:02x}:1f.0" pci_type="0604 [6764:0002] [0000:0000] 00" )"
                                 R"(pci_link_speed="0.000000">)",
                                 number));
            devices(all);
            if (number != 0)
                end();
        }
        end();
        end();
    }

    [[nodiscard]] const std::string& text() const { return text_; }

private:
    std::string text_;
    unsigned objects_ = 1;
};

} // namespace

std::string topology_xml(const description& machine) {
    std::map<unsigned, devices_by_switch> nodes;
    nodes[0];
    for (const auto& device : machine.gaudis)
        nodes[device.numa_node][device.pci_switch].push_back(
            {device.bus_id, "1200 [1da3:1020] [0000:0000] 01"});
    for (const auto& device : machine.hcas)
        if (!device.of_gaudi) // the Gaudi's own PCI device
            nodes[device.numa_node][device.pci_switch].push_back(
                {device.bus_id, "0207 [6764:0001] [0000:0000] 00"});
    writer out;
    std::vector<std::uint32_t> all(nodes.rbegin()->first / 32 + 1);
    for (const auto& [index, switches] : nodes) {
        out.node(index, switches);
        all[index / 32] |= 1U << index % 32;
    }
    std::string every;
    for (auto word = all.rbegin(); word != all.rend(); ++word)
        every += fmt::format("{}0x{:08x}", every.empty() ? "" : ",", *word);
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\">\n"
        "<object type=\"Machine\" os_index=\"0\" gp_index=\"1\" {0} allowed_cpuset=\"{1}\" "
        "allowed_nodeset=\"{1}\">\n{2}</object>\n</topology>\n",
        sets(every), every, out.text());
}

} // namespace lab
