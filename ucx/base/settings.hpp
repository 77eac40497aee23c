// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ucx/base/module.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <initializer_list>
#include <string>
#include <string_view>

namespace gaudi_ucx {

// UCX's "auto" value of memory units.
constexpr std::size_t auto_bytes = static_cast<std::size_t>(-2);

// An error message for an invalid estimate, or empty: UCX's parser accepts nan, inf, auto and negative
// numbers.
inline std::string wrong_bandwidth(std::string_view name, double value) {
    return value > 0 && std::isfinite(value)
               ? std::string()
               : fmt::format("UCX_GAUDI_{}={}: use a bandwidth of more than 0 bytes per second", name, value);
}
inline std::string wrong_time(std::string_view name, double value) {
    return value >= 0 && std::isfinite(value)
               ? std::string()
               : fmt::format("UCX_GAUDI_{}={}: use a time of 0 or more", name, value);
}
// The first message that is not empty.
inline std::string first_of(std::initializer_list<std::string> all) {
    const auto found = std::find_if(all.begin(), all.end(), [](const auto& each) { return !each.empty(); });
    return found != all.end() ? *found : std::string();
}

inline ucs_status_t refuse_setting(uct_gaudi_module& module, const std::string& wrong) {
    gaudi_log(module, ERROR, "{}", wrong);
    return UCS_ERR_INVALID_PARAM;
}

// UCX's parsers, combined as its own macros do, but from the UCX that loaded the plugin.
struct setting_types {
    explicit setting_types(const ucx_api& api) : ucx(api) {}

    [[nodiscard]] ucs_config_parser_t table(const ucs_config_field_t* fields) const {
        return {ucx.ucs_config_sscanf_table,
                nullptr,
                ucx.ucs_config_clone_table,
                ucx.ucs_config_release_table,
                ucx.ucs_config_help_table,
                ucx.ucs_config_doc_nop,
                fields};
    }
    [[nodiscard]] ucs_config_parser_t ternary() const {
        return generic(ucx.ucs_config_sscanf_ternary, ucx.ucs_config_sprintf_ternary_auto,
                       ucx.ucs_config_clone_int, "<yes|no|try>");
    }
    [[nodiscard]] ucs_config_parser_t boolean() const {
        return generic(ucx.ucs_config_sscanf_bool, ucx.ucs_config_sprintf_bool, ucx.ucs_config_clone_int,
                       "<y|n>");
    }
    [[nodiscard]] ucs_config_parser_t unsigned_number() const {
        return generic(ucx.ucs_config_sscanf_uint, ucx.ucs_config_sprintf_uint, ucx.ucs_config_clone_uint,
                       "unsigned integer");
    }
    [[nodiscard]] ucs_config_parser_t bytes() const {
        return generic(ucx.ucs_config_sscanf_memunits, ucx.ucs_config_sprintf_memunits,
                       ucx.ucs_config_clone_ulong,
                       "memory units: <number>[b|kb|mb|gb], \"inf\", or \"auto\"");
    }
    [[nodiscard]] ucs_config_parser_t bandwidth() const {
        return generic(ucx.ucs_config_sscanf_bw, ucx.ucs_config_sprintf_bw, ucx.ucs_config_clone_double,
                       "bandwidth: <number>[T|G|M|K]B[ps]");
    }
    [[nodiscard]] ucs_config_parser_t time() const {
        return generic(ucx.ucs_config_sscanf_time, ucx.ucs_config_sprintf_time, ucx.ucs_config_clone_double,
                       "time value: <number>[m|s|ms|us|ns]");
    }
    [[nodiscard]] ucs_config_parser_t string() const {
        auto made = generic(ucx.ucs_config_sscanf_string, ucx.ucs_config_sprintf_string,
                            ucx.ucs_config_clone_string, "string");
        made.release = ucx.ucs_config_release_string;
        return made;
    }

    const ucx_api& ucx;

private:
    using reader = int (*)(const char*, void*, const void*);
    using writer = int (*)(char*, size_t, const void*, const void*);
    using copier = ucs_status_t (*)(const void*, void*, const void*);
    [[nodiscard]] ucs_config_parser_t generic(reader read, writer write, copier clone,
                                              const char* help) const {
        return {read,
                write,
                clone,
                ucx.ucs_config_release_nop,
                ucx.ucs_config_help_generic,
                ucx.ucs_config_doc_nop,
                help};
    }
};

} // namespace gaudi_ucx
