/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The C ABI of hl-thunk as the vendor's binaries have it on x86-64: only facts, no code. Field names follow
 * the vendor's so that readers can look things up; layouts are checked at the end of this file.
 */
#ifndef GAUDI_DIRECT_ABI_HLTHUNK_H
#define GAUDI_DIRECT_ABI_HLTHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hlthunk_device_name {
    HLTHUNK_DEVICE_GOYA = 0,
    HLTHUNK_DEVICE_GAUDI = 2,
    HLTHUNK_DEVICE_INVALID = 3,
    HLTHUNK_DEVICE_DONT_CARE = 4,
    HLTHUNK_DEVICE_GAUDI2 = 5,
    HLTHUNK_DEVICE_GAUDI_HL2000M = 6, /* newer vendor headers from here on */
    HLTHUNK_DEVICE_GAUDI3 = 7,
    HLTHUNK_DEVICE_GAUDI2B = 8,
    HLTHUNK_DEVICE_GAUDI2C = 10,
    HLTHUNK_DEVICE_GAUDI2D = 11,
    HLTHUNK_DEVICE_MAX = 12
};

enum { /* flags of device_memory_alloc and host_memory_map_flags */
       HL_MEM_CONTIGUOUS = 0x1,
       HL_MEM_SHARED = 0x2,
       HL_MEM_USERPTR = 0x4,
       HL_MEM_FORCE_HINT = 0x8
};

enum { /* operations of the memory ioctl */
       HL_MEM_OP_ALLOC = 0,
       HL_MEM_OP_FREE = 1,
       HL_MEM_OP_MAP = 2,
       HL_MEM_OP_UNMAP = 3,
       HL_MEM_OP_EXPORT_DMABUF_FD = 5,
       HL_MEM_OP_REG_DMABUF_FD = 99 /* vendor driver only */
};

enum {
    HL_CS_FLAGS_FORCE_RESTORE = 0x1,
    HL_CS_FLAGS_SIGNAL = 0x2,
    HL_CS_FLAGS_WAIT = 0x4,
    HL_CS_FLAGS_COLLECTIVE_WAIT = 0x8,
    HL_CS_FLAGS_TIMESTAMP = 0x20,
    HL_CS_FLAGS_STAGED = 0x40,
    HL_CS_FLAGS_STAGED_FIRST = 0x80,
    HL_CS_FLAGS_STAGED_LAST = 0x100,
    HL_CS_FLAGS_CUSTOM_TIMEOUT = 0x200,
    HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT = 0x400,
    HL_CS_CHUNK_FLAGS_USER_ALLOC_CB = 0x1,
    HL_MAX_JOBS_PER_CS = 512,
    HL_MAX_CB_SIZE = 0x200000 - 32,
    HL_WAIT_MULTI_CS_LIST_MAX_LEN = 32
};

enum {
    HL_WAIT_CS_STATUS_COMPLETED,
    HL_WAIT_CS_STATUS_BUSY,
    HL_WAIT_CS_STATUS_TIMEDOUT,
    HL_WAIT_CS_STATUS_ABORTED
};

/* hlthunk_get_device_status_info returns -errno in it, which is a value of the enumeration in C++ only where
 * the underlying type is fixed. */
