// SPDX-License-Identifier: BSD-3-Clause
// SynapseAI's exported functions: devices, memory, streams and events. Graphs are not there: a program that
// needs them does not load.
#include "lab/synapse/device.hpp"
#include "lab/synapse/exported.hpp"
#include "lab/synapse/stream.hpp"

#include "abi/hlthunk_functions.h"

#include <cstring>
#include <string>

// Of the virtual hl-thunk: what the schedulers of the device do, which no public call reaches.
extern "C" int gaudi_lab_scheduler_copy(int fd, uint64_t source, uint64_t target, uint64_t size);
extern "C" int gaudi_lab_scheduler_fill(int fd, uint64_t target, uint64_t count, const void* value,
                                        uint32_t width);

namespace lab::synapse {
namespace {

std::mutex library_mutex;
bool initialized = false;
std::shared_ptr<device> acquired;
std::atomic<std::uint64_t> copied{0};

// The device, or the status where there is none. A call holds it until it returns.
struct current {
    std::shared_ptr<device> held;
    synStatus status = synSuccess;
};
current find_device(synDeviceId id, synStatus without = synFail) {
    const std::lock_guard guard(library_mutex);
    if (terminated())
        return {nullptr, synSynapseTerminated};
    if (!initialized)
        return {nullptr, synUninitialized};
    if (acquired == nullptr || id != 0)
        return {nullptr, without};
    return {acquired, synSuccess};
}

template <typename Body>
synStatus with_device(synDeviceId id, Body&& body, synStatus without = synFail) {
    const auto found = find_device(id, without);
    return found.held == nullptr ? found.status : body(*found.held);
}

template <typename Body>
synStatus with_stream(synStreamHandle handle, Body&& body) {
    return with_device(0, [&](device& of) {
        const auto found = of.find(handle);
        return found == nullptr ? synStatus{synInvalidArgument} : body(of, *found);
    });
}

template <typename Body>
synStatus with_event(synEventHandle handle, Body&& body) {
    return with_device(0, [&](device& of) {
        const auto found = of.find(handle);
        return found == nullptr ? synStatus{synInvalidEventHandle} : body(found);
    });
}

synStatus acquire(synDeviceId* id, const device::choice& wanted) {
    const std::lock_guard guard(library_mutex);
    if (terminated())
        return synSynapseTerminated;
    if (!initialized)
        return synUninitialized;
    if (id == nullptr)
        return synInvalidArgument;
    *id = UINT32_MAX;
    if (acquired != nullptr)
        return synDeviceAlreadyAcquired;
    std::unique_ptr<device> fresh;
    const auto status = device::acquire(wanted, fresh);
    if (status != synSuccess)
        return status;
    acquired = std::move(fresh);
    *id = 0;
    return synSuccess;
}

synStatus release() {
    std::shared_ptr<device> last; // destroyed without the mutex: it waits for its streams
    {
        const std::lock_guard guard(library_mutex);
        last.swap(acquired);
    }
    return last != nullptr ? synSuccess : synNoDeviceFound;
}

synStatus count_devices(std::uint32_t* count, int type) {
    const std::lock_guard guard(library_mutex);
    if (!initialized)
        return synUninitialized;
    if (count == nullptr)
        return synInvalidArgument;
    const auto number_of = [](hlthunk_device_name name) {
        const int number = hlthunk_get_device_count(name);
        return number > 0 ? static_cast<std::uint32_t>(number) : 0;
    };
    *count = type == synDeviceTypeSize ? number_of(HLTHUNK_DEVICE_DONT_CARE)
             : type == synDeviceGaudi  ? number_of(HLTHUNK_DEVICE_GAUDI)
             : type == synDeviceGaudi2 ? number_of(HLTHUNK_DEVICE_GAUDI2)
             : type == synDeviceGaudi3 ? number_of(HLTHUNK_DEVICE_GAUDI3)
                                       : 0;
    return synSuccess;
}

synStatus copy_text(const std::string& text, char* into, int length) {
    if (into == nullptr || length <= 0)
        return synInvalidArgument;
    std::strncpy(into, text.c_str(), static_cast<std::size_t>(length) - 1);
    into[length - 1] = '\0';
    return synSuccess;
}

// Both sides are translated when the copy is submitted: host memory must be mapped then.
synStatus copy(synStreamHandle on, std::uint64_t source, std::uint64_t size, std::uint64_t target,
               int direction) {
    return with_stream(on, [&](device& of, stream& work) {
        if (direction < HOST_TO_DRAM || direction > DRAM_TO_DRAM)
            return synInvalidArgument;
        const auto from = direction == HOST_TO_DRAM ? of.device_address(source, size) : source;
        const auto to = direction == DRAM_TO_HOST ? of.device_address(target, size) : target;
        if (from == 0 || to == 0)
            return synMappingNotFound;
        // A copy that fails leaves the device in an error state, which the driver reports.
        work.push([fd = of.fd(), from, to, size] {
            if (gaudi_lab_scheduler_copy(fd, from, to, size) == 0)
                ++copied;
        });
        return synSuccess;
    });
}

template <typename T>
synStatus fill(synStreamHandle on, std::uint64_t target, T value, std::size_t count) {
    return with_stream(on, [&](device& of, stream& work) {
        work.push([fd = of.fd(), target, value, count] {
            (void)gaudi_lab_scheduler_fill(fd, target, count, &value, sizeof(value));
        });
        return synSuccess;
    });
}

} // namespace
} // namespace lab::synapse

