// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/transfer/copy_job.hpp"

namespace gaudi {

// One path for bytes from one place to another. Thread-safe.
class path {
public:
    path() = default;
    virtual ~path() = default;
    path(const path&) = delete;
    path& operator=(const path&) = delete;

    [[nodiscard]] virtual copy_path which() const = 0;
    // Why the path does not suit places of these kinds, or nullptr. Does no I/O and costs nothing.
    [[nodiscard]] virtual const char* unsuited(const copy_job& job) const = 0;
    // Does everything but the copy: succeeds if the path is viable, else returns the reason.
    [[nodiscard]] virtual result<void> prepare(const copy_job& job) = 0;
    // errc::too_many_operations: there will be room later.
    [[nodiscard]] virtual result<copy_ticket> start(const copy_job& job) = 0;

    // Releases everything that is kept of the device.
    virtual void forget(unsigned device_index) { (void)device_index; }
    // Releases everything that is kept of lost devices.
    virtual void drop_lost() {}
};

class device_table;
class pending_copies;
class slab_pool;

// What all paths use.
struct path_tools {
    device_table& devices;
    pending_copies& pending;
    std::shared_ptr<slab_pool> slabs;
    bool keep = true;
};

// One factory per path, each in its own file.
std::unique_ptr<path> make_host_copy();
std::unique_ptr<path> make_engine(const path_tools& tools);
std::unique_ptr<path> make_owner_context(const path_tools& tools);
std::unique_ptr<path> make_peer_dmabuf(const path_tools& tools);
std::unique_ptr<path> make_staged(const path_tools& tools);
std::unique_ptr<path> make_owner_proxy(const path_tools& tools);

} // namespace gaudi
