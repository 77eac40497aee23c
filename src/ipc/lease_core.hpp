// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hl_device.hpp"
#include "src/ipc/owner_link.hpp"
#include "src/rdma/nic_core.hpp"

namespace gaudi {

// What makes another process's memory accessible from here, each item created when it is first needed. Copies
// in flight hold a reference.
struct lease_resources {
    fork_private_fd dmabuf;
    std::uint64_t skip = 0, window = 0;
    std::mutex mutex;
    std::map<const hl_device*, std::pair<std::shared_ptr<hl_device>, imported_memory>> imports;
    std::optional<error> no_import; // the driver cannot import
    std::optional<error> no_dmabuf; // the owner passes none
    std::map<const nic*, std::pair<std::shared_ptr<nic>, mr_handle>> regions;
    // The connection on which the destructor reports the release, and the lease that it reports.
    std::shared_ptr<owner_link> link;
    std::uint32_t slot = 0;
    unsigned forks = 0;

    ~lease_resources();
};

// An importer's lease of one allocation.
class lease_core : public std::enable_shared_from_this<lease_core> {
public:
    // Requests a lease from the owner.
    static result<std::shared_ptr<lease_core>> open(const std::shared_ptr<owner_link>& link,
                                                    const handle_record& handle);
    explicit lease_core(const handle_record& handle);
    ~lease_core();
    lease_core(const lease_core&) = delete;
    lease_core& operator=(const lease_core&) = delete;

    [[nodiscard]] const handle_record& handle() const { return handle_; }
    [[nodiscard]] bool local() const { return link_ == nullptr; }
    [[nodiscard]] const std::shared_ptr<owner_link>& link() const { return link_; }
    [[nodiscard]] std::uint32_t slot() const { return slot_; }
    [[nodiscard]] device_address base() const { return device_address(handle_.base); }
    [[nodiscard]] bool gone() const;
    // Whether the parent opened it, before a fork.
    // The reason, where gone() is true.
    [[nodiscard]] error gone_error() const;

    // Whether copies may begin. errc::lease_revoked, handle_stale, peer_gone, forked.
    [[nodiscard]] result<void> check() const;
    // Counts a copy as in flight, on which the owner waits before it frees the memory, until what is returned
    // is destroyed. The errors of check().
    result<std::shared_ptr<const void>> begin_copy();

    // The address at which the local device accesses the memory, by the vendor driver's import.
    result<device_address> imported_by(lease_resources& resources, const std::shared_ptr<hl_device>& device);
    // The key of the memory on a NIC of this process.
    result<std::uint32_t> key_on(lease_resources& resources, const std::shared_ptr<nic>& nic);
    // Copies in flight keep them.
    [[nodiscard]] std::shared_ptr<lease_resources> resources() const;
    // Called when the owner has ended or revokes the memory: what is kept here would keep its device busy.
    void release_resources();

private:
    result<void> fetch_dmabuf(lease_resources& resources);

    const handle_record handle_;
    std::shared_ptr<owner_link> link_;
    std::uint32_t slot_ = 0;
    lease_word* word_ = nullptr;
    mutable std::mutex mutex_; // guards resources_
    std::shared_ptr<lease_resources> resources_ = std::make_shared<lease_resources>();
    unsigned forks_;
};

} // namespace gaudi