#define SYN_EXPORT(name, parameters, arguments, ...)                                                         \
    SYNAPSE_EXPORT_AS(synFail, synStatus, name, parameters, arguments, __VA_ARGS__)

// ---- the library ----

SYN_EXPORT(synInitialize, (void), (0), {
    const std::lock_guard guard(library_mutex);
    initialized = true; // a second call is ignored
    return synSuccess;
})

SYN_EXPORT(synDestroy, (void), (0), {
    {
        const std::lock_guard guard(library_mutex);
        if (!initialized)
            return synUninitialized;
        initialized = false;
    }
    (void)release();
    return synSuccess;
})

SYN_EXPORT(synDriverGetVersion, (char* version, int length), (version, length),
           { return copy_text("gaudi-lab", version, length); })

// ---- devices ----

SYN_EXPORT(synDeviceGetCount, (uint32_t * count), (count),
           { return count_devices(count, synDeviceTypeSize); })

SYN_EXPORT(synDeviceGetCountByDeviceType, (uint32_t * count, int type), (count, type),
           { return count_devices(count, type); })

SYN_EXPORT(synDeviceCount, (uint32_t count[synDeviceTypeSize]), (count), {
    for (int type = 0; type < synDeviceTypeSize; ++type)
        if (const auto status = count_devices(count + type, type); status != synSuccess)
            return status;
    return synSuccess;
})

SYN_EXPORT(synDeviceGetModuleIDs, (uint32_t * modules, uint32_t* size), (modules, size), {
    uint32_t total = 0;
    if (const auto status = count_devices(&total, synDeviceTypeSize); status != synSuccess)
        return status;
    if (modules == nullptr || size == nullptr)
        return synInvalidArgument;
    *size = 0;
    for (synModuleId module = 0; module < 8; ++module)
        if (const int control = hlthunk_open_control_by_module_id(module); control >= 0) {
            modules[(*size)++] = module;
            hlthunk_close(control);
        }
    return synSuccess;
})

SYN_EXPORT(synDeviceAcquireByDeviceType, (synDeviceId * id, int type), (id, type), {
    return acquire(id, {type, std::nullopt, nullptr});
})

SYN_EXPORT(synDeviceAcquireByModuleId, (synDeviceId * id, synModuleId module), (id, module), {
    return acquire(id, {synDeviceTypeInvalid, module, nullptr});
})

SYN_EXPORT(synDeviceAcquire, (synDeviceId * id, const char* bus_id), (id, bus_id), {
    const bool any = bus_id == nullptr || *bus_id == '\0';
    return acquire(id, {synDeviceTypeInvalid, std::nullopt, any ? nullptr : bus_id});
})

SYN_EXPORT(synDeviceRelease, (synDeviceId id), (id), {
    return with_device(
        id, [](device&) { return release(); }, synNoDeviceFound);
})

