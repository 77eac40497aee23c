// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/description.hpp"

#include "lab/world/text.hpp"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <map>
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

// Settings of a card; each setter says what it expected when it refuses.
using setter = std::function<result<void>(gaudi_card&, std::string_view)>;

template <typename Member>
setter yes_or_no(Member member) {
    return [member](gaudi_card& card, std::string_view value) -> result<void> {
        if (value != "yes" && value != "no")
            return tl::unexpected(problem{"expected yes or no"});
        card.*member = value == "yes";
        return {};
    };
}

template <typename Member>
setter number(Member member, unsigned limit) {
    return [member, limit](gaudi_card& card, std::string_view value) -> result<void> {
        const auto parsed = parse_unsigned(value, limit);
        if (!parsed)
            return tl::unexpected(problem{fmt::format("expected a number from 0 to {}", limit)});
        card.*member = static_cast<unsigned>(*parsed);
        return {};
    };
}

const std::map<std::string_view, setter>& card_settings() {
    static const std::map<std::string_view, setter> table = {
        {"generation",
         [](gaudi_card& card, std::string_view value) -> result<void> {
             const auto parsed = parse_generation(value);
             if (!parsed)
                 return tl::unexpected(parsed.error());
             card.generation = *parsed;
             return {};
         }},
        {"bus_id",
         [](gaudi_card& card, std::string_view value) -> result<void> {
             if (!valid_bus_id(value))
                 return tl::unexpected(problem{"expected a PCI bus id such as 0000:19:00.0"});
             card.bus_id = value;
             return {};
         }},
        {"module_id", number(&gaudi_card::module_id, 255)},
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

struct setting_line {
    unsigned line;
    std::string_view key;
    std::string_view value;
};

problem at(std::string_view name, unsigned line, std::string_view what) {
    return problem{fmt::format("{}:{}: {}", name, line, what)};
}

result<void> apply(gaudi_card& card, const setting_line& setting, std::string_view name) {
    const auto entry = card_settings().find(setting.key);
    if (entry == card_settings().end()) {
        std::string known = "gaudis";
        for (const auto& [key, unused] : card_settings())
            known += fmt::format(", {}", key);
        return tl::unexpected(
            at(name, setting.line, fmt::format("unknown key '{}'; known keys: {}", setting.key, known)));
    }
    if (const auto done = entry->second(card, setting.value); !done)
        return tl::unexpected(at(name, setting.line,
                                 fmt::format("{} = {}: {}", setting.key, setting.value, done.error().text)));
    return {};
}

struct parsed_lines {
    unsigned gaudis = 2;
    std::vector<setting_line> common;
    std::map<unsigned, std::vector<setting_line>> by_card;
    std::map<unsigned, unsigned> section_line;
};

result<unsigned> parse_section(std::string_view line) {
    constexpr std::string_view head = "[gaudi ";
    if (line.starts_with(head) && line.ends_with("]")) {
        const auto index =
            parse_unsigned(trim(line.substr(head.size(), line.size() - head.size() - 1)), max_gaudis - 1);
        if (index)
            return static_cast<unsigned>(*index);
    }
    return tl::unexpected(
        problem{fmt::format("'{}': expected a section [gaudi N] with N from 0 to {}", line, max_gaudis - 1)});
}

result<parsed_lines> split_lines(std::string_view text, std::string_view name) {
    parsed_lines parsed;
    std::vector<setting_line>* target = &parsed.common;
    unsigned number = 0;
    for (const auto raw : lines_of(text)) {
        ++number;
        const auto line = trim(raw.substr(0, raw.find('#')));
        if (line.empty())
            continue;
        if (line.front() == '[') {
            const auto index = parse_section(line);
            if (!index)
                return tl::unexpected(at(name, number, index.error().text));
            target = &parsed.by_card[*index];
            parsed.section_line[*index] = number;
            continue;
        }
        const auto equals = line.find('=');
        if (equals == line.npos)
            return tl::unexpected(
                at(name, number, fmt::format("'{}': expected key = value, or a section [gaudi N]", line)));
        const setting_line setting{number, trim(line.substr(0, equals)), trim(line.substr(equals + 1))};
        if (setting.key == "gaudis") {
            const auto count = parse_unsigned(setting.value, max_gaudis);
            if (!count || target != &parsed.common)
                return tl::unexpected(
                    at(name, number,
                       fmt::format("gaudis = {}: expected a number from 0 to {}, before any section",
                                   setting.value, max_gaudis)));
            parsed.gaudis = static_cast<unsigned>(*count);
            continue;
        }
        target->push_back(setting);
    }
    return parsed;
}

result<void> check_unique(const description& made, std::string_view name) {
    std::map<std::string, unsigned> bus_ids;
    std::map<unsigned, unsigned> modules;
    for (unsigned i = 0; i < made.gaudis.size(); ++i) {
        if (const auto [other, fresh] = bus_ids.emplace(made.gaudis[i].bus_id, i); !fresh)
            return tl::unexpected(problem{fmt::format("{}: gaudi {} and gaudi {} have the same bus_id {}",
                                                      name, other->second, i, made.gaudis[i].bus_id)});
        if (const auto [other, fresh] = modules.emplace(made.gaudis[i].module_id, i); !fresh)
            return tl::unexpected(problem{fmt::format("{}: gaudi {} and gaudi {} have the same module_id {}",
                                                      name, other->second, i, made.gaudis[i].module_id)});
    }
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

description make_description(unsigned gaudis, generation kind) {
    description made;
    for (unsigned i = 0; i < gaudis; ++i) {
        gaudi_card card;
        card.generation = kind;
        card.bus_id = default_bus_id(i);
        card.module_id = i;
        made.gaudis.push_back(card);
    }
    return made;
}

std::string description::text() const {
    std::string out = fmt::format("gaudis = {}\n", gaudis.size());
    const auto yes_no = [](bool value) { return value ? "yes" : "no"; };
    for (std::size_t i = 0; i < gaudis.size(); ++i) {
        const auto& card = gaudis[i];
        out += fmt::format("\n[gaudi {}]\ngeneration = {}\nbus_id = {}\nmodule_id = {}\ndmabuf_import = {}\n"
                           "small_bar = {}\nbroken = {}\nhbm_pages = {}\ncs_timeout_ms = {}\nreset_grace_ms "
                           "= {}\nwatchdog_ms = {}\n",
                           i, name_of(card.generation), card.bus_id, card.module_id,
                           yes_no(card.dmabuf_import), yes_no(card.small_bar), yes_no(card.broken),
                           card.hbm_pages, card.cs_timeout_ms, card.reset_grace_ms, card.watchdog_ms);
    }
    return out;
}

result<description> parse_description(std::string_view text, std::string_view name) {
    const auto parsed = split_lines(text, name);
    if (!parsed)
        return tl::unexpected(parsed.error());
    for (const auto& [index, line] : parsed->section_line)
        if (index >= parsed->gaudis)
            return tl::unexpected(at(name, line,
                                     fmt::format("[gaudi {}]: this lab has only {} (gaudis = {})", index,
                                                 parsed->gaudis, parsed->gaudis)));
    auto made = make_description(parsed->gaudis, generation::gaudi2);
    if (made.gaudis.empty()) // still complain about nonsense in the common part
        made.gaudis.emplace_back();
    for (unsigned i = 0; i < made.gaudis.size(); ++i) {
        auto settings = parsed->common;
        if (const auto own = parsed->by_card.find(i); own != parsed->by_card.end())
            settings.insert(settings.end(), own->second.begin(), own->second.end());
        for (const auto& setting : settings)
            if (const auto done = apply(made.gaudis[i], setting, name); !done)
                return tl::unexpected(done.error());
    }
    made.gaudis.resize(parsed->gaudis);
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
