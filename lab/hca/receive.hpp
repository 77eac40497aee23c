// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"

namespace lab::hca {

constexpr unsigned max_scatter = 64;

// A receive request that was taken out of its queue.
struct taken_receive {
    std::uint64_t wr_id;
    std::uint32_t entry_count;
    bool of_srq;
    scatter_entry entries[max_scatter];
};

// Takes the next receive of a queue pair, from its own queue or the shared one. Nothing there: it is noted
// that a sender waits, so that the next receive posted runs it.
[[nodiscard]] bool take_receive(const endpoint& responder, taken_receive& into);
[[nodiscard]] reach find_buffers(process& here, const endpoint& responder, const taken_receive& taken,
                                 side& to);
void complete_receive(const endpoint& responder, const taken_receive& taken, completion& entry);

} // namespace lab::hca
