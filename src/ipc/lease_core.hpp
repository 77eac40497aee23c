// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hl_device.hpp"
#include "src/ipc/owner_link.hpp"
#include "src/rdma/nic_core.hpp"

namespace gaudi {

// What makes another process's memory reachable from here, each made when it is first needed. Copies under
// way keep what they use.
struct lease_resources {
    fork_private_fd dmabuf;
    std::uint64_t skip = 0, window = 0;
    std::mutex mutex;
    std::map<const hl_device*, std::pair<std::shared_ptr<hl_device>, imported_memory>> imports;
    std::optional<error> no_import; // the driver cannot
    std::optional<error> no_dmabuf; // the owner gives none
    std::map<const nic*, std::pair<std::shared_ptr<nic>, mr_handle>> regions;
    // Who hears when the last of it is gone, and as what.
    std::shared_ptr<owner_link> link;
    std::uint32_t slot = 0;
    unsigned forks = 0;

    ~lease_resources();
};

// An importer's lease of one allocation.
class lease_core {
public:
    // Asks the owner. The memory may also be this process's own.
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
    // It is a parent's.
    [[nodiscard]] bool forked() const;
    // Why, if gone.
    [[nodiscard]] error gone_error() const;

    // A copy begins and ends. errc::lease_revoked, handle_stale, peer_gone, forked.
    result<void> enter();
    void leave();

    // Where the local device sees the memory, by the vendor driver's import.
    result<device_address> imported_by(lease_resources& resources, const std::shared_ptr<hl_device>& device);
    // The key of the memory on a NIC of this process.
    result<std::uint32_t> key_on(lease_resources& resources, const std::shared_ptr<nic>& nic);
    // Kept by copies under way.
    [[nodiscard]] std::shared_ptr<lease_resources> resources() const;
    // The owner is gone, or takes the memory back: its device must not stay busy because of us.
    void release_resources();

private:
    result<void> fetch_dmabuf(lease_resources& resources);

    const handle_record handle_;
    std::shared_ptr<owner_link> link_;
    std::uint32_t slot_ = 0;
    lease_word* word_ = nullptr;
    mutable std::mutex mutex_; // guards the pointer
    std::shared_ptr<lease_resources> resources_ = std::make_shared<lease_resources>();
    unsigned forks_;
};

} // namespace gaudi
