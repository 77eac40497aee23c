// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/transfer.hpp"

#include <set>
#include <unordered_map>

namespace gaudi {

// This process's imports: leases that are in use or kept, the connections to their owners, and a NIC for
// copies in loopback. One per process; a child of fork begins anew.
class importer {
public:
    static importer& self();

    result<std::shared_ptr<lease_core>> open(const handle_record& handle);
    // By the first way that is possible. `local`: host memory, or an address of a device of this process.
    struct end {
        std::span<std::byte> host;
        device_address device;
        bool is_device = false;
    };
    result<ipc_ticket> start(const std::shared_ptr<lease_core>& lease, const import_options& options,
                             bool write, const end& local, std::uint64_t offset, std::uint64_t length);
    // An engine on the context that the memory lies in.
    result<copy_engine> context_engine(const std::shared_ptr<lease_core>& lease);
    void drop_all();
    // Of leases that were revoked, or whose owner has ended: owners wait for the former.
    void let_go_of_gone();
    // Known to be gone, because a connection to it ended.
    [[nodiscard]] bool lost(const std::array<std::uint64_t, 2>& owner);
    void count(ipc_statistics& into);

private:
    struct key {
        std::array<std::uint64_t, 2> owner;
        std::uint64_t base, generation, secret;
        friend bool operator==(const key&, const key&) = default;
    };
    struct key_hash {
        std::size_t operator()(const key& of) const { return mix(&of, sizeof(of)); }
    };
    struct kept {
        std::shared_ptr<lease_core> lease;
        std::uint64_t last_use = 0;
    };
    using started = result<std::unique_ptr<ipc_transfer>>;

    result<std::shared_ptr<owner_link>> link_to(const process_identity& owner, const ipc_settings& settings);
    void owner_gone(const process_identity& owner);
    void evict(std::size_t limit, std::vector<std::shared_ptr<lease_core>>& out);
    result<std::shared_ptr<nic_copier>> copier(const std::shared_ptr<device>& near_to);

    // One function a way.
    started try_way(ipc_way way, const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                    std::uint64_t offset, std::uint64_t length);
    started by_local(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                     std::uint64_t offset, std::uint64_t length);
    started by_context(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                       std::uint64_t offset, std::uint64_t length);
    started by_import(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                      std::uint64_t offset, std::uint64_t length);
    started by_nic(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                   std::uint64_t offset, std::uint64_t length);
    started by_staging(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                       std::uint64_t offset, std::uint64_t length);
    started by_proxy(const std::shared_ptr<lease_core>& lease, bool write, const end& local,
                     std::uint64_t offset, std::uint64_t length);

    std::mutex mutex_;
    std::unordered_map<key, kept, key_hash> leases_;
    std::unordered_map<key, std::weak_ptr<lease_core>, key_hash> in_use_; // also those that were evicted
    std::map<std::array<std::uint64_t, 2>, std::weak_ptr<owner_link>> links_;
    std::set<std::array<std::uint64_t, 2>> lost_; // owners that ended
    std::uint64_t uses_ = 0;
    ipc_statistics counts_;
    std::mutex nic_mutex_;
    std::shared_ptr<nic_copier> copier_;
    std::optional<error> no_nic_;
    // Host memory that staged copies go through; kept for the next one.
    std::mutex slabs_mutex_;
    std::vector<mapping> spare_slabs_;
};

} // namespace gaudi
