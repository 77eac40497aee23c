// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>

#include "ucx/copy/copy_md.hpp"

#include <string_view>

namespace gaudi_ucx {

// Registration and keys of the memory domain, as UCX calls them.
ucs_status_t uct_gaudi_copy_mem_reg(uct_md_h tl_md, void* address, size_t length,
                                    const uct_md_mem_reg_params_t* params, uct_mem_h* memh_p);
ucs_status_t uct_gaudi_copy_mem_dereg(uct_md_h, const uct_md_mem_dereg_params_t* params);
ucs_status_t uct_gaudi_copy_mkey_pack(uct_md_h, uct_mem_h memh, void*, size_t,
                                      const uct_md_mkey_pack_params_t*, void* buffer);
ucs_status_t uct_gaudi_copy_mem_attach(uct_md_h tl_md, const void* mkey_buffer,
                                       uct_md_mem_attach_params_t* params, uct_mem_h* memh_p);
ucs_status_t uct_gaudi_copy_rkey_unpack(uct_component_t* component, const void* rkey_buffer,
                                        const uct_rkey_unpack_params_t*, uct_rkey_t* rkey_p, void** handle_p);
ucs_status_t uct_gaudi_copy_rkey_release(uct_component_t*, uct_rkey_t rkey, void*);
ucs_status_t uct_gaudi_copy_rkey_compare(uct_component_t*, uct_rkey_t first, uct_rkey_t second,
                                         const uct_rkey_compare_params_t*, int* result);
ucs_status_t uct_gaudi_copy_rkey_ptr(uct_component_t*, uct_rkey_t, void*, uint64_t, void**);

// What the domain's calls have in common: the level of their errors, one line of log, and a status.
[[nodiscard]] ucs_log_level_t level_of(std::uint64_t flags);
ucs_status_t failed(uct_gaudi_module& module, const gaudi::error& error, ucs_log_level_t level,
                    std::string_view doing);
// UCS_OK, or an error for a device that was reset.
ucs_status_t refuse_lost(uct_gaudi_module& module, const gaudi::device& device, ucs_log_level_t level,
                         std::string_view doing);

// Host memory that was registered stays mapped for a device once it was used with it: mapping it costs more
// than many a copy.
void keep_pinned(uct_gaudi_module& module, const uct_iov_t& iov, unsigned device, gaudi::copier& copies);

// UCS_OK, or why `key` does not open [address, address + length).
[[nodiscard]] ucs_status_t check_key(uct_gaudi_module& module, uct_rkey_t key, std::uint64_t address,
                                     std::size_t length);

// An address as a place for the copier.
[[nodiscard]] inline gaudi::place place_of(const located& where, std::uint64_t address, std::size_t length) {
    if (where.device)
        return {gaudi::device_address(address), length, where.index};
    return std::span(reinterpret_cast<std::byte*>(address), length);
}

// What a failed copy of UCX's own staging means, which passes no key.
constexpr const char* lost_staging =
    "UCX does not look at the end of copies that it stages messages with; those under way may be reported as "
    "complete with old bytes in them. End or restart what they belong to";

} // namespace gaudi_ucx
