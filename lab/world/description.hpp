// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/problem.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace lab {

enum class generation { gaudi, gaudi2, gaudi3 };

[[nodiscard]] std::string_view name_of(generation value);
[[nodiscard]] result<generation> parse_generation(std::string_view text);

// One virtual card, as its line of the lab description says.
struct gaudi_card {
    lab::generation generation = lab::generation::gaudi2;
    std::string bus_id;
    unsigned module_id = 0;
    bool dmabuf_import = false;     // the vendor driver's REG_DMABUF_FD
    bool small_bar = false;         // HBM not reachable through the PCI BAR: every export is refused
    bool broken = false;            // the driver calls the device malfunctioning: open gives EPERM
    unsigned cs_timeout_ms = 0;     // 0: the generation's own
    unsigned hbm_pages = 0;         // allocation pages of HBM; 0: the generation's own number
    unsigned reset_grace_ms = 1000; // without a notifier the process is killed this long after a reset
    unsigned watchdog_ms = 30000;   // with one, this long after

    bool operator==(const gaudi_card&) const = default;
};

// The contents of a lab. Text form: `key = value` lines, `#` comments, `[gaudi N]` for one card.
struct description {
    std::vector<gaudi_card> gaudis;

    bool operator==(const description&) const = default;
    // A description that parses to this one.
    [[nodiscard]] std::string text() const;
};

constexpr unsigned max_gaudis = 64;

[[nodiscard]] description make_description(unsigned gaudis, generation kind);

// `name` is what problems call the text: a file name.
[[nodiscard]] result<description> parse_description(std::string_view text, std::string_view name);
[[nodiscard]] result<description> read_description(const std::string& path);

} // namespace lab
