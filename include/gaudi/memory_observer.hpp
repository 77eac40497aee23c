// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>
#include <memory>

namespace gaudi {

// Where a device's memory lies in this process.
struct memory_window {
    device_address base;
    std::uint64_t size = 0;
    unsigned device_index = 0;
};

// Hears of device memory that comes and goes in this process, whoever opened or allocated it. For layers that
// cache what they know about addresses (UCX does). Called from any thread, and window_opens and window_closes
// with locks held: these two must not call back into this library. memory_goes may.
class memory_observer {
public:
    virtual ~memory_observer() = default;
    virtual void window_opens(const memory_window& window) = 0;
    virtual void window_closes(const memory_window& window) = 0;
    // The range is about to be given back: what is kept about it must be forgotten before this returns.
    // False: somebody may still touch the memory, and nobody shall get it again.
    virtual bool memory_goes(device_address base, std::uint64_t length) = 0;
};

// Tells the observer of the windows there are, then of everything that happens while it lives. Kept weakly.
// In a child of fork nobody observes.
void observe_memory(const std::shared_ptr<memory_observer>& observer);

} // namespace gaudi
