// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_path.hpp>
#include <gaudi/error.hpp>
#include <gaudi/memory_observer.hpp>

#include "ucx/abi/ucx_api.hpp"
#include "ucx/base/loss_listeners.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <string_view>

namespace gaudi_ucx {

// Bytes by path, and other statistics for users. Shown in vfs and by STATISTICS.
struct uct_gaudi_counters {
    std::atomic<std::uint64_t> allocations{0}, allocated_bytes{0};
    std::atomic<std::uint64_t> registrations{0};
    std::atomic<std::uint64_t> exports{0}; // DMA-BUF descriptors passed to UCX
    std::atomic<std::uint64_t> short_bytes{0}, bcopy_bytes{0}, zcopy_bytes{0}; // by gaudi_cpy
    std::atomic<std::uint64_t> loopback_bytes{0};                              // part of these, by a NIC
    std::atomic<std::uint64_t> dma_bytes{0};                                   // by gaudi_dma
    std::array<std::atomic<std::uint64_t>, gaudi::copy_paths> ipc_bytes{};     // by gaudi_ipc and path
    std::atomic<std::uint64_t> frees_announced{0};
};

class publisher;

struct uct_gaudi_module;

// UCX's component, with a pointer to its module.
struct uct_gaudi_component_t {
    uct_component_t super;
    uct_gaudi_module* module;
};

// The plugin as one UCX sees it. Two UCX in a process get one module each. Never destroyed: UCX keeps
// pointers into it until the process ends.
struct uct_gaudi_module {
    uct_gaudi_component_t copy{{}, this}, ipc{{}, this};
    uct_tl_t copy_tl, dma_tl, ipc_tl;
    ucx_api ucx;
    ucs_log_component_config_t log;
    uct_gaudi_counters counters;
    std::atomic<bool> warned_of_exports{false}; // warned that an export failed
    std::atomic<bool> warned_of_handles{false}; // warned of a PyTorch handle in place of an address
    std::atomic<bool> warned_of_nics{false};    // warned that no NIC registers DMA-BUFs
    std::atomic<bool> logged_no_gaudi{false};
    std::shared_ptr<publisher> observer;
    bool gpus_here = false; // of another vendor, whose memory UCX may pass to us
    loss_listeners loss;

    static constexpr unsigned most_devices = 64;
    std::array<std::atomic<ucs_sys_device_t>, most_devices> sys_devices;

    [[nodiscard]] uct_component_t& copy_component() { return copy.super; }
    [[nodiscard]] uct_component_t& ipc_component() { return ipc.super; }
    // Sets the level by its name; false where there is no such level.
    bool set_log_level(std::string_view name);
    [[nodiscard]] bool logs(ucs_log_level_t level) const {
        return level <=
               std::atomic_ref(const_cast<ucs_log_level_t&>(log.log_level)).load(std::memory_order_relaxed);
    }
    void write(ucs_log_level_t level, const char* file, unsigned line, const char* function,
               const std::string& text);
};

inline uct_gaudi_module& module_of(uct_component_t* component) {
    return *reinterpret_cast<uct_gaudi_component_t*>(component)->module;
}

// Writes one line to UCX's log, by UCX's own rules; the level is a value, or a name.
#define gaudi_log_at(module, level, ...)                                                                     \
    do {                                                                                                     \
        const ucs_log_level_t level_of_line = (level);                                                       \
        if ((module).logs(level_of_line))                                                                    \
            (module).write(level_of_line, __FILE__, __LINE__, __func__, fmt::format(__VA_ARGS__));           \
    } while (0)
#define gaudi_log(module, level, ...) gaudi_log_at(module, UCS_LOG_LEVEL_##level, __VA_ARGS__)

// Addresses as UCX passes them, host and device alike.
inline std::uint64_t number(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address);
}

// Ends the process where UCX stages through memory of a GPU, which nothing here can access: UCX ignores the
// status of such a copy and would report the message as complete (gotcha U18).
void refuse_gpu_memory(uct_gaudi_module& module, std::uint64_t address, std::size_t length);

// The status by which UCX's callers decide.
[[nodiscard]] ucs_status_t status_of(const gaudi::error& error);

// No exception may pass through UCX: an exception (out of memory) becomes a status.
template <typename F>
ucs_status_t no_throw(F&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return UCS_ERR_NO_MEMORY;
    } catch (...) {
        return UCS_ERR_IO_ERROR;
    }
}

} // namespace gaudi_ucx