SYN_EXPORT(synDeviceSynchronize, (synDeviceId id), (id), {
    return with_device(id, [](device& of) {
        of.synchronize();
        return synSuccess;
    });
})

SYN_EXPORT(synDeviceGetName, (char* name, int length, synDeviceId id), (name, length, id), {
    return with_device(id, [&](device& of) {
        synDeviceInfoV2 info{};
        of.info(info);
        return copy_text(info.deviceType == synDeviceGaudi3 ? "GAUDI3" : "GAUDI2", name, length);
    });
})

SYN_EXPORT(synDeviceGetPCIBusId, (char* bus_id, int length, synDeviceId id), (bus_id, length, id), {
    return with_device(id, [&](device& of) {
        return hlthunk_get_pci_bus_id_from_fd(of.fd(), bus_id, length) == 0 ? synSuccess : synDeviceReset;
    });
})

SYN_EXPORT(synDeviceGetInfo, (synDeviceId id, synDeviceInfo* info), (id, info), {
    return with_device(id, [&](device& of) {
        if (info == nullptr)
            return synInvalidArgument;
        synDeviceInfoV2 all{};
        of.info(all);
        std::memcpy(info, &all, sizeof(*info)); // the second version begins with the first
        return synSuccess;
    });
})

SYN_EXPORT(synDeviceGetInfoV2, (synDeviceId id, synDeviceInfoV2* info), (id, info), {
    return with_device(
        id, [&](device& of) { return info == nullptr ? synStatus{synInvalidArgument} : of.info(*info); });
})

SYN_EXPORT(synDeviceGetMemoryInfo, (synDeviceId id, uint64_t* free, uint64_t* total), (id, free, total), {
    return with_device(id, [&](device& of) {
        if (free == nullptr || total == nullptr)
            return synInvalidArgument;
        of.memory(*free, *total);
        return synSuccess;
    });
})

SYN_EXPORT(synDeviceGetAttribute, (uint64_t * value, const int* attribute, unsigned count, synDeviceId id),
           (value, attribute, count, id), {
               return with_device(id, [&](device& of) {
                   if (value == nullptr || attribute == nullptr)
                       return synInvalidArgument;
                   synDeviceInfoV2 info{};
                   of.info(info);
                   std::uint64_t free = 0, total = 0;
                   of.memory(free, total);
                   const std::uint64_t values[] = {info.sramBaseAddress,
                                                   info.dramBaseAddress,
                                                   info.sramSize,
                                                   info.dramSize,
                                                   free,
                                                   info.tpcEnabledMask,
                                                   info.dramEnabled,
                                                   static_cast<std::uint64_t>(info.deviceType)};
                   for (unsigned i = 0; i < count; ++i) {
                       if (attribute[i] < 0 || attribute[i] > DEVICE_ATTRIBUTE_DEVICE_TYPE)
                           return synInvalidArgument;
                       value[i] = values[attribute[i]];
                   }
                   return synSuccess;
               });
           })

// ---- memory ----

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

// ---- streams and events ----

SYN_EXPORT(synStreamCreateGeneric, (synStreamHandle * stream, synDeviceId id, uint32_t flags),
           (stream, id, flags), {
               return with_device(id, [&](device& of) {
                   return stream == nullptr || flags != 0 ? synStatus{synInvalidArgument}
                                                          : of.create_stream(stream);
               });
           })

SYN_EXPORT(synStreamDestroy, (synStreamHandle stream), (stream),
           { return with_device(0, [&](device& of) { return of.destroy_stream(stream); }); })

SYN_EXPORT(synStreamWaitEvent, (synStreamHandle stream, synEventHandle event, uint32_t flags),
           (stream, event, flags), {
               return with_event(event, [&](const std::shared_ptr<lab::synapse::event>& awaited) {
                   return with_stream(stream, [&](device&, lab::synapse::stream& work) {
                       work.push([awaited] { (void)awaited->wait(); });
                       return synSuccess;
                   });
               });
           })

SYN_EXPORT(synStreamSynchronize, (synStreamHandle stream), (stream), {
    return with_stream(stream, [](device&, lab::synapse::stream& work) {
        work.wait();
        return terminated() ? synSynapseTerminated : synSuccess;
    });
})

