// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/component.hpp"

#include "ucx/base/publisher.hpp"

#include <cstring>

namespace gaudi_ucx {
namespace {

void fill(ucs_config_global_list_entry_t& entry, const settings_table& settings) {
    entry.name = settings.title;
    entry.prefix = settings.prefix;
    entry.table = settings.fields;
    entry.size = settings.size;
}

} // namespace

void register_component(uct_gaudi_module& module, uct_component_t& component, const char* name,
                        const settings_table& settings, const component_functions& functions) {
    // UCX keeps pointers to the component and the transports until the process ends: they are never
    // destroyed.
    component = {};
    std::strcpy(component.name, name);
    component.query_md_resources = query_if_any_gaudi;
    component.md_open = functions.md_open;
    component.cm_open = [](uct_component_t*, uct_worker_h, const uct_cm_config_t*, uct_cm_h*) {
        return UCS_ERR_UNSUPPORTED;
    };
    component.rkey_unpack = functions.rkey_unpack;
    component.rkey_ptr = [](uct_component_t*, uct_rkey_t, void*, uint64_t, void**) {
        return UCS_ERR_UNSUPPORTED; // the CPU cannot access HBM
    };
    component.rkey_release = functions.rkey_release;
    component.rkey_compare = functions.rkey_compare;
    fill(component.md_config, settings);
    component.cm_config.name = "";
    component.cm_config.prefix = "";
    component.tl_list = {&component.tl_list, &component.tl_list};
    component.md_vfs_init = functions.md_vfs_init;
    module.ucx.uct_component_register(&component);
}

void register_transport(uct_gaudi_module& module, uct_component_t& component, uct_tl_t& tl, const char* name,
                        const settings_table& settings, const transport_functions& functions) {
    tl = {};
    std::strcpy(tl.name, name);
    tl.query_devices = functions.query_devices;
    tl.iface_open = functions.iface_open;
    fill(tl.config, settings);
    module.ucx.uct_tl_register(&component, &tl);
}

} // namespace gaudi_ucx
