// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>

#include "ucx/base/module.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace gaudi_ucx {

// Keeps UCX's memory-type cache true: a miss there means host memory to UCX, which would then touch device
// addresses.
//
// The address range where Gaudis have their memory, which is no valid x86-64 address, is in it as unknown:
// UCX asks us then, and finds what SynapseAI took in the meantime. The first question about a device finds
// out whether its driver exports memory; from then on every window of the device is in the cache as Gaudi
// memory, with or without the flag that lets UCX register it with NICs. Freed memory stays Gaudi memory in
// the cache (nobody shall touch it) but caches of registrations let it go.
class publisher : public gaudi::memory_observer {
public:
    explicit publisher(uct_gaudi_module& module);
    // Starts it, once; makes the cache if UCX has not done so yet.
    static void start(uct_gaudi_module& module);

    void window_opens(const gaudi::memory_window& window) override;
    void window_closes(const gaudi::memory_window& window) override;
    bool memory_goes(gaudi::device_address base, std::uint64_t length) override;

    // Whether NICs can register the device's memory; none where it is not known yet.
    [[nodiscard]] std::optional<bool> registrable(unsigned device_index);
    // What was found out by an export; kept until the device's last window closes.
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

// A component's answer to "which memory domains": one for all Gaudis. No Gaudi, no domain, and no word about
// it.
ucs_status_t query_if_any_gaudi(uct_component_t* component, uct_md_resource_desc_t** resources_p,
                                unsigned* num_resources_p);
// Fills in UCX's system devices from the devices' bus ids.
void learn_sys_devices(uct_gaudi_module& module, const std::vector<gaudi::device_info>& devices);

} // namespace gaudi_ucx
