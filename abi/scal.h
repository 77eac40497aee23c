/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The part of SCAL's C ABI that concerns device memory, as the vendor's public source has it from 1.16
 * to 1.21: only facts, no code. SCAL is the library below SynapseAI that allocates a device's memory in
 * pools.
 */
#ifndef GAUDI_DIRECT_ABI_SCAL_H
#define GAUDI_DIRECT_ABI_SCAL_H

#include "abi/hlthunk.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SCAL_SUCCESS = 0,
    SCAL_FAILURE = -1,
    SCAL_INVALID_PARAM = -4,
    SCAL_OUT_OF_MEMORY = -5,
    SCAL_NOT_FOUND = -11
};

typedef struct scal_handle_t__* scal_handle_t;
typedef struct scal_pool_handle_t__* scal_pool_handle_t;
typedef struct scal_buffer_handle_t__* scal_buffer_handle_t;
typedef struct scal_arc_fw_config_handle_t__* scal_arc_fw_config_handle_t;

typedef struct _scal_memory_pool_info {
    scal_handle_t scal;
    const char* name;
    unsigned idx;
    uint64_t device_base_address; /* where the pool begins */
    void* host_base_address;      /* of pools in host memory */
    uint32_t core_base_address;
    uint64_t totalSize;
    uint64_t freeSize;
} scal_memory_pool_info;

typedef struct _scal_memory_pool_infoV2 {
    scal_handle_t scal;
    const char* name;
    unsigned idx;
    uint64_t device_base_address;
    void* host_base_address;
    uint32_t core_base_address;
    uint64_t totalSize;
    uint64_t freeSize;
    uint64_t device_base_allocated_address; /* where the driver's mapping begins that the pool lies in */
} scal_memory_pool_infoV2;

typedef struct _scal_buffer_info_t {
    scal_pool_handle_t pool;
    uint32_t core_address;
    void* host_address;
    uint64_t device_address;
} scal_buffer_info_t;

int scal_set_logs_folder(const char* logs_folder);
int scal_init(int fd, const char* config_file_path, scal_handle_t* scal, scal_arc_fw_config_handle_t config);
void scal_destroy(scal_handle_t scal);
int scal_get_fd(scal_handle_t scal);
int scal_get_handle_from_fd(int fd, scal_handle_t* scal);
uint32_t scal_get_sram_size(scal_handle_t scal);
int scal_get_pool_handle_by_name(scal_handle_t scal, const char* pool_name, scal_pool_handle_t* pool);
int scal_get_pool_handle_by_id(scal_handle_t scal, unsigned pool_id, scal_pool_handle_t* pool);
int scal_pool_get_info(scal_pool_handle_t pool, scal_memory_pool_info* info);
int scal_pool_get_infoV2(scal_pool_handle_t pool, scal_memory_pool_infoV2* info);
int scal_allocate_buffer(scal_pool_handle_t pool, uint64_t size, scal_buffer_handle_t* buffer);
int scal_allocate_aligned_buffer(scal_pool_handle_t pool, uint64_t size, uint64_t alignment,
                                 scal_buffer_handle_t* buffer);
int scal_free_buffer(scal_buffer_handle_t buffer);
int scal_buffer_get_info(scal_buffer_handle_t buffer, scal_buffer_info_t* info);

HL_ABI_CHECK(sizeof(scal_memory_pool_info) == 64);
HL_ABI_CHECK(offsetof(scal_memory_pool_info, device_base_address) == 24);
HL_ABI_CHECK(sizeof(scal_memory_pool_infoV2) == 72);
HL_ABI_CHECK(offsetof(scal_memory_pool_infoV2, totalSize) == 48);
HL_ABI_CHECK(offsetof(scal_memory_pool_infoV2, device_base_allocated_address) == 64);
HL_ABI_CHECK(sizeof(scal_buffer_info_t) == 32);

#ifdef __cplusplus
}
#endif
#endif
