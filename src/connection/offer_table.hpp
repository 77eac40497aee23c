// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/device_flush.hpp"
#include "src/connection/remote_staging.hpp"

#include <vector>

namespace gaudi {

// The regions that a connection has offered to its peer, each with a key of its own or, for staged memory,
// with a number that the peer names in its requests.
class offer_table {
public:
    offer_table(const nic_core& nic, const control_channel& control, std::uint32_t segment);

    result<remote_region> offer(const local_region& region, remote_access rights);
    // Copies for the peer from and to the region have completed when this returns.
    void withdraw(const local_region& region);
    // Ends every offer and every key to a slab. Copies must have ended.
    void clear() {
        offers_.clear();
        targets_.reset();
        stagings_.clear();
    }
    // Whether the peer's NIC may write device memory.
    [[nodiscard]] static bool opens_device(const local_region& region, remote_access rights) {
        return region.path() == memory_path::zero_copy &&
               (allows(rights, remote_access::write) || allows(rights, remote_access::atomic));
    }
    // Adds a byte of each device whose memory the peer may write.
    void add_targets(device_flush& flush);

    // Frames of the peer about staged memory. Access beyond the peer's rights is refused in an answer; an
    // error ends the connection.
    result<void> access_requested(const access_request& request);
    result<void> slab_returned(const slab_return& returned);
    // Advances the peer's accesses; returns how many copies completed.
    result<std::size_t> progress();
    [[nodiscard]] bool busy() const;
    [[nodiscard]] bool copying() const;
    void settle();
    // In a child of fork: forgets the copies, which belong to the parent.
    void abandon();

private:
    struct offered_region {
        local_region region;
        remote_access rights = remote_access::none;
        remote_key key;           // none for staged memory, whose slabs are granted one by one
        std::uint32_t number = 0; // stands for the key of staged memory; never repeats in a connection
    };

    // The offer that permits a request, or the reason for refusing it.
    [[nodiscard]] result<const offered_region*> find(const access_request& request) const;
    // Whether targets_ has a byte of the region's device.
    [[nodiscard]] bool has_target(const local_region& region) const;
    result<remote_region> offer_staged(const local_region& region, remote_access rights,
                                       const offered_region* same);

    const nic_core& nic_;
    const control_channel& control_;
    const std::uint32_t segment_;
    const std::uint64_t holder_; // shares keys within this connection only; never repeats in a process
    std::vector<std::unique_ptr<remote_staging>> stagings_; // one for each device
    std::vector<offered_region> offers_;
    std::optional<std::vector<flush_target>> targets_; // found at the first use after a change of the offers
    std::uint32_t next_number_ = 1;
};

} // namespace gaudi
