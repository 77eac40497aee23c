// SPDX-License-Identifier: BSD-3-Clause
#include "lab/synapse/library.hpp"

#include <mutex>
#include <utility>

namespace lab::synapse {
namespace {

std::mutex library_mutex; // guards what follows
bool is_initialized = false;
std::shared_ptr<device> acquired;

} // namespace

synStatus initialize() {
    const std::lock_guard guard(library_mutex);
    is_initialized = true;
    return synSuccess;
}

synStatus destroy() {
    {
        const std::lock_guard guard(library_mutex);
        if (!is_initialized)
            return synUninitialized;
        is_initialized = false;
    }
    (void)release();
    return synSuccess;
}

bool initialized() {
    const std::lock_guard guard(library_mutex);
    return is_initialized;
}

synStatus acquire(synDeviceId* id, const device::choice& wanted) {
    const std::lock_guard guard(library_mutex);
    if (terminated())
        return synSynapseTerminated;
    if (!is_initialized)
        return synUninitialized;
    if (id == nullptr)
        return synInvalidArgument;
    *id = UINT32_MAX;
    if (acquired != nullptr)
        return synDeviceAlreadyAcquired;
    std::unique_ptr<device> opened;
    const auto status = device::acquire(wanted, opened);
    if (status != synSuccess)
        return status;
    acquired = std::move(opened);
    *id = 0;
    return synSuccess;
}

synStatus release() {
    std::shared_ptr<device> last; // destroyed without the mutex: it waits for its streams
    {
        const std::lock_guard guard(library_mutex);
        last.swap(acquired);
    }
    return last != nullptr ? synSuccess : synNoDeviceFound;
}

current find_device(synDeviceId id, synStatus without) {
    const std::lock_guard guard(library_mutex);
    if (terminated())
        return {nullptr, synSynapseTerminated};
    if (!is_initialized)
        return {nullptr, synUninitialized};
    if (acquired == nullptr || id != 0)
        return {nullptr, without};
    return {acquired, synSuccess};
}

} // namespace lab::synapse
