// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/description.hpp"

#include "lab/world/consistency.hpp"
#include "lab/world/text.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace lab {
namespace {

constexpr std::string_view driver_names[] = {"vendor", "upstream", "upstream-6.6"};
constexpr std::string_view generation_names[] = {"gaudi", "gaudi2", "gaudi3"};

std::string default_bus_id(unsigned index) {
    return fmt::format("0000:{:02x}:00.0", 0x19 + index);
}

bool valid_bus_id(std::string_view text) {
    constexpr std::string_view shape = "xxxx:xx:xx.x";
    if (text.size() != shape.size())
        return false;
    for (std::size_t i = 0; i < shape.size(); ++i)
        if (shape[i] == 'x' ? std::isxdigit(static_cast<unsigned char>(text[i])) == 0 : text[i] != shape[i])
            return false;
    return true;
}

std::string default_hca_bus_id(unsigned index) {
    return fmt::format("0000:{:02x}:00.0", 0x60 + index);
}

// Settings of a device or nic; each setter returns what it expected when it refuses a value.
template <typename Device>
using setter = std::function<result<void>(Device&, std::string_view)>;
template <typename Device>
using settings = std::map<std::string_view, setter<Device>>;

template <typename Device>
setter<Device> yes_or_no(bool Device::*member) {
    return [member](Device& device, std::string_view value) -> result<void> {
        if (value != "yes" && value != "no")
            return tl::unexpected(problem{"expected yes or no"});
        device.*member = value == "yes";
        return {};
    };
}

template <typename Device>
setter<Device> number(unsigned Device::*member, unsigned limit, unsigned least = 0) {
    return [=](Device& device, std::string_view value) -> result<void> {
        const auto parsed = parse_unsigned(value, limit);
        if (!parsed || *parsed < least)
            return tl::unexpected(problem{fmt::format("expected a number from {} to {}", least, limit)});
        device.*member = static_cast<unsigned>(*parsed);
        return {};
    };
}

template <typename Device>
setter<Device> one_of(unsigned Device::*member, const std::vector<unsigned>& allowed) {
    return [=](Device& device, std::string_view value) -> result<void> {
        const auto parsed = parse_unsigned(value, UINT32_MAX);
        if (!parsed || std::find(allowed.begin(), allowed.end(), *parsed) == allowed.end())
            return tl::unexpected(problem{fmt::format("expected one of {}", fmt::join(allowed, ", "))});
        device.*member = static_cast<unsigned>(*parsed);
        return {};
    };
}

template <typename Device>
setter<Device> bus_id() {
    return [](Device& device, std::string_view value) -> result<void> {
        if (!valid_bus_id(value))
            return tl::unexpected(problem{"expected a PCI bus id such as 0000:19:00.0"});
        device.bus_id = value;
        return {};
    };
}

const settings<gaudi_description>& device_settings(const gaudi_description&) {
    static const settings<gaudi_description> table = {
        {"generation",
         [](gaudi_description& device, std::string_view value) -> result<void> {
             const auto parsed = parse_generation(value);
             if (!parsed)
                 return tl::unexpected(parsed.error());
             device.generation = *parsed;
             return {};
         }},
        {"bus_id", bus_id<gaudi_description>()},
        {"module_id", number(&gaudi_description::module_id, 255)},
        {"numa_node", number(&gaudi_description::numa_node, 255)},
        {"pci_switch", number(&gaudi_description::pci_switch, 255)},
        {"driver",
         [](gaudi_description& device, std::string_view value) -> result<void> {
             const auto* const name = std::ranges::find(driver_names, value);
             if (name == std::end(driver_names))
                 return tl::unexpected(problem{fmt::format("expected {}", fmt::join(driver_names, ", "))});
             device.driver = static_cast<driver>(name - std::begin(driver_names));
             return {};
         }},
        {"peer_to_peer", yes_or_no(&gaudi_description::peer_to_peer)},
        {"dmabuf_import", yes_or_no(&gaudi_description::dmabuf_import)},
        {"small_bar", yes_or_no(&gaudi_description::small_bar)},
        {"broken", yes_or_no(&gaudi_description::broken)},
        {"hbm_pages", number(&gaudi_description::hbm_pages, 4064)},
        {"cs_timeout_ms", number(&gaudi_description::cs_timeout_ms, 3600000)},
        {"watchdog_ms", number(&gaudi_description::watchdog_ms, 3600000)},
        {"reset_grace_ms", number(&gaudi_description::reset_grace_ms, 3600000)},
    };
    return table;
}

const settings<hca_description>& device_settings(const hca_description&) {
    static const settings<hca_description> table = {
        {"link_layer",
         [](hca_description& device, std::string_view value) -> result<void> {
             if (value != "infiniband" && value != "ethernet")
                 return tl::unexpected(problem{"expected infiniband or ethernet"});
             device.link = value == "ethernet" ? link_layer::ethernet : link_layer::infiniband;
             return {};
         }},
        {"bus_id", bus_id<hca_description>()},
        {"address",
         [](hca_description& device, std::string_view value) -> result<void> {
             in_addr parsed{};
             if (::inet_pton(AF_INET, std::string(value).c_str(), &parsed) != 1)
                 return tl::unexpected(problem{"expected an IPv4 address such as 10.0.0.1"});
             device.address = value;
             return {};
         }},
        {"numa_node", number(&hca_description::numa_node, 255)},
        {"pci_switch", number(&hca_description::pci_switch, 255)},
        {"of_gaudi",
         [](hca_description& device, std::string_view value) -> result<void> {
             const auto parsed = parse_unsigned(value, max_gaudis - 1);
             if (!parsed)
                 return tl::unexpected(problem{"expected the number of a Gaudi of this lab"});
             device.of_gaudi = static_cast<unsigned>(*parsed);
             device.ports = ports_of_gaudi;
             device.vendor_id = vendor_of_gaudi;
             return {};
         }},
        {"ports", number(&hca_description::ports, ports_of_gaudi, 1)},
        {"speed_gbps", one_of(&hca_description::speed_gbps, {10, 25, 40, 56, 100, 200, 400, 800})},
        {"mtu", one_of(&hca_description::mtu, {256, 512, 1024, 2048, 4096})},
        {"dmabuf", yes_or_no(&hca_description::dmabuf)},
        {"scatter_to_cqe", yes_or_no(&hca_description::scatter_to_cqe)},
        {"port_up", yes_or_no(&hca_description::port_up)},
        {"hidden", yes_or_no(&hca_description::hidden)},
        {"max_contexts", number(&hca_description::max_contexts, 1023)},
        {"vendor_id", number(&hca_description::vendor_id, 0xffffff)},
        {"vendor_part_id", number(&hca_description::vendor_part_id, 0xffff)},
        {"max_qp", number(&hca_description::max_qp, 16383, 1)},
        {"max_cq", number(&hca_description::max_cq, 16383, 1)},
        {"max_mr", number(&hca_description::max_mr, 65535, 1)},
        {"max_srq", number(&hca_description::max_srq, 4095)},
        {"max_qp_wr", number(&hca_description::max_qp_wr, 32768, 1)},
        {"max_cqe", number(&hca_description::max_cqe, 4194303, 1)},
        {"max_sge", number(&hca_description::max_sge, 64, 1)},
        {"max_inline", number(&hca_description::max_inline, 4096)},
        {"max_rd_atomic", number(&hca_description::max_rd_atomic, 128, 1)},
    };
    return table;
}

template <typename Device>
bool knows(std::string_view key) {
    return device_settings(Device{}).contains(key);
}

struct setting_line {
    unsigned line;
    std::string_view key;
    std::string_view value;
};

problem at(std::string_view name, unsigned line, std::string_view what) {
    return problem{fmt::format("{}:{}: {}", name, line, what)};
}

template <typename... Devices>
std::string unknown_key(std::string_view key) {
    std::set<std::string_view> keys;
    const auto add = [&](const auto& table) {
        for (const auto& entry : table)
            keys.insert(entry.first);
    };
    (add(device_settings(Devices{})), ...);
    return fmt::format("unknown key '{}'; known keys: {}{}", key,
                       sizeof...(Devices) > 1 ? "gaudis, hcas, " : "", fmt::join(keys, ", "));
}

template <typename Device>
result<void> apply(Device& device, const setting_line& setting, std::string_view name) {
    const auto& table = device_settings(device);
    const auto entry = table.find(setting.key);
    if (entry == table.end())
        return tl::unexpected(at(name, setting.line, unknown_key<Device>(setting.key)));
    if (const auto done = entry->second(device, setting.value); !done)
        return tl::unexpected(at(name, setting.line,
                                 fmt::format("{} = {}: {}", setting.key, setting.value, done.error().text)));
    return {};
}

// The lines of the text about one kind: devices or nics.
struct device_lines {
    unsigned count;
    unsigned limit;
    std::string_view kind, plural;
    std::vector<setting_line> common;
    std::map<unsigned, std::vector<setting_line>> by_device;
    std::map<unsigned, unsigned> section_line;
};

struct parsed_lines {
    device_lines gaudis{2, max_gaudis, "gaudi", "gaudis", {}, {}, {}};
    device_lines hcas{1, max_hcas, "hca", "hcas", {}, {}, {}};
};

// The N of "[KIND N]".
std::optional<unsigned> section_of(std::string_view line, const device_lines& devices) {
    const auto head = fmt::format("[{} ", devices.kind);
    if (!line.starts_with(head) || !line.ends_with("]"))
        return std::nullopt;
    const auto index =
        parse_unsigned(trim(line.substr(head.size(), line.size() - head.size() - 1)), devices.limit - 1);
    return index ? std::optional(static_cast<unsigned>(*index)) : std::nullopt;
}

result<parsed_lines> split_lines(std::string_view text, std::string_view name) {
    parsed_lines parsed;
    std::vector<setting_line>* target = nullptr; // nullptr before any section: the key decides
    unsigned number = 0;
    for (const auto raw : lines_of(text)) {
        ++number;
        const auto line = trim(raw.substr(0, raw.find('#')));
        if (line.empty())
            continue;
        if (line.front() == '[') {
            bool is_section = false;
            for (auto* devices : {&parsed.gaudis, &parsed.hcas})
                if (const auto index = section_of(line, *devices)) {
                    target = &devices->by_device[*index];
                    devices->section_line[*index] = number;
                    is_section = true;
                }
            if (!is_section)
                return tl::unexpected(
                    at(name, number,
                       fmt::format("'{}': expected a section [gaudi N] with N from 0 to {}, "
                                   "or [hca N] with N from 0 to {}",
                                   line, max_gaudis - 1, max_hcas - 1)));
            continue;
        }
        const auto equals = line.find('=');
        if (equals == line.npos)
            return tl::unexpected(
                at(name, number,
                   fmt::format("'{}': expected key = value, or a section [gaudi N] or [hca N]", line)));
        const setting_line setting{number, trim(line.substr(0, equals)), trim(line.substr(equals + 1))};
        auto* counted = setting.key == "gaudis" ? &parsed.gaudis
                        : setting.key == "hcas" ? &parsed.hcas
                                                : nullptr;
        if (counted != nullptr) {
            const auto count = parse_unsigned(setting.value, counted->limit);
            if (!count || target != nullptr)
                return tl::unexpected(
                    at(name, number,
                       fmt::format("{} = {}: expected a number from 0 to {}, before any section", setting.key,
                                   setting.value, counted->limit)));
            counted->count = static_cast<unsigned>(*count);
            continue;
        }
        if (target != nullptr)
            target->push_back(setting);
        else if (knows<hca_description>(setting.key) && !knows<gaudi_description>(setting.key))
            parsed.hcas.common.push_back(setting);
        else if (knows<gaudi_description>(setting.key))
            parsed.gaudis.common.push_back(setting);
        else
            return tl::unexpected(
                at(name, number, unknown_key<gaudi_description, hca_description>(setting.key)));
    }
    return parsed;
}

template <typename Device>
result<void> apply_all(std::vector<Device>& devices, const device_lines& lines, std::string_view name) {
    for (const auto& [index, line] : lines.section_line)
        if (index >= lines.count)
            return tl::unexpected(at(name, line,
                                     fmt::format("[{} {}]: this lab has only {} ({} = {})", lines.kind, index,
                                                 lines.count, lines.plural, lines.count)));
    if (devices.empty()) // still report errors in the common part
        devices.emplace_back();
    for (unsigned i = 0; i < devices.size(); ++i) {
        auto settings = lines.common;
        if (const auto own = lines.by_device.find(i); own != lines.by_device.end())
            settings.insert(settings.end(), own->second.begin(), own->second.end());
        for (const auto& setting : settings)
            if (auto done = apply(devices[i], setting, name); !done)
                return done;
    }
    devices.resize(lines.count);
    return {};
}

} // namespace

