// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>

#include "ucx/base/module.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace gaudi_ucx {

// Keeps UCX's memory-type cache correct: UCX takes a miss for host memory and would then access device
// addresses with the CPU.
//
// The address range of Gaudi memory, which contains no valid x86-64 address, is in the cache as unknown: UCX
// then queries this plugin, which also finds what SynapseAI allocated in the meantime. The first query about
// a device determines whether its driver exports memory; from then on every window of the device is in the
// cache as Gaudi memory, with or without the flag that lets UCX register it with NICs. Freed memory stays in
// the cache as Gaudi memory, because no CPU may access it, but registration caches drop it.
class publisher : public gaudi::memory_observer {
public:
    explicit publisher(uct_gaudi_module& module);
    // Starts the publisher once; creates the cache if UCX has not done so yet.
    static void start(uct_gaudi_module& module);

    void window_opens(const gaudi::memory_window& window) override;
    void window_closes(const gaudi::memory_window& window) override;
    bool memory_goes(gaudi::device_address base, std::uint64_t length) override;

    // Whether NICs can register the device's memory; none while that is unknown.
    [[nodiscard]] std::optional<bool> registrable(unsigned device_index);
    // The result of a first export; kept until the device's last window closes.
    void set_registrable(unsigned device_index, bool registrable);

private:
    // With the mutex held.
    void set(const gaudi::memory_window& range);
    void set_unknown(std::uint64_t base, std::uint64_t size);
    [[nodiscard]] ucs_sys_device_t sys_device(unsigned device_index) const;

    uct_gaudi_module& module_;
    std::mutex mutex_;
    std::map<std::uint64_t, gaudi::memory_window> windows_; // by base
    std::map<unsigned, bool> registrable_;                  // by device
};

// A component's query_md_resources: one memory domain for all Gaudis. Without a Gaudi there is no domain, and
// no warning.
ucs_status_t query_if_any_gaudi(uct_component_t* component, uct_md_resource_desc_t** resources_p,
                                unsigned* num_resources_p);
// Fills in UCX's system devices by the devices' bus ids.
void learn_sys_devices(uct_gaudi_module& module, const std::vector<gaudi::device_info>& devices);

} // namespace gaudi_ucx
