// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>
#include <memory>

namespace gaudi {

/// The range of addresses in which a device's memory lies in this process.
struct memory_window {
    device_address base;
    std::uint64_t size = 0;
    unsigned device_index = 0;
};

/// Is notified of device memory that appears and disappears in this process, no matter which code opened the
/// device or allocated the memory. For layers that cache what they know about addresses, such as UCX. The
/// functions are called from any thread. window_opens() and window_closes() are called with locks held and
/// must not call into this library; memory_goes() may.
class memory_observer {
public:
    virtual ~memory_observer() = default;
    /// The window exists from now on.
    virtual void window_opens(const memory_window& window) = 0;
    /// The window no longer exists, nor does any memory in it.
    virtual void window_closes(const memory_window& window) = 0;
    /// The range is about to be freed: the observer must drop what it keeps about the range before it
    /// returns. false: the memory may still be accessed and must never be allocated again.
    virtual bool memory_goes(device_address base, std::uint64_t length) = 0;
};

/// Reports the present windows to the observer, then every change while it lives. The library keeps a weak
/// reference to it. A child of fork has no observers.
void observe_memory(const std::shared_ptr<memory_observer>& observer);

} // namespace gaudi
