/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The part of SynapseAI's C ABI that manages devices, memory, streams and events, as the vendor's public
 * source has it: only facts, no code. Enumerations are int in it; names follow the vendor's.
 */
#ifndef GAUDI_DIRECT_ABI_SYNAPSE_H
#define GAUDI_DIRECT_ABI_SYNAPSE_H

#include "abi/hlthunk.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* synStatus */
       synSuccess = 0,
       synInvalidArgument = 1,
       synOutOfHostMemory = 3,
       synNoDeviceFound = 8,
       synDeviceTypeMismatch = 9,
       synDeviceReset = 17,
       synUnsupported = 18,
       synDeviceAlreadyAcquired = 20,
       synBusy = 22,
       synFail = 26,
       synUninitialized = 28,
       synAlreadyInitialized = 29,
       synSynapseTerminated = 31, /* the device failed; the process is killed 5 s later */
       synInvalidEventHandle = 33,
       synMappingNotFound = 34
};
enum { HOST_TO_DRAM, DRAM_TO_HOST, DRAM_TO_DRAM };
enum { /* synDeviceType */
       synDeviceGaudi = 2,
       synDeviceGaudi2 = 4,
       synDeviceGaudi3 = 5,
       synDeviceTypeInvalid = 7,
       synDeviceTypeSize = 8
};
enum { /* synDeviceAttribute */
       DEVICE_ATTRIBUTE_SRAM_BASE_ADDRESS,
       DEVICE_ATTRIBUTE_DRAM_BASE_ADDRESS,
       DEVICE_ATTRIBUTE_SRAM_SIZE,
       DEVICE_ATTRIBUTE_DRAM_SIZE,
       DEVICE_ATTRIBUTE_DRAM_FREE_SIZE,
       DEVICE_ATTRIBUTE_TPC_ENABLED_MASK,
       DEVICE_ATTRIBUTE_DRAM_ENABLED,
       DEVICE_ATTRIBUTE_DEVICE_TYPE
};
enum { EVENT_COLLECT_TIME = 1 };

typedef int synStatus;
typedef uint32_t synDeviceId, synModuleId;
typedef struct InternalStreamHandle* synStreamHandle;
typedef struct EventInterfaceExternal* synEventHandle;

typedef struct synDeviceInfo {
    uint64_t sramBaseAddress;
    uint64_t dramBaseAddress;
    uint32_t sramSize;
    uint64_t dramSize; /* of the pool that programs allocate from */
    uint64_t tpcEnabledMask;
    uint8_t dramEnabled;
    uint32_t deviceId; /* always 0 */
    uint32_t fd;       /* of the compute device; it belongs to SynapseAI */
    int32_t deviceType;
} synDeviceInfo;

typedef struct synDeviceInfoV2 {
    uint64_t sramBaseAddress;
    uint64_t dramBaseAddress;
    uint32_t sramSize;
    uint64_t dramSize;
    uint64_t tpcEnabledMask;
    uint8_t dramEnabled;
    uint32_t deviceId;
    uint32_t fd;
    int32_t deviceType;
    uint8_t deviceIndex;
    /* Up to 1.17 "reserved", and left as the caller has it. From 1.18 on, by its users, the address at which
     * the driver's mapping begins that the pool lies in. */
    uint64_t globalHbmBaseAddress;
} synDeviceInfoV2;

HL_ABI_CHECK(sizeof(synDeviceInfo) == 56);
HL_ABI_CHECK(offsetof(synDeviceInfo, dramSize) == 24);
HL_ABI_CHECK(sizeof(synDeviceInfoV2) == 72);
HL_ABI_CHECK(offsetof(synDeviceInfoV2, fd) == 48);
HL_ABI_CHECK(offsetof(synDeviceInfoV2, globalHbmBaseAddress) == 64);

synStatus synInitialize(void);
synStatus synDestroy(void);
synStatus synDriverGetVersion(char* version, int length);

synStatus synDeviceGetCount(uint32_t* count);
synStatus synDeviceGetCountByDeviceType(uint32_t* count, int type);
synStatus synDeviceCount(uint32_t count[synDeviceTypeSize]);
synStatus synDeviceGetModuleIDs(uint32_t* modules, uint32_t* size);
synStatus synDeviceAcquireByDeviceType(synDeviceId* device, int type);
synStatus synDeviceAcquireByModuleId(synDeviceId* device, synModuleId module);
synStatus synDeviceAcquire(synDeviceId* device, const char* bus_id);
synStatus synDeviceRelease(synDeviceId device);
synStatus synDeviceSynchronize(synDeviceId device);
synStatus synDeviceGetName(char* name, int length, synDeviceId device);
synStatus synDeviceGetPCIBusId(char* bus_id, int length, synDeviceId device);
synStatus synDeviceGetInfo(synDeviceId device, synDeviceInfo* info);
synStatus synDeviceGetInfoV2(synDeviceId device, synDeviceInfoV2* info);
synStatus synDeviceGetMemoryInfo(synDeviceId device, uint64_t* free, uint64_t* total);
synStatus synDeviceGetAttribute(uint64_t* value, const int* attribute, unsigned count, synDeviceId device);

synStatus synDeviceMalloc(synDeviceId device, uint64_t size, uint64_t requested, uint32_t flags,
                          uint64_t* address);
synStatus synDeviceFree(synDeviceId device, uint64_t address, uint32_t flags);
synStatus synHostMalloc(synDeviceId device, uint64_t size, uint32_t flags, void** memory);
synStatus synHostFree(synDeviceId device, const void* memory, uint32_t flags);
synStatus synHostMap(synDeviceId device, uint64_t size, const void* memory);
synStatus synHostUnmap(synDeviceId device, const void* memory);

synStatus synStreamCreateGeneric(synStreamHandle* stream, synDeviceId device, uint32_t flags);
synStatus synStreamDestroy(synStreamHandle stream);
synStatus synStreamWaitEvent(synStreamHandle stream, synEventHandle event, uint32_t flags);
synStatus synStreamSynchronize(synStreamHandle stream);
synStatus synStreamQuery(synStreamHandle stream);
synStatus synEventCreate(synEventHandle* event, synDeviceId device, uint32_t flags);
synStatus synEventDestroy(synEventHandle event);
synStatus synEventRecord(synEventHandle event, synStreamHandle stream);
synStatus synEventQuery(synEventHandle event);
synStatus synEventSynchronize(synEventHandle event);
synStatus synEventElapsedTime(uint64_t* nanoseconds, synEventHandle begin, synEventHandle end);
synStatus synMemCopyAsync(synStreamHandle stream, uint64_t source, uint64_t size, uint64_t target,
                          int direction);
synStatus synMemCopyAsyncMultiple(synStreamHandle stream, const uint64_t* sources, const uint64_t* sizes,
                                  const uint64_t* targets, int direction, uint64_t count);
synStatus synMemsetD8Async(uint64_t address, unsigned char value, size_t count, synStreamHandle stream);
synStatus synMemsetD16Async(uint64_t address, uint16_t value, size_t count, synStreamHandle stream);
synStatus synMemsetD32Async(uint64_t address, uint32_t value, size_t count, synStreamHandle stream);

#ifdef __cplusplus
}
#endif
#endif
