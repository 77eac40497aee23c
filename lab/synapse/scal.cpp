// SPDX-License-Identifier: BSD-3-Clause
// The virtual SCAL: what UCX, HCL and this project ask it about device memory. An instance is found by the
// number of its descriptor, so that a dup of it is unknown, as in the vendor's library.
#include "abi/scal.h"

#include "lab/synapse/exported.hpp"
#include "lab/synapse/pools.hpp"

#include "abi/hlthunk_functions.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

struct scal_pool_handle_t__ {
    scal_handle_t scal;
    unsigned number;
    lab::synapse::memory_pool* pool;
};

struct scal_handle_t__ {
    int fd = -1;
    std::uint32_t sram_size = 0;
    lab::synapse::device_pools memory;
    std::vector<scal_pool_handle_t__> pools;
    std::mutex mutex; // guards the ranges of the pools
};

struct scal_buffer_handle_t__ {
    scal_pool_handle_t pool;
    std::uint64_t offset;
};

namespace lab::synapse {
namespace {

std::mutex instances_mutex;
std::vector<std::unique_ptr<scal_handle_t__>>& instances() {
    static auto& all = *new std::vector<std::unique_ptr<scal_handle_t__>>; // used until the process ends
    return all;
}

int open(int fd, scal_handle_t* scal) {
    if (scal == nullptr)
        return SCAL_INVALID_PARAM;
    auto created = std::make_unique<scal_handle_t__>();
    created->fd = fd;
    hlthunk_hw_ip_info info{};
    if (hlthunk_get_hw_ip_info(fd, &info) != 0)
        return SCAL_FAILURE;
    created->sram_size = info.sram_size;
    if (const int status = created->memory.open(fd); status != SCAL_SUCCESS)
        return status;
    unsigned number = 0;
    for (auto& pool : created->memory.all())
        created->pools.push_back({created.get(), number++, &pool});
    *scal = created.get();
    const std::lock_guard guard(instances_mutex);
    instances().push_back(std::move(created));
    return SCAL_SUCCESS;
}

// Fills what both structures have in common.
template <typename Info>
int describe(scal_pool_handle_t handle, Info* info) {
    if (handle == nullptr || info == nullptr)
        return SCAL_INVALID_PARAM;
    const std::lock_guard guard(handle->scal->mutex);
    const auto& pool = *handle->pool;
    info->scal = handle->scal;
    info->name = pool.name.c_str();
    info->idx = handle->number;
    info->device_base_address = pool.base;
    info->host_base_address = pool.host;
    info->core_base_address = static_cast<std::uint32_t>(pool.base);
    info->totalSize = pool.size;
    info->freeSize = pool.ranges.left();
    if constexpr (requires { info->device_base_allocated_address; })
        info->device_base_allocated_address = pool.mapping;
    return SCAL_SUCCESS;
}

int take(scal_pool_handle_t pool, std::uint64_t size, std::uint64_t alignment, scal_buffer_handle_t* buffer) {
    if (pool == nullptr || buffer == nullptr || alignment == 0)
        return SCAL_INVALID_PARAM;
    const std::lock_guard guard(pool->scal->mutex);
    const auto offset = pool->pool->ranges.take(size, alignment);
    if (offset == pool_ranges::none)
        return SCAL_OUT_OF_MEMORY;
    *buffer = new scal_buffer_handle_t__{pool, offset};
    return SCAL_SUCCESS;
}

} // namespace
} // namespace lab::synapse

SCAL_EXPORT(int, scal_set_logs_folder, (const char* folder), (folder), { return SCAL_SUCCESS; })

SCAL_EXPORT(int, scal_init,
            (int fd, const char* path, scal_handle_t* scal, scal_arc_fw_config_handle_t config),
            (fd, path, scal, config), { return open(fd, scal); })

SCAL_EXPORT_VOID(scal_destroy, (const scal_handle_t scal), (scal), {
    const std::lock_guard guard(instances_mutex);
    if (std::erase_if(instances(), [&](const auto& each) {
            if (each.get() != scal)
                return false;
            if (!each->memory.close())
                std::fprintf(stderr, "gaudi-lab: SCAL cannot free all memory of the device: a DMA-BUF of it "
                                     "is open\n");
            return true;
        }) == 0)
        std::fprintf(stderr, "gaudi-lab: scal_destroy: unknown handle\n");
})

