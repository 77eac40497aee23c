// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"

namespace lab::hca {

// Executes the executable requests of a send queue, in order. The process that makes a request executable
// calls this: the poster, or the peer that posts the receive it waited for. `responder.owner` may be null: no
// peer process exists. Datagram queue pairs find their responder for each request.
void run_send_queue(process& here, const endpoint& requester, const endpoint& responder);

// Holds the lock of a send queue. If the previous holder died, the constructor repairs the queue first.
class send_queue_guard {
public:
    explicit send_queue_guard(const endpoint& requester);
    ~send_queue_guard() { lock_.unlock(); }
    send_queue_guard(const send_queue_guard&) = delete;
    send_queue_guard& operator=(const send_queue_guard&) = delete;

private:
    shared_lock& lock_;
};
// The same for a caller that already holds the lock. Returns the time at which the queue must be run again.
[[nodiscard]] std::uint64_t run_locked_send_queue(process& here, const endpoint& requester,
                                                  const endpoint& responder);

// Records which requests had begun when the queue pair goes to SQD: these complete, the next ones wait. The
// caller holds the send queue's lock.
void begin_drain(shared_qp& qp, bool raise_event);
// Whether the request at `place` is one that had begun.
[[nodiscard]] bool is_draining(const shared_qp& qp, std::uint32_t place);

// finish_request() completes the head request of a send queue; fail_request() completes it with an error and
// applies the consequences.
struct ended_send {
    std::uint64_t wr_id;
    std::uint8_t opcode; // ibv_wr_opcode
    std::uint32_t status;
    std::uint64_t bytes;
};
// Writes the completion of the request at `place`.
void complete_send(const endpoint& requester, std::uint32_t place, const ended_send& how);
void finish_request(const endpoint& requester, std::uint32_t place, std::uint32_t status,
                    std::uint64_t bytes);
void fail_request(const endpoint& requester, std::uint32_t place, std::uint32_t status);
// Appends the requester's local memory of a request to `to`; returns the status for its completion.
[[nodiscard]] std::uint32_t gather_local(process& here, const endpoint& requester,
                                         const send_request& request, side& to);
[[nodiscard]] std::uint64_t rnr_time_ns(std::uint32_t code);

// Completes all outstanding receives as flushed. The queue pair must be in the error state.
void flush_receives(const endpoint& which);

// When the head request of a send queue fails if it makes no progress; UINT64_MAX: never, or no request
// waits.
[[nodiscard]] std::uint64_t deadline_of(const shared_qp& requester, const shared_qp* responder);

} // namespace lab::hca
