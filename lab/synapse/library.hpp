// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/synapse/device.hpp"

#include <memory>

// SynapseAI as this process has it: initialized or not, with one device at most.
namespace lab::synapse {

synStatus initialize(); // a second call is ignored
synStatus destroy();    // releases the device
[[nodiscard]] bool initialized();

synStatus acquire(synDeviceId* id, const device::choice& wanted);
// Ends the device when the last call that uses it has returned.
synStatus release();

// The device, or the status where there is none. A call holds it until it returns.
struct current {
    std::shared_ptr<device> held;
    synStatus status = synSuccess;
};
[[nodiscard]] current find_device(synDeviceId id, synStatus without = synFail);

template <typename Body>
synStatus with_device(synDeviceId id, Body&& body, synStatus without = synFail) {
    const auto found = find_device(id, without);
    return found.held == nullptr ? found.status : body(*found.held);
}

} // namespace lab::synapse
