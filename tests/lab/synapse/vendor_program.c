/* SPDX-License-Identifier: BSD-3-Clause
 * A program for SynapseAI, linked to its libraries by name as one for the vendor's is: it knows nothing of a
 * lab. It prints the address of its memory and how many bytes came back. */
#include "abi/synapse.h"

#include <stdio.h>
#include <string.h>

enum { size = 1 << 20 };

int main(void) {
    synDeviceId device = 0;
    synStreamHandle stream = NULL;
    void *out = NULL, *back = NULL;
    uint64_t there = 0;
    if (synInitialize() != synSuccess ||
        synDeviceAcquireByDeviceType(&device, synDeviceTypeInvalid) != synSuccess)
        return 1;
    if (synHostMalloc(device, size, 0, &out) != synSuccess ||
        synHostMalloc(device, size, 0, &back) != synSuccess ||
        synDeviceMalloc(device, size, 0, 0, &there) != synSuccess ||
        synStreamCreateGeneric(&stream, device, 0) != synSuccess)
        return 2;
    memset(out, 0x5a, size);
    if (synMemCopyAsync(stream, (uint64_t)out, size, there, HOST_TO_DRAM) != synSuccess ||
        synMemCopyAsync(stream, there, size, (uint64_t)back, DRAM_TO_HOST) != synSuccess ||
        synStreamSynchronize(stream) != synSuccess)
        return 3;
    printf("%#llx: %d bytes, %s\n", (unsigned long long)there, size,
           memcmp(out, back, size) == 0 ? "right" : "wrong");
    if (synDeviceFree(device, there, 0) != synSuccess || synStreamDestroy(stream) != synSuccess ||
        synHostFree(device, out, 0) != synSuccess || synHostFree(device, back, 0) != synSuccess ||
        synDeviceRelease(device) != synSuccess || synDestroy() != synSuccess)
        return 4;
    return 0;
}
