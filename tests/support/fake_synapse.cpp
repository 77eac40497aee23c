// SPDX-License-Identifier: BSD-3-Clause
// Plays SynapseAI's part: holds a device in this process, owns all of its memory, and tells its descriptor
// when asked.
#include "tests/support/hlthunk_functions.h"

#include <cstdint>
#include <cstring>

namespace {

struct device_info_v2 {
    std::uint64_t sram_base, dram_base;
    std::uint32_t sram_size;
    std::uint64_t dram_size, tpc_enabled_mask;
    std::uint8_t dram_enabled;
    std::uint32_t device_id, fd, device_type;
    std::uint8_t device_index;
    std::uint64_t global_hbm_base;
};

device_info_v2 acquired{};

} // namespace

extern "C" [[gnu::visibility("default")]] int fake_synapse_acquire(const char* bus_id,
                                                                   std::uint64_t pool_size) {
    const int fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id);
    if (fd < 0)
        return fd;
    const auto handle = hlthunk_device_memory_alloc(fd, pool_size, 0, false, false);
    acquired.fd = static_cast<std::uint32_t>(fd);
    acquired.global_hbm_base = hlthunk_device_memory_map(fd, handle, 0);
    acquired.dram_size = pool_size;
    return 0;
}

extern "C" [[gnu::visibility("default")]] std::uint64_t fake_synapse_pool() {
    return acquired.global_hbm_base;
}

extern "C" [[gnu::visibility("default")]] void fake_synapse_release() {
    hlthunk_close(static_cast<int>(acquired.fd));
    acquired = {};
}

extern "C" [[gnu::visibility("default")]] int synDeviceGetInfoV2(std::uint32_t device, device_info_v2* info) {
    if (device != 0 || acquired.fd == 0)
        return 1;
    std::memcpy(static_cast<void*>(info), &acquired, sizeof(acquired));
    return 0;
}
