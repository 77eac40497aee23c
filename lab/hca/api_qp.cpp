// SPDX-License-Identifier: BSD-3-Clause
// Queue pairs: create, modify, query, destroy.
#include "lab/hca/address.hpp"
#include "lab/hca/devices.hpp"
#include "lab/hca/engine.hpp"
#include "lab/hca/exported.hpp"
#include "lab/hca/housekeeping.hpp"
#include "lab/hca/posted_writes.hpp"
#include "lab/hca/qp_states.hpp"
#include "lab/hca/receive.hpp"
#include "lab/hca/scattered.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lab::hca {

void fill_work_request_functions(ibv_qp_ex& qp); // api_work_request.cpp

namespace {

constexpr std::uint32_t mtu_bytes(ibv_mtu code) {
    return 128U << code;
}

bool within_limits(const ibv_qp_cap& asked, const hca_description& limits) {
    return asked.max_send_wr <= limits.max_qp_wr && asked.max_recv_wr <= limits.max_qp_wr &&
           asked.max_send_sge <= limits.max_sge && asked.max_recv_sge <= limits.max_sge &&
           asked.max_inline_data <= limits.max_inline;
}

// Allocates a ring for `requests` requests of `stride` bytes.
answer<void> make_queue(segment& own, shared_queue& queue, std::uint32_t requests, std::uint32_t stride) {
    queue.granted = requests;
    queue.capacity = std::bit_ceil(std::max(requests, 1U));
    queue.stride = stride;
    queue.posted = queue.done = queue.released = 0;
    const auto ring = own.allocate(std::uint64_t{queue.capacity} * stride);
    if (!ring)
        return tl::unexpected(ring.error());
    queue.ring = *ring;
    return {};
}

std::uint32_t round_up(std::size_t bytes) {
    return static_cast<std::uint32_t>((bytes + 63) / 64 * 64);
}

answer<void> make_queues(segment& own, shared_qp& qp, const ibv_qp_cap& cap, bool with_receives) {
    qp.sq.max_entries = cap.max_send_sge;
    qp.sq.max_inline = cap.max_inline_data;
    const auto trailing =
        std::max<std::size_t>(cap.max_send_sge * sizeof(scatter_entry), cap.max_inline_data);
    if (const auto made = make_queue(own, qp.sq, cap.max_send_wr,
                                     round_up(sizeof(send_request) + trailing + scatter_bytes));
        !made)
        return made;
    qp.rq.max_entries = cap.max_recv_sge;
    const auto requests = with_receives ? cap.max_recv_wr : 0;
    const auto stride = sizeof(receive_request) + cap.max_recv_sge * sizeof(scatter_entry) + scatter_bytes;
    if (const auto made = make_queue(own, qp.rq, requests, round_up(stride)); !made) {
        own.release(qp.sq.ring);
        return made;
    }
    return {};
}

// libmlx5's own setting, read for each queue pair.
bool scatter_is_allowed() {
    const char* const setting = std::getenv("MLX5_SCATTER_TO_CQE");
    return setting == nullptr || std::strcmp(setting, "0") != 0;
}

void clear_connection(shared_qp& qp) {
    qp.peer_number = 0;
    qp.peer_incarnation = 0;
    qp.destination = {};
    qp.send_psn = qp.receive_psn = 0;
    qp.timeout = qp.retry_count = qp.rnr_retry = qp.min_rnr_timer = qp.rd_atomic = qp.dest_rd_atomic = 0;
    qp.access = 0;
    qp.qkey = 0;
    qp.rq.sender_waits = qp.waits = qp.attention = qp.rq.taken = 0;
    qp.rq.taken_sequence = 0;
    qp.remote = qp.established = 0;
    qp.sent = qp.expected = qp.tries = 0;
    qp.drains_to = qp.notify_drained = 0;
    qp.next_try_ns = 0;
    qp.rq.receives_polled = 0;
}

int check_init(const context& where, const ibv_context* handle, const ibv_qp_init_attr& asked) {
    if (asked.qp_type != IBV_QPT_RC && asked.qp_type != IBV_QPT_UC && asked.qp_type != IBV_QPT_UD)
        return EOPNOTSUPP;
    if (asked.send_cq == nullptr || asked.recv_cq == nullptr)
        return EINVAL;
    // A driver looks objects up by number within one context; it does not know those of another.
    if (asked.send_cq->context != handle || asked.recv_cq->context != handle ||
        (asked.srq != nullptr && asked.srq->context != handle))
        return EINVAL;
    if (asked.srq != nullptr && asked.qp_type == IBV_QPT_UC)
        return EOPNOTSUPP;
    return within_limits(asked.cap, where.hca->description) ? 0 : EINVAL;
}

answer<queue_pair*> make_qp(ibv_pd* pd, ibv_qp_init_attr& asked) {
    auto& where = context::of(pd->context);
    auto& home = *where.home;
    if (!home.present())
        return tl::unexpected(EINVAL);
    if (const int error = check_init(where, pd->context, asked); error != 0)
        return tl::unexpected(error);
    if (home.qps_made.fetch_add(1) >= where.hca->description.max_qp) {
        home.qps_made.fetch_sub(1);
        return tl::unexpected(ENOMEM);
    }
    const auto place = home.qp_places.take();
    const auto fail = [&](int error) {
        if (place)
            home.qp_places.release(*place);
        home.qps_made.fetch_sub(1);
        return tl::unexpected(error);
    };
    if (!place)
        return fail(ENOMEM);
    auto& qp = home.own()->qps[*place];
    if (const auto claimed = home.own().claim(&qp, sizeof(qp)); !claimed)
        return fail(claimed.error());
    auto cap = asked.cap;
    cap.max_send_sge = std::max(cap.max_send_sge, 1U);
    if (const auto queues = make_queues(home.own(), qp, cap, asked.srq == nullptr); !queues)
        return fail(queues.error());
    qp.number = home.own().slot() << index_bits | *place;
    qp.device = where.hca->index;
    qp.type = asked.qp_type;
    qp.pd = protection_domain::of(pd).id;
    qp.send_cq = completion_queue::of(asked.send_cq).index;
    qp.receive_cq = completion_queue::of(asked.recv_cq).index;
    qp.srq = asked.srq != nullptr ? shared_receive_queue::of(asked.srq).index : no_index;
    qp.signal_all = asked.sq_sig_all != 0;
    qp.scatters =
        where.hca->description.scatter_to_cqe && asked.qp_type != IBV_QPT_UD && scatter_is_allowed();
    qp.path_mtu = where.hca->description.mtu;
    qp.counted.clear();
    clear_connection(qp);
    qp.state = IBV_QPS_RESET;
    if (asked.srq != nullptr)
        cap.max_recv_wr = cap.max_recv_sge = 0;
    auto pair = std::make_unique<queue_pair>();
    pair->home = &home;
    pair->index = *place;
    pair->qp = &qp;
    pair->made_with = asked;
    pair->made_with.cap = cap;
    asked.cap = cap;
    auto& seen = pair->seen.qp_base;
    seen.context = pd->context;
    seen.qp_context = asked.qp_context;
    seen.pd = pd;
    seen.send_cq = asked.send_cq;
    seen.recv_cq = asked.recv_cq;
    seen.srq = asked.srq;
    seen.handle = *place;
    seen.qp_num = qp.number;
    seen.state = IBV_QPS_RESET;
    seen.qp_type = asked.qp_type;
    ::pthread_mutex_init(&seen.mutex, nullptr);
    ::pthread_cond_init(&seen.cond, nullptr);
    fill_work_request_functions(pair->seen);
    protection_domain::of(pd).users.fetch_add(1);
    completion_queue::of(asked.send_cq).users.fetch_add(1);
    completion_queue::of(asked.recv_cq).users.fetch_add(1);
    if (asked.srq != nullptr)
        shared_receive_queue::of(asked.srq).users.fetch_add(1);
    const std::lock_guard guard(home.objects);
    pair->serial = home.next_serial++;
    home.qps[*place] = pair.get();
    home.qps_in_use = std::max(home.qps_in_use, *place + 1);
    home.own()->head.qps_used = home.qps_in_use;
    qp.in_use.store(1, std::memory_order_release);
    return pair.release();
}

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* asked) {
    const auto refuse = [](int error) { return failure<ibv_qp*>(error, answers::with_errno); };
    constexpr std::uint32_t known_fields = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if ((asked->comp_mask & ~known_fields) != 0)
        return refuse(EOPNOTSUPP);
    if ((asked->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || asked->pd == nullptr)
        return refuse(EINVAL);
    constexpr std::uint64_t reliable = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                       IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                       IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    constexpr std::uint64_t unreliable = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                         IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    constexpr std::uint64_t datagram = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const auto allowed = asked->qp_type == IBV_QPT_RC   ? reliable
                         : asked->qp_type == IBV_QPT_UC ? unreliable
                                                        : datagram;
    if ((asked->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 && (asked->send_ops_flags & ~allowed) != 0)
        return refuse(EOPNOTSUPP);
    ibv_qp_init_attr plain{asked->qp_context, asked->send_cq, asked->recv_cq,   asked->srq,
                           asked->cap,        asked->qp_type, asked->sq_sig_all};
    const auto pair = make_qp(asked->pd, plain);
    if (!pair)
        return refuse(pair.error());
    asked->cap = plain.cap;
    return (*pair)->handle();
}

int check_values(const context& where, const ibv_qp_attr& values, int mask) {
    const auto& limits = where.hca->description;
    const auto has = [mask](int bit) { return (mask & bit) != 0; };
    if (has(IBV_QP_PORT) && (values.port_num < 1 || values.port_num > limits.ports))
        return EINVAL;
    if (has(IBV_QP_PKEY_INDEX) && values.pkey_index != 0)
        return EINVAL;
    if (has(IBV_QP_AV))
        if (const int error = check_address(where, values.ah_attr); error != 0)
            return error;
    if (has(IBV_QP_PATH_MTU) && (values.path_mtu < IBV_MTU_256 || values.path_mtu > IBV_MTU_4096 ||
                                 mtu_bytes(values.path_mtu) > limits.mtu))
        return EINVAL;
    if (has(IBV_QP_MAX_QP_RD_ATOMIC) && values.max_rd_atomic > limits.max_rd_atomic)
        return EINVAL;
    if (has(IBV_QP_MAX_DEST_RD_ATOMIC) && values.max_dest_rd_atomic > limits.max_rd_atomic)
        return EINVAL;
    if ((has(IBV_QP_TIMEOUT) && values.timeout > 31) || (has(IBV_QP_RETRY_CNT) && values.retry_cnt > 7) ||
        (has(IBV_QP_RNR_RETRY) && values.rnr_retry > 7) ||
        (has(IBV_QP_MIN_RNR_TIMER) && values.min_rnr_timer > 31) ||
        (has(IBV_QP_DEST_QPN) && values.dest_qp_num > 0xffffff))
        return EINVAL;
    if (has(IBV_QP_ALT_PATH) || has(IBV_QP_PATH_MIG_STATE))
        return EOPNOTSUPP; // no automatic path migration
    return 0;
}

void apply_port(queue_pair& pair, unsigned port) {
    auto& qp = *pair.qp;
    const auto& hca = *context::of(pair.handle()->context).hca;
    qp.port = port;
    qp.own_lid = hca.description.link == link_layer::infiniband ? lid_of(hca.index, port) : std::uint16_t{0};
    std::memcpy(qp.own_gids, hca.gids[port - 1], sizeof(qp.own_gids));
    if (qp.own_gids[1][0] == 0) // an empty GID entry matches no address
        std::memcpy(qp.own_gids[1], qp.own_gids[0], 16);
}

// Copies the values into the queue pair and into what ibv_query_qp() returns.
void apply_values(queue_pair& pair, const ibv_qp_attr& values, int mask) {
    auto& qp = *pair.qp;
    auto& kept = pair.attributes;
    const auto has = [mask](int bit) { return (mask & bit) != 0; };
    if (has(IBV_QP_ACCESS_FLAGS))
        qp.access = kept.qp_access_flags = values.qp_access_flags;
    if (has(IBV_QP_PKEY_INDEX))
        kept.pkey_index = values.pkey_index;
    if (has(IBV_QP_PORT)) {
        kept.port_num = values.port_num;
        apply_port(pair, values.port_num);
    }
    if (has(IBV_QP_QKEY))
        qp.qkey = kept.qkey = values.qkey;
    if (has(IBV_QP_AV)) {
        kept.ah_attr = values.ah_attr;
        qp.destination = route_of(values.ah_attr);
    }
    if (has(IBV_QP_PATH_MTU)) {
        kept.path_mtu = values.path_mtu;
        qp.path_mtu = mtu_bytes(values.path_mtu);
    }
    if (has(IBV_QP_TIMEOUT))
        qp.timeout = kept.timeout = values.timeout;
    if (has(IBV_QP_RETRY_CNT))
        qp.retry_count = kept.retry_cnt = values.retry_cnt;
    if (has(IBV_QP_RNR_RETRY))
        qp.rnr_retry = kept.rnr_retry = values.rnr_retry;
    if (has(IBV_QP_RQ_PSN))
        qp.receive_psn = kept.rq_psn = values.rq_psn & 0xffffff;
    if (has(IBV_QP_SQ_PSN))
        qp.send_psn = kept.sq_psn = values.sq_psn & 0xffffff;
    if (has(IBV_QP_MAX_QP_RD_ATOMIC))
        qp.rd_atomic = kept.max_rd_atomic = values.max_rd_atomic;
    if (has(IBV_QP_MAX_DEST_RD_ATOMIC))
        qp.dest_rd_atomic = kept.max_dest_rd_atomic = values.max_dest_rd_atomic;
    if (has(IBV_QP_MIN_RNR_TIMER))
        qp.min_rnr_timer = kept.min_rnr_timer = values.min_rnr_timer;
    if (has(IBV_QP_DEST_QPN))
        qp.peer_number = kept.dest_qp_num = values.dest_qp_num;
}

void reset(queue_pair& pair) {
    auto& qp = *pair.qp;
    qp.state.store(IBV_QPS_RESET);
    wait_for_both_sides(pair);
    const std::lock_guard objects(pair.home->objects); // the guard thread reads the peer
    const send_queue_guard sends(pair.local());
    const receive_queue_guard receives(pair.home->own(), qp.rq);
    arrive(*pair.home, qp);
    // All locks are held, so no executor adds a completion meanwhile.
    purge(completion_queue::of(pair.handle()->send_cq), qp.number, true);
    if (pair.handle()->recv_cq != pair.handle()->send_cq)
        purge(completion_queue::of(pair.handle()->recv_cq), qp.number, true);
    ++qp.life;
    qp.sq.posted = qp.sq.done = qp.sq.released = 0;
    qp.rq.posted = qp.rq.done = qp.rq.released = 0;
    if (qp.srq != no_index && qp.rq.taken.exchange(0) != 0) // an executor died after taking a receive
        pair.home->own()->srqs[qp.srq].queue.released.fetch_add(1);
    clear_connection(qp);
    pair.other.reset();
    pair.cached = {};
    pair.last_receive_reported = false;
    pair.flushed = false;
    pair.found_broken_ns = 0;
    pair.attributes = {};
    pair.handle()->state = IBV_QPS_RESET;
}

bool change(queue_pair& pair, const ibv_qp_attr& values, int mask, ibv_qp_state from, ibv_qp_state to) {
    auto& qp = *pair.qp;
    std::shared_ptr<peer> other;
    bool remote = false;
    if (to == IBV_QPS_RTR && (mask & IBV_QP_DEST_QPN) != 0) {
        remote = pair.home->network() != nullptr && !pair.home->is_local(values.ah_attr.grh.dgid.raw);
        if (!remote)
            other = pair.home->find_peer(slot_of(values.dest_qp_num));
        if (!remote && !other && pair.home->network() != nullptr)
            std::fprintf(stderr,
                         "gaudi-lab: queue pair %#x has an address of this lab, but no process of this lab "
                         "has it; two labs "
                         "on one host need different addresses, for example 127.0.0.1 and 127.0.0.2\n",
                         values.dest_qp_num);
    }
    const std::lock_guard objects(pair.home->objects); // the guard thread reads the peer
    const send_queue_guard sends(pair.local());
    const receive_queue_guard receives(pair.home->own(), qp.rq);
    if (qp.state.load() != static_cast<std::uint32_t>(from))
        return false; // a peer moved it to the error state meanwhile
    apply_values(pair, values, mask);
    pair.cached = {};
    if (remote)
        qp.remote = 1;
    if (other) {
        pair.other = other;
        qp.peer_incarnation = other->memory()->head.incarnation;
    }
    std::uint32_t expected = from;
    if (!qp.state.compare_exchange_strong(expected, to))
        return false;
    if (from == IBV_QPS_RTS && to == IBV_QPS_SQD)
        begin_drain(qp, (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && values.en_sqd_async_notify != 0);
    pair.handle()->state = to;
    return true;
}

int modify(queue_pair& pair, const ibv_qp_attr& values, int mask) {
    auto& qp = *pair.qp;
    if (!pair.home->present())
        return EINVAL;
    const auto from = static_cast<ibv_qp_state>(qp.state.load());
    if ((mask & IBV_QP_CUR_STATE) != 0 && values.cur_qp_state != from)
        return EINVAL;
    const auto to = (mask & IBV_QP_STATE) != 0 ? values.qp_state : from;
    const auto type = static_cast<ibv_qp_type>(qp.type);
    if (to > IBV_QPS_ERR || !may_change(type, from, to, mask))
        return EINVAL;
    if (const int error = check_values(context::of(pair.handle()->context), values, mask); error != 0)
        return error;
    switch (to) {
    case IBV_QPS_RESET:
        reset(pair);
        return 0;
    case IBV_QPS_ERR:
        qp.state = IBV_QPS_ERR;
        pair.handle()->state = IBV_QPS_ERR;
        flush(pair);
        return 0;
    default:
        break;
    }
    if (!change(pair, values, mask, from, to))
        return EINVAL;
    // From now on a peer that dies can leave work unfinished on this queue pair.
    if (to == IBV_QPS_RTR)
        pair.home->run_at(now_ns() + check_interval_ns);
    if (to == IBV_QPS_RTR && qp.rq.sender_waits.exchange(0) != 0)
        run_waiting_sender(pair);
    // Runs the requests that SQD held back. A queue with no request outstanding is drained at once.
    if ((to == IBV_QPS_RTS && from != IBV_QPS_RTR) || to == IBV_QPS_SQD)
        run_send_queue(*pair.home, pair.local(), pair.remote());
    return 0;
}

void destroy(queue_pair& pair) {
    auto& home = *pair.home;
    auto& qp = *pair.qp;
    reset(pair);
    {
        const std::lock_guard guard(home.objects);
        home.qps[pair.index] = nullptr;
        qp.in_use = 0;
    }
    wait_for_both_sides(pair);
    auto& sum = home.own()->head.counted[qp.device];
    sum.add(qp.counted);
    auto& seen = pair.seen.qp_base;
    ::pthread_mutex_lock(&seen.mutex);
    while (seen.events_completed != pair.events_read)
        ::pthread_cond_wait(&seen.cond, &seen.mutex);
    ::pthread_mutex_unlock(&seen.mutex);
    home.own().release(qp.sq.ring);
    home.own().release(qp.rq.ring);
    home.qp_places.release(pair.index);
    home.qps_made.fetch_sub(1);
}

} // namespace

void fill_qp_operations(verbs_context& context) {
    context.create_qp_ex = [](ibv_context* handle, ibv_qp_init_attr_ex* asked) {
        return call<ibv_qp*>(
            "ibv_create_qp_ex", answers::with_errno, [&] { return create_qp_ex(handle, asked); }, handle,
            asked);
    };
}

} // namespace lab::hca

VERB(ibv_qp*, ibv_create_qp, (ibv_pd * pd, ibv_qp_init_attr* asked), (pd, asked), {
    const auto pair = make_qp(pd, *asked);
    return pair ? (*pair)->handle() : fails(pair.error());
})

VERB(int, ibv_modify_qp, (ibv_qp * qp, ibv_qp_attr* values, int mask), (qp, values, mask), {
    const int error = modify(queue_pair::of(qp), *values, mask);
    return error == 0 ? 0 : fails(error);
})

VERB(int, ibv_query_qp, (ibv_qp * qp, ibv_qp_attr* values, int mask, ibv_qp_init_attr* init),
     (qp, values, mask, init), {
         auto& pair = queue_pair::of(qp);
         *values = pair.attributes;
         values->qp_state = values->cur_qp_state = static_cast<ibv_qp_state>(pair.qp->state.load());
         values->cap = pair.made_with.cap;
         values->sq_draining = is_draining(*pair.qp, pair.qp->sq.done.load());
         qp->state = values->qp_state;
         *init = pair.made_with;
         return 0;
     })

VERB(int, ibv_destroy_qp, (ibv_qp * qp), (qp), {
    auto& pair = queue_pair::of(qp);
    if (pair.home->present())
        destroy(pair);
    protection_domain::of(qp->pd).users.fetch_sub(1);
    completion_queue::of(qp->send_cq).users.fetch_sub(1);
    completion_queue::of(qp->recv_cq).users.fetch_sub(1);
    if (qp->srq != nullptr)
        shared_receive_queue::of(qp->srq).users.fetch_sub(1);
    delete &pair;
    return 0;
})

extern "C" [[gnu::visibility("default")]] ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
    return &lab::hca::queue_pair::of(qp).seen;
}

// Yes: the last bytes of a message become visible last, which is what programs that poll memory ask. Blocks
// within a message have no order, so the capabilities do not name them.
VERB_AS(with_no, int, ibv_query_qp_data_in_order, (ibv_qp * qp, ibv_wr_opcode opcode, uint32_t flags),
        (qp, opcode, flags), {
            constexpr std::uint32_t as_capabilities = 1, of_the_device = 2;
            constexpr int whole_message = 1; // as a capability bit, and as "yes"
            (void)qp;
            (void)opcode;
            return (flags & ~(as_capabilities | of_the_device)) == 0 ? whole_message : 0;
        })
