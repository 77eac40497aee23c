// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/connection/work_request.hpp"
#include "src/os/ring.hpp"

#include <array>
#include <cstdint>
#include <infiniband/verbs.h>
#include <optional>
#include <string>

namespace gaudi {

// The send queue of a queue pair. Work requests are posted in chains; only the last request of a chain is
// signalled.
class send_queue {
public:
    static constexpr std::size_t longest_chain = 16;
    static constexpr std::size_t kept_for_credits = 8;

    send_queue(ibv_qp* qp, unsigned depth, std::string peer);
    send_queue(const send_queue&) = delete; // the chained requests point into the object
    send_queue& operator=(const send_queue&) = delete;

    // Room for data. Some entries are reserved for credits, without which both sides could wait for ever.
    [[nodiscard]] bool has_room() const { return posted_.size() + kept_for_credits < depth_; }
    [[nodiscard]] bool has_room_for_credits() const { return posted_.size() < depth_; }
    [[nodiscard]] bool empty() const { return posted_.empty(); }
    // Nothing is outstanding on the NIC; the chain may hold requests that are not posted.
    [[nodiscard]] bool idle() const { return posted_.size() == chained_; }

    // Adds a request to the chain, after posting the chain if it was full. The caller sets the opcode.
    ibv_send_wr& append(const posted_request& request, const local_part& part);
    // Posts the chain. Once posting has failed, every call returns that failure.
    result<void> flush();
    // Removes and returns the oldest request, up to the one that a completion names; none after that one.
    std::optional<posted_request> retire(std::uint64_t completed);

private:
    ibv_qp* const qp_;
    const std::size_t depth_;
    const std::string peer_;
    ring<posted_request> posted_;
    std::size_t chained_ = 0;   // the last ones of posted_, not posted to the NIC yet
    std::uint64_t retired_ = 0; // requests removed from posted_
    int post_error_ = 0;
    std::array<ibv_send_wr, longest_chain> chain_{};
    std::array<ibv_sge, longest_chain> entries_{};
};

} // namespace gaudi
