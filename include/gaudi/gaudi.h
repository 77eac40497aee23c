/* SPDX-License-Identifier: BSD-3-Clause */
/** \file
 * Gaudi memory for C and for languages that can call C (Python's ctypes, Rust, Go). A small part of the C++
 * library with a stable ABI: functions are only added, and structures begin with their own size.
 *
 * Every function may be called from any thread. A status other than GAUDI_OK tells the caller what to do;
 * gaudi_last_error() describes what was observed. */
#ifndef GAUDI_GAUDI_H
#define GAUDI_GAUDI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The outcome of a call: what the caller should do about it. */
typedef enum gaudi_status {
    GAUDI_OK = 0,
    GAUDI_UNSUPPORTED = 1,   /**< this machine, driver or device cannot do it: use an alternative */
    GAUDI_NOT_PERMITTED = 2, /**< the rights are missing */
    GAUDI_BUSY = 3,          /**< another user holds it: try again later, or choose another */
    GAUDI_EXHAUSTED = 4,     /**< no room left: free something */
    GAUDI_INVALID = 5,       /**< the request is not valid: fix the caller */
    GAUDI_PEER_GONE = 6,     /**< the peer is no longer there */
    GAUDI_DEVICE_LOST = 7    /**< the device failed or was reset: close and open it again */
} gaudi_status;

/** An open device. A process opens each device once: further gaudi_open() calls share it, and the device is
 * closed by the last gaudi_close(). */
typedef struct gaudi_device gaudi_device;

/** What is known of a device. */
typedef struct gaudi_device_info {
    size_t struct_size;  /**< set by the caller: sizeof(gaudi_device_info) */
    uint32_t index;      /**< as in /dev/accel/accelN */
    uint32_t generation; /**< 1: Gaudi, 2: Gaudi2, 3: Gaudi3; 0: not known */
    uint32_t module_id;
    int32_t numa_node; /**< -1: not known */
    uint64_t memory_total, memory_free;
    char bus_id[16]; /**< the PCI address, ended by a zero byte */
} gaudi_device_info;

/** A live allocation. */
typedef struct gaudi_memory_info {
    size_t struct_size;    /**< set by the caller */
    uint64_t base, length; /**< of the allocation that contains the address */
    uint64_t generation;   /**< never repeats in a process */
    uint32_t device_index;
} gaudi_memory_info;

/** The arguments of ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access). */
typedef struct gaudi_dmabuf {
    size_t struct_size; /**< set by the caller */
    int fd;             /**< the caller owns and closes it */
    uint64_t offset, iova, length;
} gaudi_dmabuf;

/** The number of devices that this process may use. */
gaudi_status gaudi_device_count(uint32_t* count);
/** Opens a device. which: NULL or "auto" (a device that this process has open, else the first free one, those
 * close to this thread's processors first), an index ("0"), a PCI bus id, or "module:<id>". Free all memory
 * before the last close: it ends with the device. */
gaudi_status gaudi_open(const char* which, gaudi_device** device);
/** Closes a device. No later call may use the handle. */
void gaudi_close(gaudi_device* device);
/** Describes an open device. Memory figures are those at the time of the call. */
gaudi_status gaudi_query_device(gaudi_device* device, gaudi_device_info* info);

/** Allocates device memory in whole pages of 4 KiB. The address is no pointer: the CPU cannot access it. */
gaudi_status gaudi_allocate(gaudi_device* device, uint64_t size, uint64_t* address);
/** Frees memory of gaudi_allocate(). GAUDI_INVALID for anything else, also for a second call. */
gaudi_status gaudi_free(gaudi_device* device, uint64_t address);
/** Describes the allocation, on any open device of this process, that contains the address. GAUDI_INVALID:
 * none does. */
gaudi_status gaudi_query_memory(uint64_t address, gaudi_memory_info* info);

/** Copies host memory to the device, by its DMA engines or by the call of a SynapseAI that has acquired it,
 * or by a NIC where neither is possible (Gaudi3). Returns when the copy has completed. */
gaudi_status gaudi_copy_in(gaudi_device* device, uint64_t to, const void* from, uint64_t size);
/** Copies device memory to the host, as gaudi_copy_in(). */
gaudi_status gaudi_copy_out(gaudi_device* device, void* to, uint64_t from, uint64_t size);
/** Copies within the device, as gaudi_copy_in(). */
gaudi_status gaudi_copy_within(gaudi_device* device, uint64_t to, uint64_t from, uint64_t size);

/** Exports device memory as a DMA-BUF. As for copies, size must be at least 1. The descriptor covers the
 * chunk that the memory lies in, with other allocations: register [offset, offset + length) of it in this
 * process, and pass it to no other process. */
gaudi_status gaudi_export(gaudi_device* device, uint64_t address, uint64_t size, gaudi_dmabuf* dmabuf);
/** As gaudi_export(), but the descriptor covers only the pages around the range: for other processes. */
gaudi_status gaudi_export_pages(gaudi_device* device, uint64_t address, uint64_t size, gaudi_dmabuf* dmabuf);

/** The last error of this thread, with its remedy; valid until the thread's next call. */
const char* gaudi_last_error(void);
/** The library's version. */
const char* gaudi_version(void);

#ifdef __cplusplus
}
#endif

#endif
