// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/description.hpp"

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
template <typename Card>
using setter = std::function<result<void>(Card&, std::string_view)>;
template <typename Card>
using settings = std::map<std::string_view, setter<Card>>;

template <typename Card>
setter<Card> yes_or_no(bool Card::*member) {
    return [member](Card& card, std::string_view value) -> result<void> {
        if (value != "yes" && value != "no")
            return tl::unexpected(problem{"expected yes or no"});
        card.*member = value == "yes";
        return {};
    };
}

template <typename Card>
setter<Card> number(unsigned Card::*member, unsigned limit, unsigned least = 0) {
    return [=](Card& card, std::string_view value) -> result<void> {
        const auto parsed = parse_unsigned(value, limit);
        if (!parsed || *parsed < least)
            return tl::unexpected(problem{fmt::format("expected a number from {} to {}", least, limit)});
        card.*member = static_cast<unsigned>(*parsed);
        return {};
    };
}

template <typename Card>
setter<Card> one_of(unsigned Card::*member, const std::vector<unsigned>& allowed) {
    return [=](Card& card, std::string_view value) -> result<void> {
        const auto parsed = parse_unsigned(value, UINT32_MAX);
        if (!parsed || std::find(allowed.begin(), allowed.end(), *parsed) == allowed.end())
            return tl::unexpected(problem{fmt::format("expected one of {}", fmt::join(allowed, ", "))});
        card.*member = static_cast<unsigned>(*parsed);
        return {};
    };
}

template <typename Card>
setter<Card> bus_id() {
    return [](Card& card, std::string_view value) -> result<void> {
        if (!valid_bus_id(value))
            return tl::unexpected(problem{"expected a PCI bus id such as 0000:19:00.0"});
        card.bus_id = value;
        return {};
    };
}

const settings<gaudi_card>& card_settings(const gaudi_card&) {
    static const settings<gaudi_card> table = {
        {"generation",
         [](gaudi_card& card, std::string_view value) -> result<void> {
             const auto parsed = parse_generation(value);
             if (!parsed)
                 return tl::unexpected(parsed.error());
             card.generation = *parsed;
             return {};
         }},
        {"bus_id", bus_id<gaudi_card>()},
        {"module_id", number(&gaudi_card::module_id, 255)},
        {"numa_node", number(&gaudi_card::numa_node, 255)},
        {"pci_switch", number(&gaudi_card::pci_switch, 255)},
        {"dmabuf_import", yes_or_no(&gaudi_card::dmabuf_import)},
        {"small_bar", yes_or_no(&gaudi_card::small_bar)},
        {"broken", yes_or_no(&gaudi_card::broken)},
        {"hbm_pages", number(&gaudi_card::hbm_pages, 4064)},
        {"cs_timeout_ms", number(&gaudi_card::cs_timeout_ms, 3600000)},
        {"watchdog_ms", number(&gaudi_card::watchdog_ms, 3600000)},
        {"reset_grace_ms", number(&gaudi_card::reset_grace_ms, 3600000)},
    };
    return table;
}

const settings<hca_card>& card_settings(const hca_card&) {
    static const settings<hca_card> table = {
        {"link_layer",
         [](hca_card& card, std::string_view value) -> result<void> {
             if (value != "infiniband" && value != "ethernet")
                 return tl::unexpected(problem{"expected infiniband or ethernet"});
             card.link = value == "ethernet" ? link_layer::ethernet : link_layer::infiniband;
             return {};
         }},
        {"bus_id", bus_id<hca_card>()},
        {"address",
         [](hca_card& card, std::string_view value) -> result<void> {
             in_addr parsed{};
             if (::inet_pton(AF_INET, std::string(value).c_str(), &parsed) != 1)
                 return tl::unexpected(problem{"expected an IPv4 address such as 10.0.0.1"});
             card.address = value;
             return {};
         }},
        {"numa_node", number(&hca_card::numa_node, 255)},
        {"pci_switch", number(&hca_card::pci_switch, 255)},
        {"ports", number(&hca_card::ports, 2, 1)},
        {"speed_gbps", one_of(&hca_card::speed_gbps, {10, 25, 40, 56, 100, 200, 400, 800})},
        {"mtu", one_of(&hca_card::mtu, {256, 512, 1024, 2048, 4096})},
        {"dmabuf", yes_or_no(&hca_card::dmabuf)},
        {"port_up", yes_or_no(&hca_card::port_up)},
        {"vendor_id", number(&hca_card::vendor_id, 0xffffff)},
        {"vendor_part_id", number(&hca_card::vendor_part_id, 0xffff)},
        {"max_qp", number(&hca_card::max_qp, 16383, 1)},
        {"max_cq", number(&hca_card::max_cq, 16383, 1)},
        {"max_mr", number(&hca_card::max_mr, 65535, 1)},
        {"max_srq", number(&hca_card::max_srq, 4095)},
        {"max_qp_wr", number(&hca_card::max_qp_wr, 32768, 1)},
        {"max_cqe", number(&hca_card::max_cqe, 4194303, 1)},
        {"max_sge", number(&hca_card::max_sge, 64, 1)},
        {"max_inline", number(&hca_card::max_inline, 4096)},
        {"max_rd_atomic", number(&hca_card::max_rd_atomic, 128, 1)},
    };
    return table;
}

