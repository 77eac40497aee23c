// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"
#include "lab/hca/verbs.hpp"

namespace lab::hca {

// How one request completed, or what it waits for.
struct verdict {
    ibv_wc_status status = IBV_WC_SUCCESS;
    wait_reason waits = wait_reason::none;
    std::uint64_t bytes = 0;
};

// What the last small write and read of a queue pair looked up, kept for the next ones. Guarded by the lock
// of its send queue; cleared when the queue pair is modified or reset.
struct lookup_cache {
    struct ends {
        stretch local, remote;
    };
    bool connected = false;
    std::uint32_t life = 0; // of the responder: it has not been reset since
    ends writes, reads;
};

// The shortest path, for a small write or read of memory that is contiguous at both ends: copies and
// completes at once. The request takes a place in the queue but none of the ring's memory. The queue must be
// empty, and the caller holds its lock. False: nothing was done; the request takes the general path, which
// also finds out what is wrong with it.
[[nodiscard]] bool move_at_once(process& here, const endpoint& requester, const endpoint& responder,
                                lookup_cache& cached, const ibv_send_wr& wr);

// Executes one request of a send queue whose peer is on this host, or a datagram. The caller holds the
// queue's lock.
[[nodiscard]] verdict execute(process& here, const endpoint& requester, const endpoint& responder,
                              const send_request& request);

} // namespace lab::hca
