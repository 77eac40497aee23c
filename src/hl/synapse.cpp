// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/synapse.hpp"

#include "abi/scal.h"
#include "abi/synapse.h"
#include "src/hl/generation.hpp"
#include "src/os/round_up.hpp"

#include <dlfcn.h>
#include <type_traits>

namespace gaudi {
namespace {

// Newer libraries may write more than this header knows.
struct device_info_v2 {
    synDeviceInfoV2 known{};
    std::uint64_t slack[8]{};
};

// The symbols of SynapseAI's libraries may be global or not: Python loads them with RTLD_LOCAL.
void* find_symbol(const char* name, const char* library) {
    void* symbol = ::dlsym(RTLD_DEFAULT, name);
    // RTLD_NOLOAD: this library never brings SynapseAI into a process, it only meets it there.
    if (symbol == nullptr)
        if (void* loaded = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
            symbol = ::dlsym(loaded, name);
            // Takes back the reference of dlopen: whether SynapseAI stays loaded is the program's decision.
            ::dlclose(loaded);
        }
    return symbol;
}

template <typename F>
F* find_function(const char* name, const char* library = "libSynapse.so") {
    return reinterpret_cast<F*>(find_symbol(name, library));
}

std::optional<synapse_pool> pool_of_scal(int fd) {
    constexpr const char* library = "libscal.so";
    const auto handle_of =
        find_function<decltype(scal_get_handle_from_fd)>("scal_get_handle_from_fd", library);
    const auto pool_by_name =
        find_function<decltype(scal_get_pool_handle_by_name)>("scal_get_pool_handle_by_name", library);
    const auto describe = find_function<decltype(scal_pool_get_infoV2)>("scal_pool_get_infoV2", library);
    scal_handle_t scal = nullptr;
    scal_pool_handle_t pool = nullptr;
    scal_memory_pool_infoV2 info{};
    if (handle_of == nullptr || pool_by_name == nullptr || describe == nullptr ||
        handle_of(fd, &scal) != SCAL_SUCCESS || pool_by_name(scal, "global_hbm", &pool) != SCAL_SUCCESS ||
        describe(pool, &info) != SCAL_SUCCESS)
        return std::nullopt;
    return synapse_pool{device_address(info.device_base_address), info.totalSize,
                        device_address(info.device_base_allocated_address), synapse_pool::source::scal};
}

} // namespace

std::optional<synapse_device> find_synapse_device(std::uint32_t synapse_id) {
    using get_info = synStatus(synDeviceId, device_info_v2*);
    const auto get_info_v2 = find_function<get_info>("synDeviceGetInfoV2");
    device_info_v2 info; // zeroed: SynapseAI up to 1.17 leaves the last field as it is
    // The descriptor is valid in this process alone, and stays SynapseAI's: it is never closed here.
    if (get_info_v2 == nullptr || get_info_v2(synapse_id, &info) != synSuccess || info.known.fd == 0)
        return std::nullopt;
    return synapse_device{synapse_id, static_cast<int>(info.known.fd), info.known.dramSize,
                          info.known.dramBaseAddress, info.known.globalHbmBaseAddress};
}

std::vector<synapse_pool> possible_pools(const synapse_device& device, generation kind, std::uint64_t page) {
    std::vector<synapse_pool> candidates;
    if (const auto pool = pool_of_scal(device.fd))
        candidates.push_back(*pool);
    // The base is the mapping's: SCAL's own pools may lie before SynapseAI's in it. The mapping consists of
    // whole pages, of which SynapseAI's pool leaves less than one to the others (gotcha 36).
    const device_address mapped(device.global_hbm_base);
    if (device.global_hbm_base != 0 && page != 0)
        candidates.push_back(
            {mapped, round_up(device.pool_size, page), mapped, synapse_pool::source::device_info});
    if (traits_of(kind).exports == export_call::physical) {
        const device_address base(device.dram_base);
        candidates.push_back({base, device.pool_size, base, synapse_pool::source::device_info});
    }
    return candidates;
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
        using pointer = std::remove_reference_t<decltype(function)>;
        function = find_function<std::remove_pointer_t<pointer>>(name);
        complete = complete && function != nullptr;
    };
    take(copies.synStreamCreateGeneric, "synStreamCreateGeneric");
    take(copies.synStreamDestroy, "synStreamDestroy");
    take(copies.synStreamSynchronize, "synStreamSynchronize");
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