template <typename Card>
bool knows(std::string_view key) {
    return card_settings(Card{}).contains(key);
}

struct setting_line {
    unsigned line;
    std::string_view key;
    std::string_view value;
};

problem at(std::string_view name, unsigned line, std::string_view what) {
    return problem{fmt::format("{}:{}: {}", name, line, what)};
}

template <typename... Cards>
std::string unknown_key(std::string_view key) {
    std::set<std::string_view> known;
    const auto add = [&](const auto& table) {
        for (const auto& entry : table)
            known.insert(entry.first);
    };
    (add(card_settings(Cards{})), ...);
    return fmt::format("unknown key '{}'; known keys: {}{}", key,
                       sizeof...(Cards) > 1 ? "gaudis, hcas, " : "", fmt::join(known, ", "));
}

template <typename Card>
result<void> apply(Card& card, const setting_line& setting, std::string_view name) {
    const auto& table = card_settings(card);
    const auto entry = table.find(setting.key);
    if (entry == table.end())
        return tl::unexpected(at(name, setting.line, unknown_key<Card>(setting.key)));
    if (const auto done = entry->second(card, setting.value); !done)
        return tl::unexpected(at(name, setting.line,
                                 fmt::format("{} = {}: {}", setting.key, setting.value, done.error().text)));
    return {};
}

// The lines of the text about one kind: devices or nics.
struct card_lines {
    unsigned count;
    unsigned limit;
    std::string_view kind, plural;
    std::vector<setting_line> common;
    std::map<unsigned, std::vector<setting_line>> by_card;
    std::map<unsigned, unsigned> section_line;
};

struct parsed_lines {
    card_lines gaudis{2, max_gaudis, "gaudi", "gaudis", {}, {}, {}};
    card_lines hcas{1, max_hcas, "hca", "hcas", {}, {}, {}};
};

// The N of "[KIND N]".
std::optional<unsigned> section_of(std::string_view line, const card_lines& cards) {
    const auto head = fmt::format("[{} ", cards.kind);
    if (!line.starts_with(head) || !line.ends_with("]"))
        return std::nullopt;
    const auto index =
        parse_unsigned(trim(line.substr(head.size(), line.size() - head.size() - 1)), cards.limit - 1);
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
            bool found = false;
            for (auto* cards : {&parsed.gaudis, &parsed.hcas})
                if (const auto index = section_of(line, *cards)) {
                    target = &cards->by_card[*index];
                    cards->section_line[*index] = number;
                    found = true;
                }
            if (!found)
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
        else if (knows<hca_card>(setting.key) && !knows<gaudi_card>(setting.key))
            parsed.hcas.common.push_back(setting);
        else if (knows<gaudi_card>(setting.key))
            parsed.gaudis.common.push_back(setting);
        else
            return tl::unexpected(at(name, number, unknown_key<gaudi_card, hca_card>(setting.key)));
    }
    return parsed;
}

template <typename Card>
result<void> apply_all(std::vector<Card>& cards, const card_lines& lines, std::string_view name) {
    for (const auto& [index, line] : lines.section_line)
        if (index >= lines.count)
            return tl::unexpected(at(name, line,
                                     fmt::format("[{} {}]: this lab has only {} ({} = {})", lines.kind, index,
                                                 lines.count, lines.plural, lines.count)));
    if (cards.empty()) // still report errors in the common part
        cards.emplace_back();
    for (unsigned i = 0; i < cards.size(); ++i) {
        auto settings = lines.common;
        if (const auto own = lines.by_card.find(i); own != lines.by_card.end())
            settings.insert(settings.end(), own->second.begin(), own->second.end());
        for (const auto& setting : settings)
            if (auto done = apply(cards[i], setting, name); !done)
                return done;
    }
    cards.resize(lines.count);
    return {};
}

