// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>

#include "src/ipc/handle.hpp"
#include "src/os/unique_fd.hpp"

#include <map>

namespace gaudi {

// What an importer was given when it opened a handle.
struct lease_record {
    std::uint64_t base = 0, generation = 0, secret = 0; // names what was shared
    // The owner's own word counts; the lease table, which the importer can write, only announces it.
    bool revoked = false;
    bool closing = false;      // closes when its copies have ended
    bool dmabuf_given = false; // and not released
    unsigned copies = 0;       // that the owner is making for it

    // A secret of 0 stands for any.
    [[nodiscard]] bool opened_with(std::uint64_t which) const { return which == 0 || which == secret; }
};

// What a handle opens: the bytes it was made for and no others.
struct shared_piece {
    std::uint64_t offset = 0, length = 0;
    bool apart = false; // of share_apart(): not given to a second caller
    // A DMA-BUF of its pages alone, while there are leases.
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

// The allocations that this process shares. A handle is good while its secret is in here.
class share_table {
public:
    // The secret for [offset, offset + length) of an allocation: the same one again, unless it is `apart`.
    std::uint64_t add(const allocation_view& allocation, std::uint64_t offset, std::uint64_t length,
                      bool apart);
    // The allocation that a handle was made for. errc::handle_stale.
    [[nodiscard]] result<const shared_allocation*> find(const handle_record& handle) const;
    // What a lease is of; none where it was freed or revoked since.
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

    // Makes handles worthless: one that was made apart, or with secret 0 all of the allocation. False where
    // there is no such handle.
    bool revoke(device_address address, std::uint64_t secret);
    // After the last lease with its secret, or of its allocation: drops what was kept for them.
    void lease_closed(const lease_record& closed, bool last_of_piece, bool last_of_allocation);
    void erase(std::uint64_t base) { allocations_.erase(base); }
    void clear() { allocations_.clear(); }
    [[nodiscard]] std::vector<std::uint64_t> bases() const;
    [[nodiscard]] std::size_t size() const { return allocations_.size(); }

private:
    std::map<std::uint64_t, shared_allocation> allocations_; // by base
};

} // namespace gaudi
