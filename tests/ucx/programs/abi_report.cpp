// SPDX-License-Identifier: BSD-3-Clause
// Prints offset and size of every member of UCX's private structures, as abi/uct_private.h and
// abi/perf_allocator.h declare them, except members that 1.22 does not have: "structure member offset size".
// Built with -DUCX_SOURCE_DIR it uses the headers of that UCX instead: a diff of both outputs shows what
// changed.
#ifdef GAUDI_UCX_SOURCE
extern "C" {
#include <config.h> // what UCX's configure found
#include <uct/base/uct_component.h>
#include <uct/base/uct_iface.h>
#include <uct/base/uct_md.h>
}
#else
#include "ucx/abi/perf_allocator.h"
#include "ucx/abi/uct_private.h"
#endif

#include <cstddef>
#include <cstdio>

namespace {

// NOLINTBEGIN(bugprone-sizeof-expression): sizes of pointer members are intended
#define MEMBER(type, name)                                                                                   \
    std::printf(#type " " #name " %zu %zu\n", offsetof(type, name), sizeof(static_cast<type*>(nullptr)->name))
#define WHOLE(type) std::printf(#type " - %zu\n", sizeof(type))

void arguments_of_copies_and_memory() {
    WHOLE(uct_perf_attr_t);
    MEMBER(uct_perf_attr_t, field_mask);
    MEMBER(uct_perf_attr_t, operation);
    MEMBER(uct_perf_attr_t, local_memory_type);
    MEMBER(uct_perf_attr_t, remote_memory_type);
    MEMBER(uct_perf_attr_t, local_sys_device);
    MEMBER(uct_perf_attr_t, remote_sys_device);
    MEMBER(uct_perf_attr_t, send_pre_overhead);
    MEMBER(uct_perf_attr_t, send_post_overhead);
    MEMBER(uct_perf_attr_t, recv_overhead);
    MEMBER(uct_perf_attr_t, bandwidth);
    MEMBER(uct_perf_attr_t, path_bandwidth);
    MEMBER(uct_perf_attr_t, latency);
    MEMBER(uct_perf_attr_t, max_inflight_eps);
    MEMBER(uct_perf_attr_t, flags);
    WHOLE(uct_md_mem_reg_params_t);
    MEMBER(uct_md_mem_reg_params_t, field_mask);
    MEMBER(uct_md_mem_reg_params_t, flags);
    MEMBER(uct_md_mem_reg_params_t, dmabuf_fd);
    MEMBER(uct_md_mem_reg_params_t, dmabuf_offset);
    MEMBER(uct_md_mem_reg_params_t, mem_type);
    WHOLE(uct_md_mem_dereg_params_t);
    MEMBER(uct_md_mem_dereg_params_t, field_mask);
    MEMBER(uct_md_mem_dereg_params_t, flags);
    MEMBER(uct_md_mem_dereg_params_t, memh);
    MEMBER(uct_md_mem_dereg_params_t, comp);
    WHOLE(uct_md_mkey_pack_params_t);
    MEMBER(uct_md_mkey_pack_params_t, field_mask);
    MEMBER(uct_md_mkey_pack_params_t, flags);
    WHOLE(uct_md_mem_attach_params_t);
    MEMBER(uct_md_mem_attach_params_t, field_mask);
    MEMBER(uct_md_mem_attach_params_t, flags);
    MEMBER(uct_md_mem_attach_params_t, mkey_size);
    WHOLE(uct_rkey_unpack_params_t);
    MEMBER(uct_rkey_unpack_params_t, field_mask);
    MEMBER(uct_rkey_unpack_params_t, sys_device);
    WHOLE(uct_rkey_compare_params_t);
    MEMBER(uct_rkey_compare_params_t, field_mask);
}

void attributes() {
    WHOLE(uct_md_mem_attr_v2_t);
    MEMBER(uct_md_mem_attr_v2_t, field_mask);
    MEMBER(uct_md_mem_attr_v2_t, mem_type);
    MEMBER(uct_md_mem_attr_v2_t, sys_dev);
    MEMBER(uct_md_mem_attr_v2_t, base_address);
    MEMBER(uct_md_mem_attr_v2_t, alloc_length);
    MEMBER(uct_md_mem_attr_v2_t, dmabuf_fd);
    MEMBER(uct_md_mem_attr_v2_t, dmabuf_offset);
    MEMBER(uct_md_mem_attr_v2_t, mem_flags);
    WHOLE(uct_md_attr_v2_t);
    MEMBER(uct_md_attr_v2_t, field_mask);
    MEMBER(uct_md_attr_v2_t, max_alloc);
    MEMBER(uct_md_attr_v2_t, max_reg);
    MEMBER(uct_md_attr_v2_t, flags);
    MEMBER(uct_md_attr_v2_t, reg_mem_types);
    MEMBER(uct_md_attr_v2_t, reg_nonblock_mem_types);
    MEMBER(uct_md_attr_v2_t, cache_mem_types);
    MEMBER(uct_md_attr_v2_t, gva_mem_types);
    MEMBER(uct_md_attr_v2_t, detect_mem_types);
    MEMBER(uct_md_attr_v2_t, alloc_mem_types);
    MEMBER(uct_md_attr_v2_t, access_mem_types);
    MEMBER(uct_md_attr_v2_t, dmabuf_mem_types);
    MEMBER(uct_md_attr_v2_t, reg_cost);
    MEMBER(uct_md_attr_v2_t, component_name);
    MEMBER(uct_md_attr_v2_t, rkey_packed_size);
    MEMBER(uct_md_attr_v2_t, local_cpus);
    MEMBER(uct_md_attr_v2_t, exported_mkey_packed_size);
    MEMBER(uct_md_attr_v2_t, global_id);
    MEMBER(uct_md_attr_v2_t, reg_alignment);
    MEMBER(uct_md_attr_v2_t, required_mem_flags);
}

void arguments_of_interfaces() {
    WHOLE(uct_iface_is_reachable_params_t);
    MEMBER(uct_iface_is_reachable_params_t, field_mask);
    MEMBER(uct_iface_is_reachable_params_t, device_addr);
    MEMBER(uct_iface_is_reachable_params_t, iface_addr);
    MEMBER(uct_iface_is_reachable_params_t, info_string);
    MEMBER(uct_iface_is_reachable_params_t, info_string_length);
    MEMBER(uct_iface_is_reachable_params_t, scope);
    MEMBER(uct_iface_is_reachable_params_t, device_addr_length);
    MEMBER(uct_iface_is_reachable_params_t, iface_addr_length);
    WHOLE(uct_tl_device_resource_t);
    MEMBER(uct_tl_device_resource_t, name);
    MEMBER(uct_tl_device_resource_t, type);
    MEMBER(uct_tl_device_resource_t, sys_device);
}

// The sizes of the two function tables are not printed: 1.23 has more functions at their ends.
void tables() {
    MEMBER(uct_md_ops, close);
    MEMBER(uct_md_ops, query);
    MEMBER(uct_md_ops, mem_alloc);
    MEMBER(uct_md_ops, mem_free);
    MEMBER(uct_md_ops, mem_advise);
    MEMBER(uct_md_ops, mem_reg);
    MEMBER(uct_md_ops, mem_dereg);
    MEMBER(uct_md_ops, mem_query);
    MEMBER(uct_md_ops, mkey_pack);
    MEMBER(uct_md_ops, mem_attach);
    MEMBER(uct_md_ops, detect_memory_type);
    MEMBER(uct_md_ops, mem_elem_pack);
    WHOLE(uct_md);
    MEMBER(uct_md, ops);
    MEMBER(uct_md, component);
    WHOLE(uct_md_config);
    WHOLE(uct_component);
    MEMBER(uct_component, name);
    MEMBER(uct_component, query_md_resources);
    MEMBER(uct_component, md_open);
    MEMBER(uct_component, cm_open);
    MEMBER(uct_component, rkey_unpack);
    MEMBER(uct_component, rkey_ptr);
    MEMBER(uct_component, rkey_release);
    MEMBER(uct_component, rkey_compare);
    MEMBER(uct_component, md_config);
    MEMBER(uct_component, cm_config);
    MEMBER(uct_component, tl_list);
    MEMBER(uct_component, list);
    MEMBER(uct_component, flags);
    MEMBER(uct_component, md_vfs_init);
    WHOLE(uct_tl);
    MEMBER(uct_tl, name);
    MEMBER(uct_tl, query_devices);
    MEMBER(uct_tl, iface_open);
    MEMBER(uct_tl, config);
    MEMBER(uct_tl, list);
    MEMBER(uct_iface_internal_ops, iface_query_v2);
    MEMBER(uct_iface_internal_ops, iface_estimate_perf);
    MEMBER(uct_iface_internal_ops, iface_vfs_refresh);
    MEMBER(uct_iface_internal_ops, ep_query);
    MEMBER(uct_iface_internal_ops, ep_invalidate);
    MEMBER(uct_iface_internal_ops, ep_connect_to_ep_v2);
    MEMBER(uct_iface_internal_ops, iface_is_reachable_v2);
    MEMBER(uct_iface_internal_ops, ep_is_connected);
    MEMBER(uct_iface_internal_ops, ep_get_device_ep);
    MEMBER(uct_iface_internal_ops, ep_put_sgl_zcopy);
}

void interfaces() {
    WHOLE(uct_iface_config);
    MEMBER(uct_iface_config, alloc_methods);
    MEMBER(uct_iface_config, alloc_methods.methods);
    MEMBER(uct_iface_config, alloc_methods.count);
    MEMBER(uct_iface_config, failure);
    MEMBER(uct_iface_config, max_num_eps);
    WHOLE(uct_am_handler);
    MEMBER(uct_am_handler, cb);
    MEMBER(uct_am_handler, arg);
    MEMBER(uct_am_handler, flags);
    WHOLE(uct_worker_progress_t);
    MEMBER(uct_worker_progress_t, id);
    MEMBER(uct_worker_progress_t, refcount);
    WHOLE(uct_base_iface);
    MEMBER(uct_base_iface, super);
    MEMBER(uct_base_iface, internal_ops);
    MEMBER(uct_base_iface, md);
    MEMBER(uct_base_iface, worker);
    MEMBER(uct_base_iface, am);
    MEMBER(uct_base_iface, am_tracer);
    MEMBER(uct_base_iface, am_tracer_arg);
    MEMBER(uct_base_iface, err_handler);
    MEMBER(uct_base_iface, err_handler_arg);
    MEMBER(uct_base_iface, err_handler_flags);
    MEMBER(uct_base_iface, prog);
    MEMBER(uct_base_iface, progress_flags);
    MEMBER(uct_base_iface, config);
    MEMBER(uct_base_iface, config.num_alloc_methods);
    MEMBER(uct_base_iface, config.alloc_methods);
    MEMBER(uct_base_iface, config.failure_level);
    MEMBER(uct_base_iface, config.max_num_eps);
    WHOLE(uct_base_ep);
    MEMBER(uct_base_ep, super);
}

#ifndef GAUDI_UCX_SOURCE // perftest's headers belong to another library
void perftest() {
    WHOLE(ucx_perf_allocator);
    MEMBER(ucx_perf_allocator, mem_type);
    MEMBER(ucx_perf_allocator, init);
    MEMBER(ucx_perf_allocator, uct_alloc);
    MEMBER(ucx_perf_allocator, uct_free);
    MEMBER(ucx_perf_allocator, memcpy);
    MEMBER(ucx_perf_allocator, memset);
}
#endif

} // namespace

// NOLINTEND(bugprone-sizeof-expression)

int main() {
    arguments_of_copies_and_memory();
    attributes();
    arguments_of_interfaces();
    tables();
    interfaces();
#ifndef GAUDI_UCX_SOURCE
    perftest();
#endif
}
