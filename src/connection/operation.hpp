// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gaudi {

class registration;
class staging;

enum class transfer_kind : std::uint8_t { send, receive, write, read, fetch_add, compare_swap };

// An operation as the caller states it.
struct transfer_request {
    transfer_kind kind;
    const local_region* local = nullptr;
    const remote_region* remote = nullptr;
    std::optional<std::uint32_t> immediate = {};
    std::uint64_t operand = 0, compare = 0;

    [[nodiscard]] bool atomic() const {
        return kind == transfer_kind::fetch_add || kind == transfer_kind::compare_swap;
    }
};

// One operation of a connection, cut into parts of one work request each.
struct operation {
    enum class state : std::uint8_t { unused, pending, finished };

    transfer_kind kind = transfer_kind::send;
    operation::state state = state::unused;
    memory_path path = memory_path::host;
    bool abandoned = false;        // its ticket was dropped: the slot is freed when the operation finishes
    bool started = false;          // it has opened the peer's receive, was announced, or was requested
    bool fully_posted = false;     // every work request has been posted
    bool immediate_posted = false; // the last part of a write with immediate has been posted
    bool remote_staged = false;    // the peer's memory is staged
    bool remote_done = false;      // the peer has ended an access to its staged memory
    bool local_device = false;     // the NIC reads or writes device memory of this process itself
    std::uint32_t serial = 0; // distinguishes it from earlier operations in its slot, in frames of the peer
    std::uint32_t local_key = 0, remote_key = 0;
    std::uint64_t address = 0, remote_address = 0, length = 0;
    std::uint64_t operand = 0, compare = 0;
    std::uint64_t fetched = 0; // staged: bytes whose copy into a slab has started
    std::uint64_t posted = 0, completed = 0;
    std::uint32_t outstanding = 0; // parts posted and not completed
    staging* stage = nullptr;
    // Keeps the memory registered until the operation has finished.
    std::shared_ptr<const registration> registration_ref;
    std::optional<std::uint32_t> immediate;
    completion outcome;
    std::optional<error> failure;
};

// The operations of a connection, each in a slot of its own until its ticket is dropped, and the totals of
// the finished ones.
class operation_table {
public:
    explicit operation_table(unsigned slots);

    [[nodiscard]] bool full() const { return free_.empty(); }
    [[nodiscard]] bool empty() const { return free_.size() == slots_.size(); }
    [[nodiscard]] std::size_t size() const { return slots_.size(); }
    operation& operator[](std::uint32_t slot) { return slots_[slot]; }

    // Adds a pending operation for the request. Precondition: the table is not full.
    std::uint32_t add(const transfer_request& request, staging* stage);
    // Names an operation in frames to the peer; unique within the connection.
    [[nodiscard]] std::uint64_t id_of(std::uint32_t slot) const {
        return std::uint64_t{slots_[slot].serial} << 32 | slot;
    }
    // The pending operation with this id.
    [[nodiscard]] std::optional<std::uint32_t> find(std::uint64_t id) const;

    void part_completed(std::uint32_t slot, std::uint64_t bytes);
    void mark_fully_posted(std::uint32_t slot);
    void fail_pending(const error& why);
    // The caller dropped the ticket.
    void drop(std::uint32_t slot);

    [[nodiscard]] const connection_traffic& traffic() const { return traffic_; }
    // Why the latest staged operation was staged.
    [[nodiscard]] const std::string& why_staged() const { return why_staged_; }

private:
    void finish(std::uint32_t slot);
    void free_if_abandoned(std::uint32_t slot);

    std::vector<operation> slots_;
    std::vector<std::uint32_t> free_;
    std::uint32_t last_serial_ = 0;
    connection_traffic traffic_;
    std::string why_staged_;
};

} // namespace gaudi