std::string_view name_of(generation value) {
    return generation_names[static_cast<int>(value)];
}

result<generation> parse_generation(std::string_view text) {
    for (int i = 0; i < 3; ++i)
        if (text == generation_names[i])
            return static_cast<generation>(i);
    return tl::unexpected(
        problem{fmt::format("unknown generation '{}'; expected gaudi, gaudi2 or gaudi3", text)});
}

std::string_view name_of(driver value) {
    return driver_names[static_cast<int>(value)];
}

std::string_view name_of(link_layer value) {
    return value == link_layer::ethernet ? "ethernet" : "infiniband";
}

description make_description(unsigned gaudis, generation kind, unsigned hcas) {
    description contents;
    for (unsigned i = 0; i < gaudis; ++i) {
        gaudi_description device;
        device.generation = kind;
        device.bus_id = default_bus_id(i);
        device.module_id = i;
        device.pci_switch = hcas != 0 ? i * hcas / gaudis + 1 : 0; // each nic gets its share of the devices
        contents.gaudis.push_back(device);
    }
    for (unsigned i = 0; i < hcas; ++i) {
        hca_description device;
        device.bus_id = default_hca_bus_id(i);
        device.pci_switch = i + 1;
        contents.hcas.push_back(device);
    }
    return contents;
}

