// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/synapse.hpp"

#include <cstddef>
#include <dlfcn.h>
#include <type_traits>

namespace gaudi {
namespace {

// synDeviceInfoV2 in the layout of the vendor's header; older headers call the last field reserved.
struct device_info_v2 {
    std::uint64_t sram_base;
    std::uint64_t dram_base;
    std::uint32_t sram_size;
    std::uint64_t dram_size;
    std::uint64_t tpc_enabled_mask;
    std::uint8_t dram_enabled;
    std::uint32_t device_id;
    std::uint32_t fd;
    std::uint32_t device_type;
    std::uint8_t device_index;
    std::uint64_t global_hbm_base;
    std::uint64_t slack[8]; // newer libraries may write more
};
static_assert(offsetof(device_info_v2, fd) == 48);

using get_info_v2 = int (*)(std::uint32_t, device_info_v2*);

// SynapseAI's symbols may be global or not: Python loads it with RTLD_LOCAL.
void* find_symbol(const char* name) {
    void* symbol = ::dlsym(RTLD_DEFAULT, name);
    // RTLD_NOLOAD: this library never brings SynapseAI into a process, it only meets it there.
    if (symbol == nullptr)
        if (void* loaded = ::dlopen("libSynapse.so", RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
            symbol = ::dlsym(loaded, name);
            // Takes back the reference of dlopen: whether SynapseAI stays loaded is the program's decision.
            ::dlclose(loaded);
        }
    return symbol;
}

} // namespace

std::optional<synapse_device> find_synapse_device(std::uint32_t synapse_id) {
    const auto get_info = reinterpret_cast<get_info_v2>(find_symbol("synDeviceGetInfoV2"));
    device_info_v2 info{};
    // The descriptor is valid in this process alone, and stays SynapseAI's: it is never closed here.
    if (get_info == nullptr || get_info(synapse_id, &info) != 0 || info.fd == 0)
        return std::nullopt;
    synapse_device device;
    device.id = synapse_id;
    device.fd = static_cast<int>(info.fd);
    device.pool_base = device_address(info.global_hbm_base != 0 ? info.global_hbm_base : info.dram_base);
    device.pool_size = info.dram_size;
    return device;
}

std::optional<synapse_device> find_synapse_device_of(int fd) {
    for (std::uint32_t id = 0; id < most_synapse_devices; ++id)
        if (auto device = find_synapse_device(id); device && device->fd == fd)
            return device;
    return std::nullopt;
}

std::optional<synapse_copies> find_synapse_copies() {
    synapse_copies copies;
    bool complete = true;
    const auto take = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find_symbol(name));
        complete = complete && function != nullptr;
    };
    take(copies.synStreamCreateGeneric, "synStreamCreateGeneric");
    take(copies.synStreamDestroy, "synStreamDestroy");
    take(copies.synMemCopyAsync, "synMemCopyAsync");
    take(copies.synHostMap, "synHostMap");
    take(copies.synHostUnmap, "synHostUnmap");
    take(copies.synEventCreate, "synEventCreate");
    take(copies.synEventDestroy, "synEventDestroy");
    take(copies.synEventRecord, "synEventRecord");
    take(copies.synEventQuery, "synEventQuery");
    if (!complete)
        return std::nullopt;
    return copies;
}

} // namespace gaudi
