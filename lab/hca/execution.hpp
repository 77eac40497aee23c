// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/verbs.hpp"

namespace lab::hca {

// How one request ended, or what it waits for.
struct verdict {
    ibv_wc_status status = IBV_WC_SUCCESS;
    wait_reason waits = wait_reason::none;
    std::uint64_t bytes = 0;
};

// Executes one request of a send queue whose peer is on this host, or a datagram. The caller has the queue's
// lock.
[[nodiscard]] verdict execute(process& here, const endpoint& requester, const endpoint& responder,
                              const send_request& request);

} // namespace lab::hca