std::string description::text() const {
    std::string out = fmt::format("gaudis = {}\nhcas = {}\n", gaudis.size(), hcas.size());
    const auto yes_no = [](bool value) { return value ? "yes" : "no"; };
    for (std::size_t i = 0; i < gaudis.size(); ++i) {
        const auto& device = gaudis[i];
        out += fmt::format("\n[gaudi {}]\ngeneration = {}\nbus_id = {}\nmodule_id = {}\nnuma_node = "
                           "{}\npci_switch = {}\ndriver = {}\ndmabuf_import = {}\npeer_to_peer = {}\n"
                           "small_bar = {}\nbroken = {}\nhbm_pages = {}\ncs_timeout_ms = {}\nreset_grace_ms "
                           "= {}\nwatchdog_ms = {}\n",
                           i, name_of(device.generation), device.bus_id, device.module_id, device.numa_node,
                           device.pci_switch, name_of(device.driver), yes_no(device.dmabuf_import),
                           yes_no(device.peer_to_peer), yes_no(device.small_bar), yes_no(device.broken),
                           device.hbm_pages, device.cs_timeout_ms, device.reset_grace_ms, device.watchdog_ms);
    }
    for (std::size_t i = 0; i < hcas.size(); ++i) {
        const auto& device = hcas[i];
        out +=
            fmt::format("\n[hca {}]\nlink_layer = {}\nbus_id = {}\n", i, name_of(device.link), device.bus_id);
        if (device.of_gaudi) // before the number of ports, which it sets
            out += fmt::format("of_gaudi = {}\n", *device.of_gaudi);
        if (!device.address.empty())
            out += fmt::format("address = {}\n", device.address);
        out +=
            fmt::format("numa_node = {}\npci_switch = {}\nports = {}\nspeed_gbps = {}\nmtu = {}\ndmabuf = "
                        "{}\nscatter_to_cqe = {}\nport_up = "
                        "{}\nhidden = {}\nmax_contexts = {}\nvendor_id = {}\nvendor_part_id = {}\n"
                        "max_qp = {}\nmax_cq = {}\nmax_mr = {}\nmax_srq = {}\nmax_qp_wr = {}\nmax_cqe = {}\n"
                        "max_sge = {}\nmax_inline = {}\nmax_rd_atomic = {}\n",
                        device.numa_node, device.pci_switch, device.ports, device.speed_gbps, device.mtu,
                        yes_no(device.dmabuf), yes_no(device.scatter_to_cqe), yes_no(device.port_up),
                        yes_no(device.hidden), device.max_contexts, device.vendor_id, device.vendor_part_id,
                        device.max_qp, device.max_cq, device.max_mr, device.max_srq, device.max_qp_wr,
                        device.max_cqe, device.max_sge, device.max_inline, device.max_rd_atomic);
    }
    return out;
}

std::string description::name_of_hca(unsigned index) const {
    const auto& of_gaudi = hcas[index].of_gaudi;
    return of_gaudi ? fmt::format("hbl_{}", *of_gaudi) : fmt::format("vhca{}", index);
}

result<description> parse_description(std::string_view text, std::string_view name) {
    const auto parsed = split_lines(text, name);
    if (!parsed)
        return tl::unexpected(parsed.error());
    auto contents = make_description(parsed->gaudis.count, generation::gaudi2, parsed->hcas.count);
    if (const auto done = apply_all(contents.gaudis, parsed->gaudis, name); !done)
        return tl::unexpected(done.error());
    if (const auto done = apply_all(contents.hcas, parsed->hcas, name); !done)
        return tl::unexpected(done.error());
    if (const auto consistent = make_consistent(contents, name); !consistent)
        return tl::unexpected(consistent.error());
    return contents;
}

result<description> read_description(const std::string& path) {
    const auto text = read_text_file(path);
    if (!text)
        return tl::unexpected(text.error());
    return parse_description(*text, path);
}

} // namespace lab
