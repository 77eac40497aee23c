// SPDX-License-Identifier: BSD-3-Clause
// Declarations of what a transport needs from UCX and UCX installs no header for, for UCX 1.22 and 1.23. One
// declaration serves both: members that 1.23 added at an end are included, and 1.22 never reads them.
// tests/ucx/abi_test.cpp compares offset and size of every member that 1.22 has with the DWARF of the stock
// 1.22.0 library; report.cpp prints them, also from the headers of another UCX.
#pragma once

#include <stdint.h>
#include <ucm/api/ucm.h>
#include <ucs/config/parser.h>
#include <ucs/datastruct/linear_func.h>
#include <ucs/datastruct/list.h>
#include <ucs/debug/log_def.h>
#include <ucs/memory/memory_type.h>
#include <ucs/memory/memtype_cache.h>
#include <ucs/sys/topo/base/topo.h>
#include <ucs/type/class.h>
#include <ucs/type/cpu_set.h>
#include <ucs/vfs/base/vfs_obj.h>
#include <uct/api/uct.h>

extern "C" {

// uct/api/v2: parameter structures, each with a mask of the members that are valid.

typedef enum uct_ep_operation {
    UCT_EP_OP_AM_SHORT,
    UCT_EP_OP_AM_BCOPY,
    UCT_EP_OP_AM_ZCOPY,
    UCT_EP_OP_PUT_SHORT,
    UCT_EP_OP_PUT_BCOPY,
    UCT_EP_OP_PUT_ZCOPY,
    UCT_EP_OP_GET_SHORT,
    UCT_EP_OP_GET_BCOPY,
    UCT_EP_OP_GET_ZCOPY,
} uct_ep_operation_t; // the other operations are not for copies

enum {
    UCT_PERF_ATTR_FIELD_OPERATION = 1 << 0,
    UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE = 1 << 1,
    UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE = 1 << 2,
    UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD = 1 << 5,
    UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD = 1 << 6,
    UCT_PERF_ATTR_FIELD_RECV_OVERHEAD = 1 << 7,
    UCT_PERF_ATTR_FIELD_BANDWIDTH = 1 << 8,
    UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH = 1 << 9,
    UCT_PERF_ATTR_FIELD_LATENCY = 1 << 10,
    UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS = 1 << 11,
    UCT_PERF_ATTR_FIELD_FLAGS = 1 << 12,
};

typedef struct uct_perf_attr {
    uint64_t field_mask;
    uct_ep_operation_t operation;
    ucs_memory_type_t local_memory_type;
    ucs_memory_type_t remote_memory_type;
    ucs_sys_device_t local_sys_device;
    ucs_sys_device_t remote_sys_device;
    double send_pre_overhead;
    double send_post_overhead;
    double recv_overhead;
    uct_ppn_bandwidth_t bandwidth;
    uct_ppn_bandwidth_t path_bandwidth;
    ucs_linear_func_t latency;
    size_t max_inflight_eps;
    uint64_t flags;
} uct_perf_attr_t;

enum {
    UCT_MD_MEM_REG_FIELD_FLAGS = 1 << 0,
    UCT_MD_MEM_REG_FIELD_DMABUF_FD = 1 << 1,
    UCT_MD_MEM_REG_FIELD_DMABUF_OFFSET = 1 << 2,
    UCT_MD_MEM_REG_FIELD_MEM_TYPE = 1 << 3,
};

typedef struct uct_md_mem_reg_params {
    uint64_t field_mask;
    uint64_t flags;
    int dmabuf_fd;
    size_t dmabuf_offset;
    ucs_memory_type_t mem_type;
} uct_md_mem_reg_params_t;

enum {
    UCT_MD_MEM_DEREG_FIELD_MEMH = 1 << 0,
    UCT_MD_MEM_DEREG_FIELD_FLAGS = 1 << 1,
    UCT_MD_MEM_DEREG_FIELD_COMPLETION = 1 << 2,
    UCT_MD_MEM_DEREG_FLAG_INVALIDATE = 1 << 0,
};

typedef struct uct_md_mem_dereg_params {
    uint64_t field_mask;
    unsigned flags;
    uct_mem_h memh;
    uct_completion_t* comp;
} uct_md_mem_dereg_params_t;

enum {
    UCT_MD_MKEY_PACK_FIELD_FLAGS = 1 << 0,
    UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA = 1 << 0,
    UCT_MD_MKEY_PACK_FLAG_EXPORT = 1 << 2,
};

// Memory domain flags after those in uct.h.
enum { UCT_MD_FLAG_INVALIDATE_RMA = UCT_MD_FLAG_LAST };

typedef struct uct_md_mkey_pack_params {
    uint64_t field_mask;
    unsigned flags;
} uct_md_mkey_pack_params_t;

enum {
    UCT_MD_MEM_ATTACH_FIELD_FLAGS = 1 << 0,
    UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE = 1 << 1,
    UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS = 1 << 0,
};

typedef struct uct_md_mem_attach_params {
    uint64_t field_mask;
    uint64_t flags;
    size_t mkey_size;
} uct_md_mem_attach_params_t;

typedef struct uct_rkey_unpack_params {
    uint64_t field_mask;
    ucs_sys_device_t sys_device;
} uct_rkey_unpack_params_t;

typedef struct uct_rkey_compare_params {
    uint64_t field_mask;
} uct_rkey_compare_params_t;

enum {
    UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE = 1 << 0,
    UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV = 1 << 1,
    UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS = 1 << 2,
    UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH = 1 << 3,
    UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD = 1 << 4,
    UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET = 1 << 5,
    UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS = 1 << 6,
};

typedef struct uct_md_mem_attr_v2 {
    uint64_t field_mask;
    ucs_memory_type_t mem_type;
    ucs_sys_device_t sys_dev;
    void* base_address;
    size_t alloc_length;
    int dmabuf_fd;
    size_t dmabuf_offset;
    uint8_t mem_flags;
} uct_md_mem_attr_v2_t;

typedef struct uct_md_attr_v2 {
    uint64_t field_mask;
    uint64_t max_alloc;
    size_t max_reg;
    uint64_t flags;
    uint64_t reg_mem_types;
    uint64_t reg_nonblock_mem_types;
    uint64_t cache_mem_types;
    uint64_t gva_mem_types;
    uint64_t detect_mem_types;
    uint64_t alloc_mem_types;
    uint64_t access_mem_types;
    uint64_t dmabuf_mem_types;
    ucs_linear_func_t reg_cost;
    char component_name[UCT_COMPONENT_NAME_MAX];
    size_t rkey_packed_size;
    ucs_cpu_set_t local_cpus;
    size_t exported_mkey_packed_size;
    char global_id[256];
    size_t reg_alignment;
    uint8_t required_mem_flags;
} uct_md_attr_v2_t;

typedef struct uct_iface_is_reachable_params {
    uint64_t field_mask;
    const uct_device_addr_t* device_addr;
    const uct_iface_addr_t* iface_addr;
    char* info_string;
    size_t info_string_length;
    int scope;
    size_t device_addr_length;
    size_t iface_addr_length;
} uct_iface_is_reachable_params_t;

// Only passed on, never accessed: their layout differs between versions.
typedef struct uct_iface_attr_v2 uct_iface_attr_v2_t;
typedef struct uct_ep_is_connected_params uct_ep_is_connected_params_t;

// uct/base: memory domain, component, transport, interface.

typedef struct uct_component uct_component_t;

struct uct_md_ops {
    void (*close)(uct_md_h md);
    ucs_status_t (*query)(uct_md_h md, uct_md_attr_v2_t* attr);
    ucs_status_t (*mem_alloc)(uct_md_h md, size_t* length_p, void** address_p, ucs_memory_type_t mem_type,
                              ucs_sys_device_t sys_dev, unsigned flags, const char* name, uct_mem_h* memh_p);
    ucs_status_t (*mem_free)(uct_md_h md, uct_mem_h memh);
    ucs_status_t (*mem_advise)(uct_md_h md, uct_mem_h memh, void* address, size_t length, unsigned advice);
    ucs_status_t (*mem_reg)(uct_md_h md, void* address, size_t length, const uct_md_mem_reg_params_t* params,
                            uct_mem_h* memh_p);
    ucs_status_t (*mem_dereg)(uct_md_h md, const uct_md_mem_dereg_params_t* params);
    ucs_status_t (*mem_query)(uct_md_h md, const void* address, size_t length, uct_md_mem_attr_v2_t* attr);
    ucs_status_t (*mkey_pack)(uct_md_h md, uct_mem_h memh, void* address, size_t length,
                              const uct_md_mkey_pack_params_t* params, void* buffer);
    ucs_status_t (*mem_attach)(uct_md_h md, const void* mkey_buffer, uct_md_mem_attach_params_t* params,
                               uct_mem_h* memh_p);
    ucs_status_t (*detect_memory_type)(uct_md_h md, const void* address, size_t length,
                                       ucs_memory_type_t* mem_type_p);
    ucs_status_t (*mem_elem_pack)(void); // for device code; a fifth argument since 1.23
    void (*mem_elem_release)(void);      // since 1.23
};

struct uct_md {
    uct_md_ops_t* ops;
    uct_component_t* component;
};

struct uct_md_config {
    char unused;
};

struct uct_component {
    char name[UCT_COMPONENT_NAME_MAX];
    ucs_status_t (*query_md_resources)(uct_component_t* component, uct_md_resource_desc_t** resources_p,
                                       unsigned* num_resources_p);
    ucs_status_t (*md_open)(uct_component_t* component, const char* md_name, const uct_md_config_t* config,
                            uct_md_h* md_p);
    ucs_status_t (*cm_open)(uct_component_t* component, uct_worker_h worker, const uct_cm_config_t* config,
                            uct_cm_h* cm_p);
    ucs_status_t (*rkey_unpack)(uct_component_t* component, const void* rkey_buffer,
                                const uct_rkey_unpack_params_t* params, uct_rkey_t* rkey_p, void** handle_p);
    ucs_status_t (*rkey_ptr)(uct_component_t* component, uct_rkey_t rkey, void* handle, uint64_t remote_addr,
                             void** local_addr_p);
    ucs_status_t (*rkey_release)(uct_component_t* component, uct_rkey_t rkey, void* handle);
    ucs_status_t (*rkey_compare)(uct_component_t* component, uct_rkey_t rkey1, uct_rkey_t rkey2,
                                 const uct_rkey_compare_params_t* params, int* result);
    ucs_config_global_list_entry_t md_config;
    ucs_config_global_list_entry_t cm_config;
    ucs_list_link_t tl_list;
    ucs_list_link_t list;
    uint64_t flags;
    void (*md_vfs_init)(uct_md_h md);
};

typedef struct uct_tl_device_resource {
    char name[UCT_DEVICE_NAME_MAX];
    uct_device_type_t type;
    ucs_sys_device_t sys_device;
} uct_tl_device_resource_t;

typedef struct uct_tl {
    char name[UCT_TL_NAME_MAX];
    ucs_status_t (*query_devices)(uct_md_h md, uct_tl_device_resource_t** devices_p, unsigned* num_devices_p);
    ucs_status_t (*iface_open)(uct_md_h md, uct_worker_h worker, const uct_iface_params_t* params,
                               const uct_iface_config_t* config, uct_iface_h* iface_p);
    ucs_config_global_list_entry_t config;
    ucs_list_link_t list;
} uct_tl_t;

typedef struct uct_iface_internal_ops {
    ucs_status_t (*iface_query_v2)(uct_iface_h iface, uct_iface_attr_v2_t* attr);
    ucs_status_t (*iface_estimate_perf)(uct_iface_h iface, uct_perf_attr_t* attr);
    void (*iface_vfs_refresh)(uct_iface_h iface);
    ucs_status_t (*ep_query)(void);
    ucs_status_t (*ep_invalidate)(void);
    ucs_status_t (*ep_connect_to_ep_v2)(void);
    int (*iface_is_reachable_v2)(const uct_iface_h iface, const uct_iface_is_reachable_params_t* params);
    int (*ep_is_connected)(const uct_ep_h ep, const uct_ep_is_connected_params_t* params);
    ucs_status_t (*ep_get_device_ep)(void);
    ucs_status_t (*ep_put_sgl_zcopy)(void);
    ucs_status_t (*ep_get_sgl_zcopy)(void);     // since 1.23
    ucs_status_t (*ep_outstanding_purge)(void); // since 1.23
} uct_iface_internal_ops_t;

struct uct_iface_config {
    struct {
        uct_alloc_method_t* methods;
        unsigned count;
    } alloc_methods;
    int failure;
    size_t max_num_eps;
};

typedef struct uct_am_handler {
    uct_am_callback_t cb;
    void* arg;
    uint32_t flags;
} uct_am_handler_t;

typedef struct uct_worker_progress {
    int id;
    int refcount;
} uct_worker_progress_t;

typedef struct uct_base_iface {
    uct_iface_t super;
    uct_iface_internal_ops_t* internal_ops;
    uct_md_h md;
    void* worker;
    uct_am_handler_t am[UCT_AM_ID_MAX];
    uct_am_tracer_t am_tracer;
    void* am_tracer_arg;
    uct_error_handler_t err_handler;
    void* err_handler_arg;
    uint32_t err_handler_flags;
    uct_worker_progress_t prog;
    unsigned progress_flags;
    struct {
        unsigned num_alloc_methods;
        uct_alloc_method_t alloc_methods[UCT_ALLOC_METHOD_LAST];
        ucs_log_level_t failure_level;
        size_t max_num_eps;
    } config;
} uct_base_iface_t;

typedef struct uct_base_ep {
    uct_ep_t super;
} uct_base_ep_t;

// Functions and data of libuct, libucs and libucm that no installed header declares. Only their types are
// used here: nothing is linked, ucx_api finds the symbols at run time.
extern ucs_class_t uct_base_iface_t_class, uct_base_ep_t_class;
extern ucs_config_field_t uct_md_config_table[], uct_iface_config_table[];
ucs_status_t uct_base_iface_t_init(uct_base_iface_t* self, ucs_class_t* cls, int* count, uct_iface_ops_t* ops,
                                   uct_iface_internal_ops_t* internal_ops, uct_md_h md, uct_worker_h worker,
                                   const uct_iface_params_t* params, const uct_iface_config_t* config);
ucs_status_t uct_base_ep_t_init(uct_base_ep_t* self, ucs_class_t* cls, int* count, uct_base_iface_t* iface);
void uct_base_iface_query(uct_base_iface_t* iface, uct_iface_attr_t* attr);
void uct_base_iface_progress_enable(uct_iface_h iface, unsigned flags);
void uct_base_iface_progress_disable(uct_iface_h iface, unsigned flags);
int uct_base_iface_is_reachable(const uct_iface_h iface, const uct_device_addr_t* device,
                                const uct_iface_addr_t* address);
ucs_status_t uct_iface_base_query_v2(uct_iface_h iface, uct_iface_attr_v2_t* attr);
int uct_base_ep_is_connected(const uct_ep_h ep, const uct_ep_is_connected_params_t* params);
int uct_iface_scope_is_reachable(const uct_iface_h iface, const uct_iface_is_reachable_params_t* params);
int uct_iface_is_reachable_params_addrs_valid(const uct_iface_is_reachable_params_t* params);
ucs_status_t uct_iface_handle_ep_err(uct_iface_h iface, uct_ep_h ep, ucs_status_t status);
void uct_iface_fill_info_str_buf(const uct_iface_is_reachable_params_t* params, const char* format, ...);
ucs_status_t uct_md_query_single_md_resource(uct_component_t* component, uct_md_resource_desc_t** resources_p,
                                             unsigned* num_resources_p);
ucs_status_t uct_md_query_empty_md_resource(uct_md_resource_desc_t** resources_p, unsigned* num_resources_p);
void uct_md_base_md_query(uct_md_attr_v2_t* attr);
ucs_status_t uct_single_device_resource(uct_md_h md, const char* name, uct_device_type_t type,
                                        ucs_sys_device_t sys_device, uct_tl_device_resource_t** devices_p,
                                        unsigned* num_devices_p);
void uct_component_register(uct_component_t* component);
void uct_tl_register(uct_component_t* component, uct_tl_t* tl);
void ucm_event_dispatch(ucm_event_type_t type, ucm_event_t* event);
void ucm_event_enter(void);
void ucm_event_leave(void);
ucs_status_t ucs_topo_sys_device_set_class(ucs_sys_device_t sys_dev, int device_class); // since 1.23

} // extern "C"
