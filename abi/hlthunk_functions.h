/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hl-thunk's functions that programs linked to it call here, as the vendor declares them.
 */
#ifndef GAUDI_DIRECT_ABI_HLTHUNK_FUNCTIONS_H
#define GAUDI_DIRECT_ABI_HLTHUNK_FUNCTIONS_H

#include "abi/hlthunk.h"

#ifdef __cplusplus
extern "C" {
#endif

int hlthunk_open(enum hlthunk_device_name, const char*);
int hlthunk_open_by_module_id(uint32_t);
int hlthunk_open_control(int, const char*);
int hlthunk_open_control_by_module_id(uint32_t);
int hlthunk_open_control_by_bus_id(const char*);
int hlthunk_close(int);
uint32_t hlthunk_get_device_id_from_fd(int);
enum hlthunk_device_name hlthunk_get_device_name_from_fd(int);
int hlthunk_get_pci_bus_id_from_fd(int, char*, int);
int hlthunk_get_device_index_from_pci_bus_id(const char*);
int hlthunk_get_device_count(enum hlthunk_device_name);
int hlthunk_get_hw_ip_info(int, struct hlthunk_hw_ip_info*);
int hlthunk_get_dram_usage(int, struct hlthunk_dram_usage_info*);
enum hl_device_status hlthunk_get_device_status_info(int);
bool hlthunk_is_device_idle(int);
int hlthunk_get_busy_engines_mask(int, struct hlthunk_engines_idle_info*);
int hlthunk_get_dev_memalloc_page_orders(int, uint64_t*);
int hlthunk_get_sync_manager_info(int, int, struct hlthunk_sync_manager_info*);
int hlthunk_get_open_stats(int, struct hlthunk_open_stats_info*);
int hlthunk_get_cs_counters_info(int, struct hl_info_cs_counters*);
int hlthunk_get_clk_rate(int, uint32_t*, uint32_t*);
int hlthunk_get_clk_throttle_info(int, struct hlthunk_clk_throttle_info*);
int hlthunk_get_reset_count_info(int, struct hlthunk_reset_count_info*);
int hlthunk_get_power_info(int, struct hlthunk_power_info*);
int hlthunk_get_total_energy_consumption_info(int, struct hlthunk_energy_info*);
int hlthunk_get_pci_counters_info(int, struct hlthunk_pci_counters_info*);
int hlthunk_get_pll_frequency(int, uint32_t, struct hlthunk_pll_frequency_info*);
int hlthunk_get_device_utilization(int, uint32_t, uint32_t*);
int hlthunk_get_engine_status(int, char*, uint32_t, int*);
int hlthunk_get_hw_events_arr(int, bool, uint32_t, uint32_t*);
int hlthunk_get_event_record(int, enum hlthunk_event_record_id, void*);
int hlthunk_get_dram_replaced_rows_info(int, struct hlthunk_dram_replaced_rows_info*);
int hlthunk_get_dram_pending_rows_info(int, uint32_t*);
int hlthunk_get_time_sync_info(int, struct hlthunk_time_sync_info*);
int hlthunk_get_page_fault_info(int, struct hlthunk_page_fault_info*, uint32_t);
uint64_t hlthunk_device_memory_alloc(int, uint64_t, uint64_t, bool, bool);
int hlthunk_device_memory_free(int, uint64_t);
uint64_t hlthunk_device_memory_map(int, uint64_t, uint64_t);
uint64_t hlthunk_host_memory_map(int, void*, uint64_t, uint64_t);
uint64_t hlthunk_host_memory_map_flags(int, void*, uint64_t, uint64_t, uint32_t);
int hlthunk_memory_unmap(int, uint64_t);
int hlthunk_device_memory_export_dmabuf_fd(int, uint64_t, uint64_t, uint32_t);
int hlthunk_device_mapped_memory_export_dmabuf_fd(int, uint64_t, uint64_t, uint64_t, uint32_t);
int hlthunk_request_command_buffer(int, uint32_t, uint64_t*);
int hlthunk_request_mapped_command_buffer(int, uint32_t, uint64_t*);
int hlthunk_destroy_command_buffer(int, uint64_t);
int hlthunk_command_submission(int, struct hlthunk_cs_in*, struct hlthunk_cs_out*);
int hlthunk_wait_for_cs(int, uint64_t, uint64_t, uint32_t*);
int hlthunk_wait_for_multi_cs(int, struct hlthunk_wait_multi_cs_in*, struct hlthunk_wait_multi_cs_out*);
void* hlthunk_malloc(size_t);
void hlthunk_free(void*);
void hlthunk_profiler_destroy(void);
int hlthunk_notifier_create(int);
int hlthunk_notifier_release(int, int);
int hlthunk_notifier_recv(int, int, uint64_t*, uint64_t*, uint32_t, uint32_t);

#ifdef __cplusplus
}
#endif
#endif
