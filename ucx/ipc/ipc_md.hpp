// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/ipc.hpp>

#include "ucx/base/module.hpp"

#include <map>
#include <mutex>

namespace gaudi_ucx {

// The handles in keys that are packed for any peer. Registrations of the same memory share one handle, which
// ends with the last of them.
class shared_handles {
public:
    struct memory { // an allocation; of SynapseAI's pool, the registered range, of generation 0
        gaudi::device_address base;
        std::uint64_t length = 0, generation = 0;
        auto operator<=>(const memory&) const = default;
    };
    // `used`: whether the caller's registration is counted; set to true.
    gaudi::result<gaudi::memory_handle> acquire(const memory& wanted, bool& used);
    // Call it once for each registration that is counted. The last one revokes the handle and waits for the
    // peers' copies; errc::leased: one is still in flight.
    gaudi::result<void> release(const memory& registered);

private:
    struct counted_handle {
        gaudi::memory_handle handle;
        unsigned users = 0;
    };
    std::mutex mutex_;
    std::map<memory, counted_handle> entries_;
};

struct uct_gaudi_ipc_md_t {
    uct_md_t super;
    uct_gaudi_module* module;
    bool statistics;
    shared_handles handles;
};

inline uct_gaudi_ipc_md_t& ipc_md(uct_md_h md) {
    return *reinterpret_cast<uct_gaudi_ipc_md_t*>(md);
}

// Another process's memory by its handle; imported on first use.
struct uct_gaudi_ipc_rkey_t {
    gaudi::memory_handle handle;
    std::uint64_t base = 0; // the owner's address of the first byte that the handle opens
    std::mutex mutex;
    std::optional<gaudi::imported_buffer> opened;
};

// Registration with UCX; the transport is registered after its domain.
void register_ipc_md(uct_gaudi_module& module);
void register_ipc_iface(uct_gaudi_module& module);

} // namespace gaudi_ucx
