// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/transfer/copy_job.hpp"

namespace gaudi {

// One way for bytes to get from one place to another. Thread-safe.
class path {
public:
    path() = default;
    virtual ~path() = default;
    path(const path&) = delete;
    path& operator=(const path&) = delete;

    [[nodiscard]] virtual copy_path which() const = 0;
    // Why it is not for places of these kinds, or nullptr. Asks nobody, so it costs nothing.
    [[nodiscard]] virtual const char* unsuited(const copy_job& job) const = 0;
    // Everything short of the copy: the path is viable, or the reason why it is not.
    [[nodiscard]] virtual result<void> prepare(const copy_job& job) = 0;
    // errc::too_many_operations: there will be room a little later.
    [[nodiscard]] virtual result<copy_ticket> start(const copy_job& job) = 0;

    // Nothing of the device is kept any more.
    virtual void forget(unsigned device_index) { (void)device_index; }
    // Nothing is kept of devices that are lost.
    virtual void drop_lost() {}
};

class device_table;
class pending_copies;
class slab_pool;

// What paths share.
struct path_tools {
    device_table& devices;
    pending_copies& pending;
    std::shared_ptr<slab_pool> slabs;
    bool keep = true;
};

// One function a path, each in its own file.
std::unique_ptr<path> make_host_copy();
std::unique_ptr<path> make_engine(const path_tools& tools);
std::unique_ptr<path> make_owner_context(const path_tools& tools);
std::unique_ptr<path> make_peer_dmabuf(const path_tools& tools);
std::unique_ptr<path> make_staged(const path_tools& tools);
std::unique_ptr<path> make_owner_proxy(const path_tools& tools);

} // namespace gaudi
