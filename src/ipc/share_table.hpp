// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>

#include "src/ipc/handle.hpp"
#include "src/os/unique_fd.hpp"

#include <map>
#include <vector>

namespace gaudi {

// A lease, as the owner records it.
struct lease_record {
    std::uint64_t base = 0, length = 0, generation = 0; // identify the allocation
    std::uint64_t secret = 0;                           // identifies what of it was shared
    // The owner relies on this flag only: the importer can write to the lease table, which merely announces
    // it.
    bool revoked = false;
    bool closing = false;      // removed when its copies have completed
    bool dmabuf_given = false; // passed to the importer and not released
    unsigned copies = 0;       // in flight, made by the owner for this lease

    // A secret of 0 means any.
    [[nodiscard]] bool opened_with(std::uint64_t which) const { return which == 0 || which == secret; }
};

// What a handle opens: exactly the bytes it was made for.
struct shared_piece {
    std::uint64_t offset = 0, length = 0;
    bool separate = false; // made by share_separately(): not returned for a second call
    // A DMA-BUF of its pages alone, kept while there are leases.
    unique_fd dmabuf;
    std::uint64_t skip = 0, window = 0;
};

struct shared_allocation {
    std::uint64_t base = 0, length = 0, generation = 0;
    unsigned device_index = 0;
    std::map<std::uint64_t, shared_piece> pieces; // by the secret in the handle

    [[nodiscard]] bool is_of(const lease_record& lease) const {
        return lease.base == base && lease.length == length && lease.generation == generation;
    }
};

// The allocations that this process shares. A handle is valid while its secret is in the table. SynapseAI's
// allocations are not known: each range of its pool that is shared counts as one, of generation 0, and such
// ranges may overlap.
class share_table {
public:
    // The secret for [offset, offset + length) of an allocation: an existing one is reused, unless it is
    // `separate`.
    std::uint64_t add(const allocation_view& allocation, std::uint64_t offset, std::uint64_t length,
                      bool separate);
    // The allocation that a handle was made for. errc::handle_stale.
    [[nodiscard]] result<const shared_allocation*> find(const handle_record& handle) const;
    // What a lease refers to; none where it was freed or revoked since.
    struct leased {
        const shared_allocation* allocation = nullptr;
        shared_piece* piece = nullptr;
        explicit operator bool() const { return piece != nullptr; }
    };
    [[nodiscard]] leased find(const lease_record& lease);
    // The allocation that holds the address; of SynapseAI's pool, all ranges that do.
    [[nodiscard]] std::vector<shared_allocation*> holding(device_address address);
    // Whether an allocation begins in the range.
    [[nodiscard]] bool any_in(device_address base, std::uint64_t length) const;

    // Invalidates handles to memory that holds the address: a separate one, or all of them where the secret
    // is 0. False where there is no such handle. What has no handles stays until its leases are closed.
    bool revoke(device_address address, std::uint64_t secret);
    void erase(const shared_allocation& allocation) {
        allocations_.erase({allocation.base, allocation.length});
    }
    // Called when a lease was closed: drops what was kept for its secret or its allocation, if it was the
    // last.
    void lease_closed(const lease_record& closed, bool last_of_piece, bool last_of_allocation);
    // Forgets what begins in the range.
    void erase_in(device_address base, std::uint64_t length) {
        allocations_.erase(first_from(base), first_from(base + length));
    }
    void clear() { allocations_.clear(); }
    [[nodiscard]] std::vector<std::uint64_t> bases() const;
    [[nodiscard]] std::size_t size() const { return allocations_.size(); }

private:
    using key = std::pair<std::uint64_t, std::uint64_t>; // base, length
    using allocation_map = std::map<key, shared_allocation>;
    [[nodiscard]] allocation_map::const_iterator first_from(device_address base) const {
        return allocations_.lower_bound({base.value(), 0});
    }

    allocation_map allocations_;
};

} // namespace gaudi
