// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"

namespace lab::hca {

// Executes what can be executed of a send queue, in order: whoever makes a request executable calls this, the
// poster, or the peer whose receive it waited for. `responder.who` may be null: nobody is there. Datagram
// queue pairs find theirs by each request.
void run_send_queue(process& here, const endpoint& requester, const endpoint& responder);

// Holds the lock of a send queue. Taken over from an executor that died, the queue is put right first.
class send_queue_guard {
public:
    explicit send_queue_guard(const endpoint& requester);
    ~send_queue_guard() { lock_.unlock(); }
    send_queue_guard(const send_queue_guard&) = delete;
    send_queue_guard& operator=(const send_queue_guard&) = delete;

private:
    shared_lock& lock_;
};
// The same for a poster that has the lock anyway. Returns when it must be looked at again.
[[nodiscard]] std::uint64_t run_locked_send_queue(process& here, const endpoint& requester,
                                                  const endpoint& responder);

// Which requests had begun when the queue pair goes to SQD: these end, and the next waits. Under the lock.
void begin_drain(shared_qp& qp, bool tell);
// Whether the request at `place` is one of those.
[[nodiscard]] bool is_draining(const shared_qp& qp, std::uint32_t place);

// Completes the head request of a send queue; the second one as failed, with what follows from that.
struct ended_send {
    std::uint64_t wr_id;
    std::uint8_t opcode; // ibv_wr_opcode
    std::uint32_t status;
    std::uint64_t bytes;
};
// Writes the completion of the request at that place.
void complete_send(const endpoint& requester, std::uint32_t place, const ended_send& how);
void finish_request(const endpoint& requester, std::uint32_t place, std::uint32_t status,
                    std::uint64_t bytes);
void fail_request(const endpoint& requester, std::uint32_t place, std::uint32_t status);
// The requester's own memory of a request; a completion's status.
[[nodiscard]] std::uint32_t gather_local(process& here, const endpoint& requester,
                                         const send_request& request, side& to);
[[nodiscard]] std::uint64_t rnr_time_ns(std::uint32_t code);

// Completes all outstanding receives as flushed. The queue pair is in the error state.
void flush_receives(const endpoint& which);

// When the head request of a send queue is given up, if nothing happens; UINT64_MAX: never, or nothing waits.
[[nodiscard]] std::uint64_t deadline_of(const shared_qp& requester, const shared_qp* responder);

} // namespace lab::hca