#ifdef __cplusplus
enum hl_device_status : int {
#else
enum hl_device_status {
#endif
    HL_DEVICE_STATUS_OPERATIONAL,
    HL_DEVICE_STATUS_IN_RESET,
    HL_DEVICE_STATUS_MALFUNCTION,
    HL_DEVICE_STATUS_NEEDS_RESET,
    HL_DEVICE_STATUS_IN_DEVICE_CREATION,
    HL_DEVICE_STATUS_IN_RESET_AFTER_DEVICE_RELEASE
};

enum { /* bits of the notifier's event mask */
       HL_NOTIFIER_EVENT_TPC_ASSERT = 1 << 0,
       HL_NOTIFIER_EVENT_UNDEFINED_OPCODE = 1 << 1,
       HL_NOTIFIER_EVENT_DEVICE_RESET = 1 << 2,
       HL_NOTIFIER_EVENT_CS_TIMEOUT = 1 << 3,
       HL_NOTIFIER_EVENT_DEVICE_UNAVAILABLE = 1 << 4,
       HL_NOTIFIER_EVENT_USER_ENGINE_ERR = 1 << 5,
       HL_NOTIFIER_EVENT_GENERAL_HW_ERR = 1 << 6,
       HL_NOTIFIER_EVENT_RAZWI = 1 << 7,
       HL_NOTIFIER_EVENT_PAGE_FAULT = 1 << 8
};

enum hlthunk_event_record_id {
    HLTHUNK_OPEN_DEV,
    HLTHUNK_CS_TIMEOUT,
    HLTHUNK_RAZWI_EVENT,
    HLTHUNK_UNDEFINED_OPCODE,
    HLTHUNK_HW_ERR_OPCODE,
    HLTHUNK_FW_ERR_OPCODE
};

struct hlthunk_hw_ip_info {
    uint64_t sram_base_address;
    uint64_t dram_base_address;
    uint64_t dram_size;
    uint32_t sram_size;
    uint32_t num_of_events;
    uint32_t device_id;
    uint32_t cpld_version;
    uint32_t psoc_pci_pll[4]; /* nr, nf, od, div_factor */
    uint16_t tpc_enabled_mask;
    uint8_t dram_enabled;
    uint8_t cpucp_version[128];
    uint32_t module_id;
    uint8_t card_name[16];
    uint32_t decoder_enabled_mask;
    uint8_t mme_master_slave_mode;
    uint64_t tpc_enabled_mask_ext;
    uint64_t dram_page_size;
    uint16_t first_available_interrupt_id;
    uint32_t edma_enabled_mask;
    uint16_t server_type;
    uint64_t pdma_user_owned_ch_mask;
    uint16_t number_of_user_interrupts;
    uint64_t device_mem_alloc_default_page_size;
    uint64_t nic_ports_mask;
    uint8_t interposer_version;
    uint8_t substrate_version;
    uint64_t nic_ports_external_mask;
    uint32_t mme_enabled_mask;
    uint8_t odp_supported;
    uint8_t security_enabled;
    uint8_t revision_id;
    uint16_t tpc_interrupt_id;
    uint64_t engine_core_interrupt_reg_addr;
    uint32_t rotator_enabled_mask;
    uint32_t sched_arc_enabled_mask;
    uint64_t reserved_dram_size;
};

struct hlthunk_dram_usage_info {
    uint64_t dram_free_mem;
    uint64_t ctx_dram_mem;
};

struct hlthunk_engines_idle_info {
    uint32_t is_idle;
    uint32_t pad;
    uint64_t mask[4];
};

struct hlthunk_pll_frequency_info {
    uint16_t output[4];
};

struct hlthunk_reset_count_info {
    uint32_t hard_reset_count;
    uint32_t soft_reset_count;
};

/* 24 bytes in newer headers: write only these 16, or the structures of callers built with older ones
 * overflow. */
struct hlthunk_time_sync_info {
    uint64_t device_time;
    uint64_t host_time;
};

struct hlthunk_sync_manager_info {
    uint32_t first_available_sync_object;
    uint32_t first_available_monitor;
    uint32_t first_available_cq;
    uint32_t reserved;
};

struct hlthunk_pci_counters_info {
    uint64_t rx_throughput;
    uint64_t tx_throughput;
    uint32_t replay_cnt;
};

struct hlthunk_clk_throttle_info {
    uint32_t clk_throttle_reason_bitmask;
    uint64_t clk_throttle_start_timestamp_us[2];
    uint64_t clk_throttle_duration_ns[2];
};

struct hlthunk_energy_info {
    uint64_t total_energy_consumption;
};

struct hlthunk_power_info {
    uint64_t power;
};

struct hlthunk_open_stats_info {
    uint64_t open_counter;
    uint64_t last_open_period_ms;
    uint8_t is_compute_ctx_active;
    uint8_t compute_ctx_in_release;
};

struct hlthunk_hw_asic_status {
    struct hlthunk_clk_throttle_info throttle;
    struct hlthunk_open_stats_info open_stats;
    struct hlthunk_power_info power;
    enum hl_device_status status;
    uint64_t timestamp_sec;
    uint8_t valid;
};

struct hl_info_cs_counters {
    uint64_t total_out_of_mem_drop_cnt;
    uint64_t total_parsing_drop_cnt;
    uint64_t total_queue_full_drop_cnt;
    uint64_t total_device_in_reset_drop_cnt;
    uint64_t total_max_cs_in_flight_drop_cnt;
    uint64_t total_validation_drop_cnt;
    uint64_t ctx_drop_cnt[6]; /* the same six for this context */
};

struct hl_info_args {
    uint64_t return_pointer;
    uint32_t return_size;
    uint32_t op;
    uint32_t argument; /* a union: dcore id, period, index, eventfd ... */
    uint32_t pad;
};

struct hl_cs_chunk {
    uint64_t cb_handle; /* with USER_ALLOC_CB a device address */
    uint32_t queue_index;
    uint32_t cb_size;
    uint32_t cs_chunk_flags;
    uint32_t collective_engine_id;
    uint32_t pad[10];
};

struct hlthunk_cs_in {
    void* chunks_restore;
    void* chunks_execute;
    uint32_t num_chunks_restore;
    uint32_t num_chunks_execute;
    uint32_t flags;
};

struct hlthunk_cs_out {
    uint64_t seq;
    uint32_t status;
    uint16_t sob_count_before_submission;
};

struct hlthunk_wait_multi_cs_in {
    uint64_t* seq;
    uint64_t timeout_us;
    uint32_t seq_len;
};

struct hlthunk_wait_multi_cs_out {
    uint32_t status;
    uint32_t seq_set;
    uint8_t completed;
};

struct hlthunk_user_mapping {
    uint64_t dev_va;
    uint64_t size;
};

struct hlthunk_page_fault_info {
    int64_t timestamp;
    uint64_t addr;
    uint16_t engine_id;
    uint32_t num_of_mappings;
    struct hlthunk_user_mapping* mappings_buf;
};

struct hlthunk_event_record_open_dev_time {
    int64_t timestamp;
};

struct hlthunk_event_record_cs_timeout {
    int64_t timestamp;
    uint64_t seq;
};

struct hlthunk_event_record_razwi_event {
    int64_t timestamp;
    uint64_t addr;
    uint16_t engine_id[128];
    uint16_t num_of_possible_engines;
    uint8_t flags;
};

struct hlthunk_event_record_undefined_opcode {
    int64_t timestamp;
    uint64_t cb_addr_streams[4][8];
    uint64_t cq_addr;
    uint32_t cq_size;
    uint32_t cb_addr_streams_len;
    uint32_t engine_id;
    uint32_t stream_id;
};

struct hlthunk_debugfs {
    int addr_fd;
    int data_fd;
    int clk_gate_fd;
    char clk_gate_val[32];
};

struct hl_debug_args {
    uint64_t input_ptr;
    uint64_t output_ptr;
    uint32_t input_size;
    uint32_t output_size;
    uint32_t op;
    uint32_t reg_idx;
    uint32_t enable;
    uint32_t ctx_id;
};

/* Passed through by pointer; this project does not read them. */
struct hlthunk_signal_in;
struct hlthunk_signal_out;
struct hlthunk_sig_res_in;
struct hlthunk_sig_res_out;
struct reserve_sig_handle;
struct hlthunk_wait_in;
struct hlthunk_wait_out;
struct hlthunk_dram_replaced_rows_info;
struct hlthunk_sec_attest_info;

/* The memory ioctl, for the one operation that hl-thunk has no function for (REG_DMABUF_FD). */
union hl_mem_args {
    struct {
        uint64_t argument[3]; /* REG_DMABUF_FD: fd, length */
        uint32_t op;
        uint32_t flags;
        uint32_t ctx_id;
        uint32_t num_of_elements;
    } in;
    struct {
        uint64_t device_virt_addr;
    } out;
};

/* 'd', number 0x44, since Linux 6.7 */
#define HL_IOCTL_MEMORY_REQUEST 0xc0286444UL

/* Flags that device_mapped_memory_export_dmabuf_fd requires: O_RDWR | O_CLOEXEC. */
enum { HL_EXPORT_FLAGS = 0x80002 };

#ifdef __cplusplus
}
#define HL_ABI_CHECK(condition) static_assert(condition, #condition)
#else
#define HL_ABI_CHECK(condition) _Static_assert(condition, #condition)
#endif

