// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ucx/abi/uct_private.h"

#include <string>

namespace gaudi_ucx {

// Every symbol of UCX that the plugin uses, once. Functions and data both become pointers of their own type.
// clang-format off
#define GAUDI_UCX_SYMBOLS(required, optional)                                                                                \
    required(ucs_class_call_cleanup_chain) required(ucs_config_clone_double) required(ucs_config_clone_int)                     \
    required(ucs_config_clone_string) required(ucs_config_clone_table) required(ucs_config_clone_uint)                          \
    required(ucs_config_clone_ulong) required(ucs_config_doc_nop) required(ucs_config_help_generic)                             \
    required(ucs_config_help_table) required(ucs_config_release_nop) required(ucs_config_release_string)                        \
    required(ucs_config_release_table) required(ucs_config_sprintf_bool) required(ucs_config_sprintf_bw)                        \
    required(ucs_config_sprintf_memunits) required(ucs_config_sprintf_string) required(ucs_config_sprintf_ternary_auto)         \
    required(ucs_config_sprintf_time) required(ucs_config_sprintf_uint) required(ucs_config_sscanf_bool)                        \
    required(ucs_config_sscanf_bw) required(ucs_config_sscanf_memunits) required(ucs_config_sscanf_string)                      \
    required(ucs_config_sscanf_table) required(ucs_config_sscanf_ternary) required(ucs_config_sscanf_time)                      \
    required(ucs_config_sscanf_uint) required(ucs_global_opts_get_value) required(ucs_log_dispatch)           \
    required(ucs_log_level_names) required(ucs_memtype_cache_lookup) required(ucs_memtype_cache_update)                         \
    required(ucs_string_buffer_appendf) required(ucs_topo_find_device_by_bus_id) required(ucs_topo_sys_device_set_name)         \
    required(ucs_vfs_obj_add_ro_file)                                                                                           \
    required(uct_base_ep_is_connected) required(uct_base_ep_t_class) required(uct_base_ep_t_init)                               \
    required(uct_base_iface_is_reachable) required(uct_base_iface_progress_disable)                                             \
    required(uct_base_iface_progress_enable) required(uct_base_iface_query) required(uct_base_iface_t_class)                    \
    required(uct_base_iface_t_init) required(uct_component_register) required(uct_iface_base_query_v2)                          \
    required(uct_iface_config_table) required(uct_iface_fill_info_str_buf) required(uct_iface_is_reachable_params_addrs_valid)  \
    required(uct_iface_handle_ep_err)                                                                                           \
    required(uct_iface_scope_is_reachable) required(uct_md_base_md_query) required(uct_md_config_table)                         \
    required(uct_md_query_empty_md_resource) required(uct_md_query_single_md_resource) required(uct_single_device_resource)     \
    required(uct_tl_register)                                                                                                   \
    required(ucm_event_dispatch) required(ucm_event_enter) required(ucm_event_leave)                                            \
    optional(ucs_topo_sys_device_set_class)
// clang-format on

// The UCX that loaded the plugin, as a table. The plugin cannot link UCX: its libraries may be invisible to
// the rest of the process (dlopen with RTLD_LOCAL, mangled names), and the process may contain a second UCX.
struct ucx_api {
#define GAUDI_UCX_DECLARE(name) decltype(&::name) name = nullptr;
    GAUDI_UCX_SYMBOLS(GAUDI_UCX_DECLARE, GAUDI_UCX_DECLARE)
#undef GAUDI_UCX_DECLARE
    std::string version; // as libucp reports it; empty for programs that use UCT alone

    // Fills the table from the libucs that contains `caller` and the libuct that is bound to it. False:
    // `why_not` says what is missing or unknown.
    bool find(const void* caller, std::string& why_not);

private:
    bool check(std::string& why_not) const;
};

} // namespace gaudi_ucx
