// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/ipc.hpp>

#include "ucx/base/module.hpp"

#include <mutex>

namespace gaudi_ucx {

struct uct_gaudi_ipc_md_t {
    uct_md_t super;
    uct_gaudi_module* module;
    bool statistics;
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
