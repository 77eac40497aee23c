// SPDX-License-Identifier: BSD-3-Clause
// From creation to ready-to-send. What a NIC supports less of is reduced here, so that callers ask for what
// they want and read back what they got.
#include "src/rdma/queue_pair.hpp"

#include "src/error/try.hpp"
#include "src/os/system_error.hpp"
#include "src/rdma/mlx5.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr unsigned wanted_inline = 64;
constexpr std::uint8_t receiver_not_ready_delay = 12; // 0.64 ms; credits make it rare
constexpr std::uint8_t retry_for_ever = 7;

error refused(const char* call, const nic_core& nic, int reason) {
    return {code_of(reason, errc::connection_broken), fmt::format("{} on {}", call, nic.info().name), reason};
}

} // namespace

result<queue_pair> queue_pair::make(const std::shared_ptr<nic_core>& nic, unsigned sends, unsigned receives,
                                    remote_access rights, ibv_pd* domain) {
    const auto& api = nic->api();
    const auto limit = static_cast<unsigned>(std::max(nic->limits().max_qp_wr, 16));
    queue_pair pair;
    pair.nic_ = nic;
    pair.rights_ = rights;
    pair.sends_ = std::min(sends, limit);
    pair.receives_ = std::min(receives, limit);
    pair.channel_ = {api.ibv_create_comp_channel(nic->context()), {nic->table()}};
    if (!pair.channel_)
        return tl::unexpected(refused("ibv_create_comp_channel", *nic, errno));
    // Events are drained in a loop: without O_NONBLOCK the last call would sleep.
    ::fcntl(pair.channel_->fd, F_SETFL, ::fcntl(pair.channel_->fd, F_GETFL) | O_NONBLOCK);
    pair.cq_ = {api.ibv_create_cq(nic->context(), static_cast<int>(pair.sends_ + pair.receives_), nullptr,
                                  pair.channel_.get(), 0),
                {nic->table()}};
    if (!pair.cq_)
        return tl::unexpected(refused("ibv_create_cq", *nic, errno));
    ibv_qp_init_attr wanted{};
    // One queue for both directions, so that one call polls everything. It has room for every request: an
    // overrun would break the queue pair.
    wanted.send_cq = wanted.recv_cq = pair.cq_.get();
    wanted.qp_type = IBV_QPT_RC;
    for (const unsigned inline_bytes : {wanted_inline, 0U}) { // not every NIC supports inline data
        wanted.cap = {pair.sends_, pair.receives_, 1, 1, inline_bytes};
        pair.qp_ = {create_qp_without_scatter(api, domain != nullptr ? domain : nic->pd(), wanted),
                    {nic->table()}};
        if (pair.qp_)
            break;
    }
    if (!pair.qp_)
        return tl::unexpected(refused("ibv_create_qp", *nic, errno));
    pair.longest_inline_ = wanted.cap.max_inline_data;
    return pair;
}

qp_endpoint queue_pair::endpoint(std::uint32_t first_psn) const {
    qp_endpoint local;
    local.first_psn = first_psn;
    local.ethernet = nic_->info().link_layer == link_layer::ethernet;
    local.mtu = static_cast<std::uint8_t>(nic_->port().active_mtu);
    // Both directions have the same limit: the smaller of what this NIC may start and may answer.
    local.reads_in_flight = static_cast<std::uint8_t>(
        std::clamp(std::min(nic_->limits().max_qp_rd_atom, nic_->limits().max_qp_init_rd_atom), 1, 16));
    local.lid = nic_->port().lid;
    local.qp_number = qp_->qp_num;
    std::copy(std::begin(nic_->gid().raw), std::end(nic_->gid().raw), local.gid.begin());
    return local;
}

result<void> queue_pair::connect(const qp_endpoint& local, const qp_endpoint& remote, unsigned timeout,
                                 unsigned retries) {
    const auto modify = [&](const char* step, ibv_qp_attr attributes, int mask) -> result<void> {
        if (const int rc = nic_->api().ibv_modify_qp(qp_.get(), &attributes, mask); rc != 0)
            return tl::unexpected(refused(step, *nic_, rc));
        return {};
    };
    const auto port = static_cast<std::uint8_t>(nic_->info().port);
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = port;
    // An upper bound for the whole queue pair; each key has its own rights within it.
    init.qp_access_flags = static_cast<unsigned>(nic_->access_flags(rights_));
    GAUDI_CHECK(modify("ibv_modify_qp to INIT", init,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));

    ibv_qp_attr receive{};
    receive.qp_state = IBV_QPS_RTR;
    // The larger MTU would be dropped on the way, without an error before the retries have run out.
    receive.path_mtu = static_cast<ibv_mtu>(std::min(local.mtu, remote.mtu));
    receive.dest_qp_num = remote.qp_number;
    receive.rq_psn = remote.first_psn;
    receive.max_dest_rd_atomic = std::min(local.reads_in_flight, remote.reads_in_flight);
    receive.min_rnr_timer = receiver_not_ready_delay;
    receive.ah_attr.port_num = port;
    receive.ah_attr.dlid = remote.lid;
    // RoCE is addressed by GIDs alone; InfiniBand needs them beyond its own subnet.
    if (remote.ethernet || std::memcmp(local.gid.data(), remote.gid.data(), 8) != 0) {
        receive.ah_attr.is_global = 1;
        std::memcpy(receive.ah_attr.grh.dgid.raw, remote.gid.data(), 16);
        receive.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(nic_->gid_index());
        receive.ah_attr.grh.hop_limit = 64;
    }
    GAUDI_CHECK(modify("ibv_modify_qp to RTR", receive,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));

    ibv_qp_attr send{};
    send.qp_state = IBV_QPS_RTS;
    send.sq_psn = local.first_psn;
    send.timeout = static_cast<std::uint8_t>(timeout);
    send.retry_cnt = static_cast<std::uint8_t>(retries);
    send.rnr_retry = retry_for_ever;
    send.max_rd_atomic = receive.max_dest_rd_atomic;
    return modify("ibv_modify_qp to RTS", send,
                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_MAX_QP_RD_ATOMIC);
}

void queue_pair::arm() {
    (void)::ibv_req_notify_cq(cq_.get(), 0);
}

void queue_pair::drain_events() {
    ibv_cq* which = nullptr;
    void* cookie = nullptr;
    unsigned events = 0;
    while (nic_->api().ibv_get_cq_event(channel_.get(), &which, &cookie) == 0)
        ++events;
    // ibv_destroy_cq waits until every event has been acknowledged.
    if (events != 0)
        nic_->api().ibv_ack_cq_events(cq_.get(), events);
}

void queue_pair::abandon() {
    (void)qp_.release();
    (void)cq_.release();
    (void)channel_.release();
}

} // namespace gaudi
