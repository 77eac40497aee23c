// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/send_queue.hpp"

#include <fmt/format.h>

namespace gaudi {

send_queue::send_queue(ibv_qp* qp, unsigned depth, std::string peer)
    : qp_(qp), depth_(depth), peer_(std::move(peer)), posted_(depth) {}

ibv_send_wr& send_queue::append(const posted_request& request, const local_part& part) {
    // The chain has a fixed place for each request: it is posted before the first place is used again.
    if (chained_ == longest_chain)
        (void)flush(); // the next flush() returns a failure again
    auto& entry = entries_[chained_];
    entry = {part.address, request.bytes, part.key};
    auto& wr = chain_[chained_];
    wr = {};
    wr.sg_list = &entry;
    wr.num_sge = request.bytes != 0 ? 1 : 0;
    posted_.push(request);
    ++chained_;
    return wr;
}

result<void> send_queue::flush() {
    if (chained_ != 0 && post_error_ == 0) {
        for (std::size_t i = 0; i + 1 < chained_; ++i)
            chain_[i].next = &chain_[i + 1];
        // The wr_id of a completion is the number of requests completed so far.
        for (std::size_t i = 0; i < chained_; ++i)
            chain_[i].wr_id = retired_ + posted_.size() - chained_ + i + 1;
        // A slot of the NIC's queue becomes free when a completion at or after it is polled: every chain
        // needs one (gotcha V5).
        chain_[chained_ - 1].send_flags |= IBV_SEND_SIGNALED;
        ibv_send_wr* refused = nullptr;
        // The requests before the refused one may have been posted (gotcha V12): the connection ends, nothing
        // is posted again.
        post_error_ = ::ibv_post_send(qp_, chain_.data(), &refused);
    }
    chained_ = 0;
    if (post_error_ != 0)
        return tl::unexpected(
            error(errc::connection_broken, fmt::format("ibv_post_send towards {}", peer_), post_error_));
    return {};
}

std::optional<posted_request> send_queue::retire(std::uint64_t completed) {
    if (retired_ >= completed)
        return {};
    ++retired_;
    return posted_.pop();
}

} // namespace gaudi
