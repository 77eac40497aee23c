// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"
#include "lab/hca/verbs.hpp"

namespace lab::hca {

// How one request ended, or what it waits for.
struct verdict {
    ibv_wc_status status = IBV_WC_SUCCESS;
    wait_reason waits = wait_reason::none;
    std::uint64_t bytes = 0;
};

// What the last small write and read of a queue pair found out, for the next ones. Under the lock of its send
// queue; forgotten when the queue pair is modified or reset.
struct short_way {
    struct ends {
        stretch near, far;
    };
    bool connected = false;
    std::uint32_t life = 0; // of the responder: it has not been reset since
    ends writes, reads;
};

// The shortest way of a small write or read of memory that lies in one piece at either end: copied and
// completed at once, it takes a place in the queue but none of the ring's memory. The queue is empty and its
// lock the caller's. False: nothing was done; the request goes the usual way, which also finds what is wrong
// with it.
[[nodiscard]] bool move_at_once(process& here, const endpoint& requester, const endpoint& responder,
                                short_way& way, const ibv_send_wr& wr);

// Executes one request of a send queue whose peer is on this host, or a datagram. The caller has the queue's
// lock.
[[nodiscard]] verdict execute(process& here, const endpoint& requester, const endpoint& responder,
                              const send_request& request);

} // namespace lab::hca
