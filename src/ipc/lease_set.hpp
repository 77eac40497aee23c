// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/messages.hpp"
#include "src/ipc/share_table.hpp"
#include "src/os/fork_private_fd.hpp"
#include "src/os/shared_memory.hpp"

#include <functional>
#include <map>

namespace gaudi {

// The leases of one importer, as its owner keeps them: the records, the table that both sides see, and the
// socket that announces revocations.
class lease_set {
public:
    using slot_number = std::uint32_t;

    // A slot of the table for a new lease. errc::leases_exhausted.
    result<slot_number> open(const handle_record& handle);
    // The lease, unless it was revoked or is closing.
    [[nodiscard]] lease_record* find_usable(slot_number slot);
    // Removes the lease, at once or, while the owner copies for it, after the last copy. Returns the lease
    // when it is removed.
    std::optional<lease_record> close(slot_number slot);
    void copy_started(slot_number slot);
    std::optional<lease_record> copy_ended(slot_number slot);
    void dmabuf_released(slot_number slot);

    void revoke_if(const std::function<bool(const lease_record&)>& chosen);
    [[nodiscard]] bool any(const std::function<bool(const lease_record&)>& chosen) const;
    // Copies in flight: those by the owner and, once the importer has descriptors, those by the importer.
    [[nodiscard]] unsigned in_flight(slot_number slot) const;
    [[nodiscard]] bool quiet() const;
    void importer_has_descriptors() { importer_copies_ = true; }
    // Whether a revocation can still be announced to the importer.
    [[nodiscard]] bool has_listener() const { return static_cast<bool>(revoke_socket_); }

    [[nodiscard]] int table_descriptor() const { return table_.descriptor(); }
    // The importer's end of a new revoke socket; none where the importer has one, or no descriptor is left.
    unique_fd open_revoke_socket();

    [[nodiscard]] const std::map<slot_number, lease_record>& all() const { return leases_; }

private:
    [[nodiscard]] lease_word& word(slot_number slot) const {
        return reinterpret_cast<lease_word*>(table_.data())[slot];
    }

    std::map<slot_number, lease_record> leases_;
    slot_number next_ = 0;
    shared_memory table_;
    fork_private_fd revoke_socket_;
    bool importer_copies_ = false;
};

} // namespace gaudi
