// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/loopback.hpp>

#include "ucx/base/operations.hpp"
#include "ucx/copy/copy_md.hpp"

#include <map>
#include <vector>

namespace gaudi_ucx {

struct uct_gaudi_copy_iface_config_t {
    uct_iface_config_t super;
    size_t max_short, max_bcopy, max_zcopy;
    double to_device, from_device, within; // bytes per second
    double latency;                        // seconds, one small copy
    double nic_latency;                    // the same through a NIC
    double overhead;                       // seconds of CPU to start one
};

// Copies on the engines of this process's devices. One interface serves them all; it belongs to one worker,
// and so to one thread at a time.
struct uct_gaudi_copy_iface_t {
    uct_base_iface_t super; // UCX's part; it must come first
    uint64_t id;
    uct_gaudi_copy_iface_config_t config;

    operations<gaudi::copy_ticket> copies;
    std::map<unsigned, gaudi::copy_engine> engines;
    // For small copies, by device; empty where it was tried in vain.
    std::map<unsigned, std::optional<gaudi::loopback>> loops;
    bool nic_there = false;        // one that might do it
    std::vector<std::byte> bounce; // for bcopy
    int event_fd = -1;             // an epoll set over the engines' event descriptors

    [[nodiscard]] uct_gaudi_copy_md_t& md() { return copy_md(super.md); }
    [[nodiscard]] uct_gaudi_module& module() { return *md().module; }
};

struct uct_gaudi_copy_ep_t {
    uct_base_ep_t super;
};

inline uct_gaudi_copy_iface_t& copy_iface(uct_iface_h iface) {
    return *reinterpret_cast<uct_gaudi_copy_iface_t*>(iface);
}

// Operations of an endpoint, for the interface's table.
void fill_copy_ep_ops(uct_iface_ops_t& ops);

// Waits for every copy that runs, and tells their completions.
void drain(uct_gaudi_copy_iface_t& iface);
unsigned progress(uct_gaudi_copy_iface_t& iface);
// The NIC's way for small copies of a device, or none.
[[nodiscard]] gaudi::loopback* loop_of(uct_gaudi_copy_iface_t& iface, gaudi::device& device,
                                       unsigned device_index);
[[nodiscard]] gaudi::result<gaudi::copy_engine> engine_of(uct_gaudi_copy_iface_t& iface,
                                                          unsigned device_index);

// The transport, for registering it with UCX.
void fill_copy_tl(uct_gaudi_module& module);

} // namespace gaudi_ucx
