// SPDX-License-Identifier: BSD-3-Clause
// Access Control Services: a PCI bridge that redirects requests between its devices sends what a NIC writes
// to a Gaudi up to the root complex, which may drop it.
#include "tools/doctor/checks.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <iterator>

namespace tools::doctor {
namespace {

namespace fs = std::filesystem;

// The bridges above a device, the root port first; nullopt: sysfs does not show them.
std::optional<std::vector<std::string>> bridges_above(const std::string& bus_id) {
    std::error_code hidden;
    const auto device = fs::canonical(machine_path("/sys/bus/pci/devices/" + bus_id), hidden);
    if (hidden)
        return std::nullopt;
    std::vector<std::string> all;
    for (const auto& part : device.parent_path())
        if (const auto name = part.string(); std::ranges::count(name, ':') == 2)
            all.push_back(name);
    return all;
}

enum class redirection { off, on, hidden };

// By the control register of the capability; bridges without it redirect nothing.
redirection of_bridge(const std::string& bus_id) {
    std::ifstream file(machine_path(fmt::format("/sys/bus/pci/devices/{}/config", bus_id)), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    if (bytes.size() <= 64) // what others than root may read
        return redirection::hidden;
    const auto word = [&](std::size_t at) {
        std::uint32_t value = 0;
        if (at + sizeof(value) <= bytes.size())
            std::memcpy(&value, &bytes[at], sizeof(value));
        return value;
    };
    constexpr std::uint32_t acs = 0x000d, requests = 1U << 2, completions = 1U << 3;
    std::size_t at = 0x100;
    for (unsigned most = 48; at >= 0x100 && most > 0; --most) {
        const auto head = word(at);
        if ((head & 0xffff) == acs) // capability and control share the next word
            return ((word(at + 4) >> 16) & (requests | completions)) != 0 ? redirection::on
                                                                          : redirection::off;
        at = head >> 20;
    }
    return redirection::off;
}

} // namespace

void check_acs(report& into, const gaudi::device_info& info, const gaudi::nic_info& nic) {
    const auto above_gaudi = bridges_above(info.bus_id), above_nic = bridges_above(nic.bus_id);
    const auto subject = fmt::format("gaudi {} and {}", info.index, nic.name);
    if (!above_gaudi || !above_nic) {
        into.unknown("topology.acs", subject, "sysfs does not show where they are",
                     "show /sys to the container");
        return;
    }
    const auto &one = *above_gaudi, &other = *above_nic;
    // Without what both have in common: a request turns round at the last common bridge, so that the ports
    // below it decide.
    const auto [end_of_one, end_of_other] = std::ranges::mismatch(one, other);
    std::vector<std::string> between(end_of_one, one.end());
    between.insert(between.end(), end_of_other, other.end());
    std::vector<std::string> redirecting, hidden;
    for (const auto& bridge : between)
        switch (of_bridge(bridge)) {
        case redirection::on:
            redirecting.push_back(bridge);
            break;
        case redirection::hidden:
            hidden.push_back(bridge);
            break;
        case redirection::off:
            break;
        }
    if (!redirecting.empty())
        into.warning(
            "topology.acs", subject,
            fmt::format("ACS redirects requests between devices at {}", fmt::join(redirecting, ", ")),
            fmt::format("switch it off in the firmware, or at each: setpci -s {} ECAP_ACS+6.w=0000; for a "
                        "virtual machine, on its host",
                        redirecting.front()));
    else if (!hidden.empty())
        into.unknown("topology.acs", subject,
                     fmt::format("the registers of {} are hidden", fmt::join(hidden, ", ")),
                     "run doctor as root; the transfer shows the effect anyway");
    else
        into.good("topology.acs", subject,
                  between.empty() ? "no bridge between them is seen"
                                  : fmt::format("no redirection at {}", fmt::join(between, ", ")));
}

} // namespace tools::doctor
