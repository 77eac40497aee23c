// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "abi/scal.h"
#include "abi/synapse.h"
#include "lab/synapse/handle_table.hpp"
#include "lab/synapse/stream.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace lab::synapse {

// The device that this process has acquired: SynapseAI has one at most, whose number is 0.
class device {
public:
    // By module, by PCI address, or any, in this order; `type`: synDeviceTypeInvalid for any.
    struct choice {
        int type = synDeviceTypeInvalid;
        std::optional<synModuleId> module;
        const char* bus_id = nullptr;
    };
    static synStatus acquire(const choice& wanted, std::unique_ptr<device>& acquired);
    ~device();
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    [[nodiscard]] int fd() const { return compute_; }
    synStatus info(synDeviceInfoV2& info) const;
    void memory(std::uint64_t& free, std::uint64_t& total) const;

    synStatus allocate(std::uint64_t size, std::uint64_t& address);
    synStatus free(std::uint64_t address);
    // Host memory is known by its pointer and mapped to the device.
    synStatus map(const void* memory, std::uint64_t size);
    synStatus unmap(const void* memory);
    // The device address of mapped host memory, which stays mapped until unmap(). 0: it is not mapped.
    [[nodiscard]] std::uint64_t device_address(std::uint64_t host, std::uint64_t size);
    [[nodiscard]] std::uint64_t mapped() const; // ranges
    synStatus allocate_host(std::uint64_t size, void** memory);
    synStatus free_host(const void* memory);

    [[nodiscard]] handle_table<stream>& streams() { return streams_; }
    [[nodiscard]] handle_table<event>& events() { return events_; }
    // Waits until all streams are empty.
    void synchronize();

private:
    device() = default;
    synStatus open(const choice& wanted);
    static synStatus open_control(const choice& wanted, int& control, int type);
    void watch();

    int control_ = -1, compute_ = -1, notifier_ = -1;
    int type_ = synDeviceTypeInvalid, index_ = 0;
    hlthunk_hw_ip_info hardware_{};
    scal_handle_t scal_ = nullptr;
    scal_pool_handle_t pool_ = nullptr;

    mutable std::mutex mutex_; // guards what follows
    std::map<std::uint64_t, scal_buffer_handle_t> allocations_;
    struct host_mapping {
        std::uint64_t size, address;
    };
    std::map<std::uint64_t, host_mapping> mapped_; // by host address
    std::map<std::uint64_t, std::uint64_t> host_allocations_;

    handle_table<stream> streams_;
    handle_table<event> events_;

    std::atomic<bool> releasing_{false};
    std::thread watcher_;
};

// What the vendor's library does when the device fails: every later call returns synSynapseTerminated, and
// the process is killed five seconds later unless TERMINATE_SYNAPSE_UPON_DFA says otherwise.
void device_failed(const char* why);
[[nodiscard]] bool terminated();

} // namespace lab::synapse