HL_ABI_CHECK(sizeof(struct hlthunk_hw_ip_info) == 336);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, cpucp_version) == 59);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, module_id) == 188);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, dram_page_size) == 224);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, first_available_interrupt_id) == 232);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, device_mem_alloc_default_page_size) == 264);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, security_enabled) == 301);
HL_ABI_CHECK(offsetof(struct hlthunk_hw_ip_info, reserved_dram_size) == 328);
HL_ABI_CHECK(sizeof(struct hlthunk_engines_idle_info) == 40);
HL_ABI_CHECK(sizeof(struct hlthunk_pci_counters_info) == 24);
HL_ABI_CHECK(sizeof(struct hlthunk_clk_throttle_info) == 40);
HL_ABI_CHECK(sizeof(struct hlthunk_open_stats_info) == 24);
HL_ABI_CHECK(sizeof(struct hlthunk_hw_asic_status) == 96);
HL_ABI_CHECK(sizeof(struct hl_info_cs_counters) == 96);
HL_ABI_CHECK(sizeof(struct hl_info_args) == 24);
HL_ABI_CHECK(sizeof(struct hl_cs_chunk) == 64);
HL_ABI_CHECK(sizeof(struct hlthunk_cs_in) == 32);
HL_ABI_CHECK(sizeof(struct hlthunk_cs_out) == 16);
HL_ABI_CHECK(sizeof(struct hlthunk_wait_multi_cs_in) == 24);
HL_ABI_CHECK(sizeof(struct hlthunk_wait_multi_cs_out) == 12);
HL_ABI_CHECK(sizeof(struct hlthunk_page_fault_info) == 32);
HL_ABI_CHECK(sizeof(struct hlthunk_event_record_razwi_event) == 280);
HL_ABI_CHECK(sizeof(struct hlthunk_event_record_undefined_opcode) == 288);
HL_ABI_CHECK(sizeof(struct hl_debug_args) == 40);
HL_ABI_CHECK(sizeof(union hl_mem_args) == 40);

#endif
