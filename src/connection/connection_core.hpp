// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/connection_link.hpp"
#include "src/connection/initiator.hpp"
#include "src/connection/offer_table.hpp"
#include "src/connection/receive_queue.hpp"
#include "src/connection/staging.hpp"
#include "src/os/event_set.hpp"

#include <deque>

namespace gaudi {

// A connection: dispatches the caller's operations, the NIC's completions and the peer's frames to its parts,
// and ends them together. For one thread at a time. The connection and its tickets share it by a reference
// count without atomics.
//
// It has more than thirty functions, half of them accessors and entry points of the public class: whatever
// can end a connection (a completion, a frame, a copy, a call) has to come through one place.
class connection_core {
public:
    explicit connection_core(std::unique_ptr<connection_link> link);
    connection_core(const connection_core&) = delete;
    connection_core& operator=(const connection_core&) = delete;

    void retain() { ++users_; }
    void release() {
        if (--users_ == 0)
            delete this;
    }

    result<std::uint32_t> start(const transfer_request& request);
    std::size_t progress();
    [[nodiscard]] bool done(std::uint32_t slot);
    // A descriptor to sleep on after arm() returned true. errc::setting_malformed, descriptors_exhausted.
    result<int> event_fd();
    [[nodiscard]] bool arm();
    result<completion> wait(std::uint32_t slot, std::chrono::milliseconds limit);
    void drop(std::uint32_t slot) { operations_.drop(slot); }

    // A region as the peer may address it, until withdraw() or the end of the connection.
    result<remote_region> offer(const local_region& region, remote_access rights);
    void withdraw(const local_region& region);
    [[nodiscard]] offer_table& offers() { return offers_; }
    result<void> send_frame(frame_kind kind, std::span<const std::byte> body);
    result<std::vector<std::byte>> receive_frame(frame_kind kind, std::chrono::milliseconds limit);
    // Reads everything that the peer has sent so far; returns whether the connection is still alive.
    bool catch_up();
    void close();
    [[nodiscard]] bool alive() const { return !failure_; }
    // No operation is pending and no received frame is unread.
    [[nodiscard]] bool idle() const { return operations_.empty() && inbox_.empty() && held_notes_.empty(); }
    [[nodiscard]] const connection_link& link() const { return *link_; }
    [[nodiscard]] const operation_table& operations() const { return operations_; }
    [[nodiscard]] const std::string& peer() const { return link_->control.peer(); }

private:
    ~connection_core();
    // An error where the connection cannot be used.
    [[nodiscard]] result<void> check_usable() const;
    [[nodiscard]] result<void> check(const transfer_request& request) const;
    result<std::size_t> collect_completions();
    result<std::size_t> collect_from_peer();
    result<std::size_t> collect();
    result<void> advance();
    result<void> send_credits();
    std::size_t read_frames(); // returns how many were received
    result<void> handle(frame& received);
    result<void> keep_note(frame& note);
    void store_credits(std::span<const std::byte> body);
    // Nothing wakes a thread that sleeps when these complete.
    [[nodiscard]] bool copying() const;
    void sleep_until(time_point deadline);
    // fail(): after a local error, which it reports to the peer. peer_ended(): after the peer closed the
    // connection. Both call end(), which fails what is pending.
    void fail(const error& why);
    void peer_ended(const error& why);
    void end(const error& why);

    const std::unique_ptr<connection_link> link_;
    unsigned users_ = 1;
    operation_table operations_;
    staging_set stagings_;
    device_flush flush_;
    offer_table offers_;
    peer_credits peer_credits_;
    local_credits local_credits_;
    send_queue send_queue_;
    receive_queue receive_queue_;
    initiator initiator_;
    inbox inbox_;
    // Notes that wait until what the peer has written before is in the memory of the devices, with the number
    // of their flush.
    struct held_note {
        std::uint64_t flush = 0;
        frame note;
    };
    std::deque<held_note> held_notes_;
    std::optional<error> failure_;
    bool closing_ = false;
    time_point last_read_{};
    event_set events_; // of event_fd(), once it was called
};

} // namespace gaudi
