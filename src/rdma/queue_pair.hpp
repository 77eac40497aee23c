// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/rdma/handshake.hpp"
#include "src/rdma/nic_core.hpp"

namespace gaudi {

// A reliable queue pair with one completion queue for both directions, and a channel to sleep on.
class queue_pair {
public:
    // Fewer requests than asked for where the NIC has less. `rights`: what the other side may do with the
    // memory of the domain, the connections' own unless one is named.
    static result<queue_pair> make(const std::shared_ptr<nic_core>& card, unsigned sends, unsigned receives,
                                   remote_access rights = remote_access::all, ibv_pd* domain = nullptr);
    queue_pair() = default;
    queue_pair(queue_pair&&) noexcept = default;
    queue_pair& operator=(queue_pair&&) noexcept = default;

    // What a peer must know of it to join; the rest of the greeting is the connection's.
    [[nodiscard]] hello greeting() const;
    // To ready-to-send, towards the peer.
    result<void> join(const hello& ours, const hello& theirs, unsigned timeout, unsigned retries);
    // The NIC touches nothing of it any more when this returns.
    void destroy() { qp_.reset(); }

    [[nodiscard]] ibv_qp* get() const { return qp_.get(); }
    [[nodiscard]] ibv_cq* completions() const { return cq_.get(); }
    [[nodiscard]] unsigned sends() const { return sends_; }
    [[nodiscard]] unsigned receives() const { return receives_; }
    [[nodiscard]] unsigned longest_inline() const { return longest_inline_; }
    // Readable after arm() when something completed.
    [[nodiscard]] int descriptor() const { return channel_->fd; }
    void arm();
    void drain_events();
    // For a child of fork, which has no part in it.
    void abandon();

private:
    std::shared_ptr<nic_core> card_;
    channel_handle channel_;
    cq_handle cq_;
    qp_handle qp_;
    remote_access rights_ = remote_access::none;
    unsigned sends_ = 0, receives_ = 0, longest_inline_ = 0;
};

} // namespace gaudi
