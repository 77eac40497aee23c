// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/abi/exports.hpp"

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <vector>

namespace gaudi_ucx {
namespace {

// clang-format off
// What libuct of 1.22.0 exports of endpoints, interfaces and memory domains; sorted. An entry of the tables
// that a transport fills has such a function.
constexpr std::array names_1_22 = std::to_array<std::string_view>({
    "uct_ep_check", "uct_ep_connect", "uct_ep_connect_params_get", "uct_ep_connect_to_ep",
    "uct_ep_connect_to_ep_v2", "uct_ep_create", "uct_ep_destroy", "uct_ep_disconnect", "uct_ep_get_address",
    "uct_ep_get_device_ep", "uct_ep_invalidate", "uct_ep_is_connected", "uct_ep_keepalive_check",
    "uct_ep_keepalive_init", "uct_ep_operation_names", "uct_ep_put_sgl_zcopy", "uct_ep_query",
    "uct_ep_set_iface", "uct_iface_accept", "uct_iface_base_query_v2", "uct_iface_close",
    "uct_iface_config_table", "uct_iface_dump_am", "uct_iface_estimate_perf", "uct_iface_event_arm",
    "uct_iface_event_fd_get", "uct_iface_fill_info_str_buf", "uct_iface_get_address",
    "uct_iface_get_device_address", "uct_iface_get_local_address", "uct_iface_handle_ep_err",
    "uct_iface_is_reachable", "uct_iface_is_reachable_params_addrs_valid",
    "uct_iface_is_reachable_params_valid", "uct_iface_is_reachable_v2", "uct_iface_local_is_reachable",
    "uct_iface_mem_alloc", "uct_iface_mem_free", "uct_iface_mp_chunk_alloc", "uct_iface_mp_chunk_release",
    "uct_iface_mpool_config_copy", "uct_iface_mpool_empty_warn", "uct_iface_mpool_init", "uct_iface_open",
    "uct_iface_param_am_alignment", "uct_iface_query", "uct_iface_query_v2", "uct_iface_reject",
    "uct_iface_scope_is_reachable", "uct_iface_set_am_handler", "uct_iface_set_am_tracer",
    "uct_iface_set_async_event_params", "uct_iface_vfs_set_dirty", "uct_md_base_md_query", "uct_md_close",
    "uct_md_config_read", "uct_md_config_table", "uct_md_detect_memory_type", "uct_md_dummy_mem_dereg",
    "uct_md_dummy_mem_reg", "uct_md_iface_config_read", "uct_md_is_sockaddr_accessible", "uct_md_mem_advise",
    "uct_md_mem_alloc", "uct_md_mem_attach", "uct_md_mem_dereg", "uct_md_mem_dereg_v2",
    "uct_md_mem_elem_pack", "uct_md_mem_free", "uct_md_mem_query", "uct_md_mem_query_v2", "uct_md_mem_reg",
    "uct_md_mem_reg_v2", "uct_md_mkey_pack", "uct_md_mkey_pack_v2", "uct_md_open", "uct_md_query",
    "uct_md_query_empty_md_resource", "uct_md_query_single_md_resource", "uct_md_query_tl_resources",
    "uct_md_query_v2", "uct_md_stub_rkey_unpack", "uct_md_vfs_init"});
// What 1.23.0 (revision 65e342a) has in addition.
constexpr std::array added_1_23 = std::to_array<std::string_view>({
    "uct_ep_get_sgl_zcopy", "uct_ep_outstanding_purge", "uct_iface_query_v2_init", "uct_md_mem_elem_release"});
// clang-format on

bool decides(std::string_view name) {
    constexpr std::string_view of_classes[] = {"_t_class", "_t_init", "_t_cleanup", "_t_new", "_t_delete"};
    return (name.starts_with("uct_ep_") || name.starts_with("uct_iface_") || name.starts_with("uct_md_")) &&
           std::ranges::none_of(of_classes, [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string_view> known_names(bool of_1_23) {
    std::vector<std::string_view> names(names_1_22.begin(), names_1_22.end());
    if (of_1_23)
        names.insert(names.end(), added_1_23.begin(), added_1_23.end());
    std::ranges::sort(names);
    return names;
}

// The dynamic symbols that a library defines. Their number is in no header: the hash table's last chain ends
// with the last one.
std::vector<std::string_view> exported_names(void* library) {
    link_map* map = nullptr;
    std::vector<std::string_view> names;
    if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return names;
    const ElfW(Sym)* symbols = nullptr;
    const char* text = nullptr;
    const std::uint32_t* hash = nullptr;
    const auto at = [&](const ElfW(Dyn) & entry) { // whether ld.so has added the base depends on the machine
        const auto value = entry.d_un.d_ptr;
        return reinterpret_cast<const void*>(value < map->l_addr ? value + map->l_addr : value);
    };
    for (const auto* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry)
        if (entry->d_tag == DT_SYMTAB)
            symbols = static_cast<const ElfW(Sym)*>(at(*entry));
        else if (entry->d_tag == DT_STRTAB)
            text = static_cast<const char*>(at(*entry));
        else if (entry->d_tag == DT_GNU_HASH)
            hash = static_cast<const std::uint32_t*>(at(*entry));
    if (symbols == nullptr || text == nullptr || hash == nullptr)
        return names;
    const std::uint32_t buckets = hash[0], first = hash[1], filter_words = hash[2];
    const auto* const bucket = hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
    const auto* const chain = bucket + buckets;
    const auto last = *std::max_element(bucket, bucket + buckets);
    if (last < first)
        return names;
    auto end = last;
    while ((chain[end - first] & 1U) == 0)
        ++end;
    for (auto i = first; i <= end; ++i)
        if (symbols[i].st_shndx != SHN_UNDEF)
            names.emplace_back(text + symbols[i].st_name);
    return names;
}

} // namespace

std::string difference_of(std::vector<std::string_view> exported, std::string_view version) {
    std::erase_if(exported, [](std::string_view name) { return !decides(name); });
    std::ranges::sort(exported);
    // A program that uses UCT alone has no version: then either set will do.
    std::string difference;
    for (const bool of_1_23 : {true, false}) {
        if (!version.empty() && version.starts_with("1.23.") != of_1_23)
            continue;
        const auto known = known_names(of_1_23);
        std::vector<std::string_view> added, lacking;
        std::ranges::set_difference(exported, known, std::back_inserter(added));
        std::ranges::set_difference(known, exported, std::back_inserter(lacking));
        if (added.empty() && lacking.empty())
            return {};
        difference = fmt::format("{}{}{}{}{}", added.empty() ? "" : "it has ", fmt::join(added, ", "),
                                 added.empty() || lacking.empty() ? "" : "; ",
                                 lacking.empty() ? "" : "it lacks ", fmt::join(lacking, ", "));
    }
    return difference;
}

std::string unknown_exports(void* libuct, std::string_view version) {
    const auto exported = exported_names(libuct);
    return exported.empty() ? "its exported functions cannot be read" : difference_of(exported, version);
}

} // namespace gaudi_ucx
