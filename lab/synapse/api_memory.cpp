// SPDX-License-Identifier: BSD-3-Clause
// SynapseAI's exported functions: memory.
#include "lab/synapse/exported.hpp"
#include "lab/synapse/library.hpp"

SYN_EXPORT(synDeviceMalloc,
           (synDeviceId id, uint64_t size, uint64_t requested, uint32_t flags, uint64_t* address),
           (id, size, requested, flags, address), {
               return with_device(id, [&](device& of) {
                   return address == nullptr ? synStatus{synInvalidArgument} : of.allocate(size, *address);
               });
           })

SYN_EXPORT(synDeviceFree, (synDeviceId id, uint64_t address, uint32_t flags), (id, address, flags), {
    return with_device(
        id, [&](device& of) { return of.free(address); }, synSuccess);
})

SYN_EXPORT(synHostMalloc, (synDeviceId id, uint64_t size, uint32_t flags, void** memory),
           (id, size, flags, memory), {
               return with_device(id, [&](device& of) {
                   return memory == nullptr || size == 0 ? synStatus{synInvalidArgument}
                                                         : of.allocate_host(size, memory);
               });
           })

SYN_EXPORT(synHostFree, (synDeviceId id, const void* memory, uint32_t flags), (id, memory, flags), {
    return with_device(
        id, [&](device& of) { return of.free_host(memory); }, synSuccess);
})

SYN_EXPORT(synHostMap, (synDeviceId id, uint64_t size, const void* memory), (id, size, memory), {
    return with_device(
        id,
        [&](device& of) {
            return memory == nullptr || size == 0 ? synStatus{synInvalidArgument} : of.map(memory, size);
        },
        synInvalidArgument);
})

SYN_EXPORT(synHostUnmap, (synDeviceId id, const void* memory), (id, memory), {
    return with_device(
        id, [&](device& of) { return of.unmap(memory); }, synInvalidArgument);
})

// Of the lab alone.
extern "C" [[gnu::visibility("default")]] uint64_t gaudi_lab_synapse_mapped() {
    const auto current = lab::synapse::find_device(0);
    return current.held != nullptr ? current.held->mapped() : 0;
}