SYN_EXPORT(synStreamQuery, (synStreamHandle stream), (stream), {
    return with_stream(
        stream, [](device&, lab::synapse::stream& work) { return work.idle() ? synSuccess : synBusy; });
})

SYN_EXPORT(synEventCreate, (synEventHandle * event, synDeviceId id, uint32_t flags), (event, id, flags), {
    return with_device(id, [&](device& of) {
        return event == nullptr || flags > EVENT_COLLECT_TIME ? synStatus{synInvalidArgument}
                                                              : of.create_event(event);
    });
})

SYN_EXPORT(synEventDestroy, (synEventHandle event), (event),
           { return with_device(0, [&](device& of) { return of.destroy_event(event); }); })

SYN_EXPORT(synEventRecord, (synEventHandle event, synStreamHandle stream), (event, stream), {
    return with_event(event, [&](const std::shared_ptr<lab::synapse::event>& recorded) {
        return with_stream(stream, [&](device&, lab::synapse::stream& work) {
            work.push([recorded, number = recorded->record()] {
                if (!terminated()) // work of a failed device never completes
                    recorded->reached(number);
            });
            return synSuccess;
        });
    });
})

SYN_EXPORT(synEventQuery, (synEventHandle event), (event), {
    return with_event(event,
                      [](const std::shared_ptr<lab::synapse::event>& asked) { return asked->query(); });
})

SYN_EXPORT(synEventSynchronize, (synEventHandle event), (event), {
    return with_event(event,
                      [](const std::shared_ptr<lab::synapse::event>& awaited) { return awaited->wait(); });
})

SYN_EXPORT(synEventElapsedTime, (uint64_t * nanoseconds, synEventHandle begin, synEventHandle end),
           (nanoseconds, begin, end), {
               if (nanoseconds == nullptr)
                   return synInvalidArgument;
               return with_event(begin, [&](const std::shared_ptr<lab::synapse::event>& first) {
                   return with_event(end, [&](const std::shared_ptr<lab::synapse::event>& last) {
                       if (first->query() != synSuccess || last->query() != synSuccess)
                           return synStatus{synBusy};
                       const auto taken = last->time() - first->time();
                       *nanoseconds = static_cast<uint64_t>(taken.count() > 0 ? taken.count() : 0);
                       return synStatus{synSuccess};
                   });
               });
           })

SYN_EXPORT(synMemCopyAsync,
           (synStreamHandle stream, uint64_t source, uint64_t size, uint64_t target, int direction),
           (stream, source, size, target, direction),
           { return copy(stream, source, size, target, direction); })

SYN_EXPORT(synMemCopyAsyncMultiple,
           (synStreamHandle stream, const uint64_t* sources, const uint64_t* sizes, const uint64_t* targets,
            int direction, uint64_t count),
           (stream, sources, sizes, targets, direction, count), {
               if (sources == nullptr || sizes == nullptr || targets == nullptr)
                   return synInvalidArgument;
               for (uint64_t i = 0; i < count; ++i)
                   if (const auto status = copy(stream, sources[i], sizes[i], targets[i], direction);
                       status != synSuccess)
                       return status;
               return synSuccess;
           })

SYN_EXPORT(synMemsetD8Async, (uint64_t address, unsigned char value, size_t count, synStreamHandle stream),
           (address, value, count, stream), { return fill(stream, address, value, count); })

SYN_EXPORT(synMemsetD16Async, (uint64_t address, uint16_t value, size_t count, synStreamHandle stream),
           (address, value, count, stream), { return fill(stream, address, value, count); })

SYN_EXPORT(synMemsetD32Async, (uint64_t address, uint32_t value, size_t count, synStreamHandle stream),
           (address, value, count, stream), { return fill(stream, address, value, count); })

// ---- of the lab alone ----

extern "C" [[gnu::visibility("default")]] int gaudi_lab_synapse_arm_faults(const char* script) {
    return lab::arm_faults(script);
}

extern "C" [[gnu::visibility("default")]] uint64_t gaudi_lab_synapse_copied() {
    return lab::synapse::copied;
}

extern "C" [[gnu::visibility("default")]] uint64_t gaudi_lab_synapse_mapped() {
    const auto found = lab::synapse::find_device(0);
    return found.held != nullptr ? found.held->mapped() : 0;
}
