// SPDX-License-Identifier: BSD-3-Clause
// Registration of memory domains and transports with UCX.
#pragma once

#include "ucx/base/module.hpp"

namespace gaudi_ucx {

// The settings of a domain or transport. `prefix`: of their environment variables, such as "GAUDI_COPY_".
struct settings_table {
    const char* title;
    const char* prefix;
    ucs_config_field_t* fields;
    std::size_t size; // of the structure that they fill
};

// A component: one memory domain for all Gaudis, with its keys.
struct component_functions {
    decltype(uct_component_t::md_open) md_open;
    decltype(uct_component_t::rkey_unpack) rkey_unpack;
    decltype(uct_component_t::rkey_release) rkey_release;
    decltype(uct_component_t::rkey_compare) rkey_compare;
    decltype(uct_component_t::md_vfs_init) md_vfs_init;
};
void register_component(uct_gaudi_module& module, uct_component_t& component, const char* name,
                        const settings_table& settings, const component_functions& functions);

struct transport_functions {
    decltype(uct_tl_t::query_devices) query_devices;
    decltype(uct_tl_t::iface_open) iface_open;
};
void register_transport(uct_gaudi_module& module, uct_component_t& component, uct_tl_t& tl, const char* name,
                        const settings_table& settings, const transport_functions& functions);

} // namespace gaudi_ucx