SCAL_EXPORT(int, scal_get_fd, (const scal_handle_t scal), (scal),
            { return scal == nullptr ? int{SCAL_INVALID_PARAM} : scal->fd; })

SCAL_EXPORT(int, scal_get_handle_from_fd, (int fd, scal_handle_t* scal), (fd, scal), {
    if (scal == nullptr)
        return SCAL_INVALID_PARAM;
    const std::lock_guard guard(instances_mutex);
    for (const auto& each : instances())
        if (each->fd == fd) {
            *scal = each.get();
            return SCAL_SUCCESS;
        }
    return SCAL_FAILURE;
})

SCAL_EXPORT(uint32_t, scal_get_sram_size, (const scal_handle_t scal), (scal),
            { return scal == nullptr ? 0 : scal->sram_size; })

SCAL_EXPORT(int, scal_get_pool_handle_by_name,
            (const scal_handle_t scal, const char* pool_name, scal_pool_handle_t* pool),
            (scal, pool_name, pool), {
                if (scal == nullptr || pool_name == nullptr || pool == nullptr)
                    return SCAL_INVALID_PARAM;
                *pool = nullptr;
                for (auto& each : scal->pools)
                    if (each.pool->name == pool_name)
                        *pool = &each;
                return *pool != nullptr ? SCAL_SUCCESS : SCAL_NOT_FOUND;
            })

SCAL_EXPORT(int, scal_get_pool_handle_by_id,
            (const scal_handle_t scal, const unsigned pool_id, scal_pool_handle_t* pool),
            (scal, pool_id, pool), {
                if (scal == nullptr || pool == nullptr)
                    return SCAL_INVALID_PARAM;
                *pool = pool_id < scal->pools.size() ? &scal->pools[pool_id] : nullptr;
                return *pool != nullptr ? SCAL_SUCCESS : SCAL_NOT_FOUND;
            })

SCAL_EXPORT(int, scal_pool_get_info, (const scal_pool_handle_t pool, scal_memory_pool_info* info),
            (pool, info), { return describe(pool, info); })

SCAL_EXPORT(int, scal_pool_get_infoV2, (const scal_pool_handle_t pool, scal_memory_pool_infoV2* info),
            (pool, info), { return describe(pool, info); })

SCAL_EXPORT(int, scal_allocate_buffer,
            (const scal_pool_handle_t pool, const uint64_t size, scal_buffer_handle_t* buffer),
            (pool, size, buffer), { return take(pool, size, 1, buffer); })

SCAL_EXPORT(int, scal_allocate_aligned_buffer,
            (const scal_pool_handle_t pool, const uint64_t size, const uint64_t alignment,
             scal_buffer_handle_t* buffer),
            (pool, size, alignment, buffer), { return take(pool, size, alignment, buffer); })

SCAL_EXPORT(int, scal_free_buffer, (const scal_buffer_handle_t buffer), (buffer), {
    if (buffer == nullptr)
        return SCAL_INVALID_PARAM;
    {
        const std::lock_guard guard(buffer->pool->scal->mutex);
        buffer->pool->pool->ranges.give_back(buffer->offset);
    }
    delete buffer;
    return SCAL_SUCCESS;
})

SCAL_EXPORT(int, scal_buffer_get_info, (const scal_buffer_handle_t buffer, scal_buffer_info_t* info),
            (buffer, info), {
                if (buffer == nullptr || info == nullptr)
                    return SCAL_INVALID_PARAM;
                const auto& pool = *buffer->pool->pool;
                const auto address = pool.base + buffer->offset;
                *info = {buffer->pool, static_cast<std::uint32_t>(address),
                         pool.host != nullptr ? static_cast<char*>(pool.host) + buffer->offset : nullptr,
                         address};
                return SCAL_SUCCESS;
            })

// Of the lab alone.
extern "C" [[gnu::visibility("default")]] int gaudi_lab_scal_arm_faults(const char* script) {
    return lab::arm_faults(script);
}
