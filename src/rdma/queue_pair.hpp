// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/rdma/nic_core.hpp"

#include <array>
#include <cstdint>

namespace gaudi {

// What a peer needs to connect its queue pair to this one.
struct qp_endpoint {
    bool ethernet = false;
    std::uint8_t mtu = 0; // code of ibv_mtu
    std::uint8_t reads_in_flight = 0;
    std::uint16_t lid = 0;
    std::uint32_t qp_number = 0;
    std::uint32_t first_psn = 0; // packet sequence number
    std::array<std::uint8_t, 16> gid{};
};

// A reliable queue pair with one completion queue for both directions, and a channel to sleep on.
class queue_pair {
public:
    // Makes fewer requests than asked for where the NIC supports less. `rights`: what the remote side may do
    // with memory of the domain, which is the connections' own unless one is named.
    static result<queue_pair> make(const std::shared_ptr<nic_core>& nic, unsigned sends, unsigned receives,
                                   remote_access rights = remote_access::all, ibv_pd* domain = nullptr);
    queue_pair() = default;
    queue_pair(queue_pair&&) noexcept = default;
    queue_pair& operator=(queue_pair&&) noexcept = default;

    [[nodiscard]] qp_endpoint endpoint(std::uint32_t first_psn = 0) const;
    // Moves the queue pair to ready-to-send (RTS).
    result<void> connect(const qp_endpoint& local, const qp_endpoint& remote, unsigned timeout,
                         unsigned retries);
    // The NIC accesses no memory for this queue pair after this returns.
    void destroy() { qp_.reset(); }

    [[nodiscard]] ibv_qp* get() const { return qp_.get(); }
    [[nodiscard]] ibv_cq* completions() const { return cq_.get(); }
    [[nodiscard]] unsigned sends() const { return sends_; }
    [[nodiscard]] unsigned receives() const { return receives_; }
    [[nodiscard]] unsigned longest_inline() const { return longest_inline_; }
    // Becomes readable after arm() when a request has completed.
    [[nodiscard]] int descriptor() const { return channel_->fd; }
    void arm();
    void drain_events();
    // In a child of fork: releases the handles without destroying them, because the parent uses them.
    void abandon();

private:
    std::shared_ptr<nic_core> nic_;
    channel_handle channel_;
    cq_handle cq_;
    qp_handle qp_;
    remote_access rights_ = remote_access::none;
    unsigned sends_ = 0, receives_ = 0, longest_inline_ = 0;
};

} // namespace gaudi
