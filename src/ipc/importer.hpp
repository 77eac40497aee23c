// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/lease_core.hpp"

#include <set>
#include <unordered_map>

namespace gaudi {

// This process's imports: leases that are in use or cached, and the connections to their owners. One per
// process; a child of fork starts with an empty one.
class importer {
public:
    static importer& self();

    result<std::shared_ptr<lease_core>> open(const handle_record& handle);
    void drop_all();
    // Releases the resources of leases that were revoked or whose owner has ended. Owners wait for the
    // release of those they revoked.
    void release_revoked();
    // Whether the owner is known to have ended, because a connection to it ended.
    [[nodiscard]] bool lost(const std::array<std::uint64_t, 2>& owner);
    void count(ipc_statistics& into);

private:
    struct key {
        std::array<std::uint64_t, 2> owner;
        std::uint64_t base, generation, secret;
        friend bool operator==(const key&, const key&) = default;
    };
    struct key_hash {
        std::size_t operator()(const key& of) const { return checksum64(&of, sizeof(of)); }
    };
    struct kept {
        std::shared_ptr<lease_core> lease;
        std::uint64_t last_use = 0;
    };

    result<std::shared_ptr<owner_link>> link_to(const process_identity& owner, const ipc_settings& settings);
    void owner_gone(const process_identity& owner);
    void evict(std::size_t limit, std::vector<std::shared_ptr<lease_core>>& out);

    std::mutex mutex_;
    std::unordered_map<key, kept, key_hash> leases_;
    // Also leases that were evicted from leases_.
    std::unordered_map<key, std::weak_ptr<lease_core>, key_hash> in_use_;
    std::map<std::array<std::uint64_t, 2>, std::weak_ptr<owner_link>> links_;
    std::set<std::array<std::uint64_t, 2>> lost_; // owners that ended
    std::uint64_t uses_ = 0;
    ipc_statistics counts_;
};

} // namespace gaudi
