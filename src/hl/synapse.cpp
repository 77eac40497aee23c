// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/synapse.hpp"

#include <cstddef>
#include <dlfcn.h>

namespace gaudi {
namespace {

// synDeviceInfoV2 as the vendor's header lays it out; older ones call the last field reserved.
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

} // namespace

std::optional<synapse_device> find_synapse_device(std::uint32_t synapse_id) {
    void* symbol = ::dlsym(RTLD_DEFAULT, "synDeviceGetInfoV2");
    if (symbol == nullptr) // Python loads it without making its names global
        if (void* loaded = ::dlopen("libSynapse.so", RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
            symbol = ::dlsym(loaded, "synDeviceGetInfoV2");
            ::dlclose(loaded);
        }
    const auto get_info = reinterpret_cast<get_info_v2>(symbol);
    device_info_v2 info{};
    if (get_info == nullptr || get_info(synapse_id, &info) != 0 || info.fd == 0)
        return std::nullopt;
    synapse_device found;
    found.fd = static_cast<int>(info.fd);
    found.pool_base = device_address(info.global_hbm_base != 0 ? info.global_hbm_base : info.dram_base);
    found.pool_size = info.dram_size;
    return found;
}

} // namespace gaudi
