// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>

#include "src/ipc/handle.hpp"
#include "src/os/unique_fd.hpp"

#include <map>

namespace gaudi {

// A lease, as the owner records it.
struct lease_record {
    std::uint64_t base = 0, generation = 0, secret = 0; // identify what was shared
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
        return lease.base == base && lease.generation == generation;
    }
};

// The allocations that this process shares. A handle is valid while its secret is in the table.
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
    // The allocation that holds the address, or nullptr.
    [[nodiscard]] const shared_allocation* holding(device_address address) const;
    // Whether an allocation begins in the range.
    [[nodiscard]] bool any_in(device_address base, std::uint64_t length) const;

    // Invalidates handles: a separate one, or all of the allocation where the secret is 0. False
    // where there is no such handle.
    bool revoke(device_address address, std::uint64_t secret);
    // Called when a lease was closed: drops what was kept for its secret or its allocation, if it was the
    // last.
    void lease_closed(const lease_record& closed, bool last_of_piece, bool last_of_allocation);
    void erase(std::uint64_t base) { allocations_.erase(base); }
    void clear() { allocations_.clear(); }
    [[nodiscard]] std::vector<std::uint64_t> bases() const;
    [[nodiscard]] std::size_t size() const { return allocations_.size(); }

private:
    std::map<std::uint64_t, shared_allocation> allocations_; // by base
};

} // namespace gaudi
