// SPDX-License-Identifier: BSD-3-Clause
// SynapseAI's exported functions: the library and its devices.
#include "abi/hlthunk_functions.h"
#include "lab/synapse/exported.hpp"
#include "lab/synapse/library.hpp"

#include <cstring>
#include <string>

namespace lab::synapse {
namespace {

synStatus count_devices(std::uint32_t* count, int type) {
    if (!initialized())
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

} // namespace
} // namespace lab::synapse

SYN_EXPORT(synInitialize, (void), (0), { return initialize(); })

SYN_EXPORT(synDestroy, (void), (0), { return destroy(); })

SYN_EXPORT(synDriverGetVersion, (char* version, int length), (version, length),
           { return copy_text("gaudi-lab", version, length); })

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

// Of the lab alone.
extern "C" [[gnu::visibility("default")]] int gaudi_lab_synapse_arm_faults(const char* script) {
    return lab::arm_faults(script);
}