result<void> check_unique(const description& made, std::string_view name) {
    std::map<std::string, unsigned> bus_ids;
    std::map<unsigned, unsigned> modules;
    std::set<std::string> taken;
    for (const auto& card : made.gaudis)
        taken.insert(card.bus_id);
    for (unsigned i = 0; i < made.gaudis.size(); ++i) {
        if (const auto [other, fresh] = bus_ids.emplace(made.gaudis[i].bus_id, i); !fresh)
            return tl::unexpected(problem{fmt::format("{}: gaudi {} and gaudi {} have the same bus_id {}",
                                                      name, other->second, i, made.gaudis[i].bus_id)});
        if (const auto [other, fresh] = modules.emplace(made.gaudis[i].module_id, i); !fresh)
            return tl::unexpected(problem{fmt::format("{}: gaudi {} and gaudi {} have the same module_id {}",
                                                      name, other->second, i, made.gaudis[i].module_id)});
    }
    for (unsigned i = 0; i < made.hcas.size(); ++i)
        if (!taken.insert(made.hcas[i].bus_id).second)
            return tl::unexpected(problem{
                fmt::format("{}: hca {} has the bus_id {} of another card", name, i, made.hcas[i].bus_id)});
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

std::string_view name_of(link_layer value) {
    return value == link_layer::ethernet ? "ethernet" : "infiniband";
}

description make_description(unsigned gaudis, generation kind, unsigned hcas) {
    description made;
    for (unsigned i = 0; i < gaudis; ++i) {
        gaudi_card card;
        card.generation = kind;
        card.bus_id = default_bus_id(i);
        card.module_id = i;
        card.pci_switch = hcas != 0 ? i * hcas / gaudis + 1 : 0; // each nic gets its share of the devices
        made.gaudis.push_back(card);
    }
    for (unsigned i = 0; i < hcas; ++i) {
        hca_card card;
        card.bus_id = default_hca_bus_id(i);
        card.pci_switch = i + 1;
        made.hcas.push_back(card);
    }
    return made;
}

std::string description::text() const {
    std::string out = fmt::format("gaudis = {}\nhcas = {}\n", gaudis.size(), hcas.size());
    const auto yes_no = [](bool value) { return value ? "yes" : "no"; };
    for (std::size_t i = 0; i < gaudis.size(); ++i) {
        const auto& card = gaudis[i];
        out += fmt::format("\n[gaudi {}]\ngeneration = {}\nbus_id = {}\nmodule_id = {}\nnuma_node = "
                           "{}\npci_switch = {}\ndmabuf_import = {}\n"
                           "small_bar = {}\nbroken = {}\nhbm_pages = {}\ncs_timeout_ms = {}\nreset_grace_ms "
                           "= {}\nwatchdog_ms = {}\n",
                           i, name_of(card.generation), card.bus_id, card.module_id, card.numa_node,
                           card.pci_switch, yes_no(card.dmabuf_import), yes_no(card.small_bar),
                           yes_no(card.broken), card.hbm_pages, card.cs_timeout_ms, card.reset_grace_ms,
                           card.watchdog_ms);
    }
    for (std::size_t i = 0; i < hcas.size(); ++i) {
        const auto& card = hcas[i];
        out += fmt::format("\n[hca {}]\nlink_layer = {}\nbus_id = {}\n", i, name_of(card.link), card.bus_id);
        if (!card.address.empty())
            out += fmt::format("address = {}\n", card.address);
        out += fmt::format(
            "numa_node = {}\npci_switch = {}\nports = {}\nspeed_gbps = {}\nmtu = {}\ndmabuf = {}\nport_up = "
            "{}\nvendor_id = {}\nvendor_part_id = {}\n"
            "max_qp = {}\nmax_cq = {}\nmax_mr = {}\nmax_srq = {}\nmax_qp_wr = {}\nmax_cqe = {}\n"
            "max_sge = {}\nmax_inline = {}\nmax_rd_atomic = {}\n",
            card.numa_node, card.pci_switch, card.ports, card.speed_gbps, card.mtu, yes_no(card.dmabuf),
            yes_no(card.port_up), card.vendor_id, card.vendor_part_id, card.max_qp, card.max_cq, card.max_mr,
            card.max_srq, card.max_qp_wr, card.max_cqe, card.max_sge, card.max_inline, card.max_rd_atomic);
    }
    return out;
}

result<description> parse_description(std::string_view text, std::string_view name) {
    const auto parsed = split_lines(text, name);
    if (!parsed)
        return tl::unexpected(parsed.error());
    auto made = make_description(parsed->gaudis.count, generation::gaudi2, parsed->hcas.count);
    if (const auto done = apply_all(made.gaudis, parsed->gaudis, name); !done)
        return tl::unexpected(done.error());
    if (const auto done = apply_all(made.hcas, parsed->hcas, name); !done)
        return tl::unexpected(done.error());
    if (const auto unique = check_unique(made, name); !unique)
        return tl::unexpected(unique.error());
    return made;
}

result<description> read_description(const std::string& path) {
    const auto text = read_text_file(path);
    if (!text)
        return tl::unexpected(text.error());
    return parse_description(*text, path);
}

} // namespace lab
