// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/housekeeping.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/objects.hpp"
#include "lab/hca/posted_writes.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace lab::hca {
namespace {

void raise_event(queue_pair& qp, ibv_event_type type) {
    raise(context::of(qp.handle()->context), {static_cast<std::uint32_t>(type), qp.index, qp.serial, 0});
}

void attend(queue_pair& qp) {
    const auto bits = qp.qp->attention.exchange(0);
    if ((bits & event_access_error) != 0)
        raise_event(qp, IBV_EVENT_QP_ACCESS_ERR);
    if ((bits & event_request_error) != 0)
        raise_event(qp, IBV_EVENT_QP_REQ_ERR);
    if ((bits & event_fatal) != 0)
        raise_event(qp, IBV_EVENT_QP_FATAL);
    if ((bits & event_established) != 0)
        raise_event(qp, IBV_EVENT_COMM_EST);
    if ((bits & event_drained) != 0)
        raise_event(qp, IBV_EVENT_SQ_DRAINED);
    if ((bits & needs_flush) != 0)
        flush(qp);
}

void attend_qps(process& home) {
    for (std::uint32_t word = 0; word < max_qps / 64; ++word) {
        auto bits = home.own()->head.qp_attention[word].load(std::memory_order_relaxed);
        if (bits == 0)
            continue;
        bits = home.own()->head.qp_attention[word].exchange(0);
        for (; bits != 0; bits &= bits - 1)
            if (auto* qp = home.qps[word * 64 + static_cast<unsigned>(std::countr_zero(bits))]; qp != nullptr)
                attend(*qp);
    }
}

// Raises an event that a producer owes; if the channel is full, retries in the next round.
void pay(process& home, completion_queue& cq) {
    if (!home.self()->signal(cq.cq->channel, std::uint64_t{cq.cq->serial} << 32 | cq.index))
        cq.cq->signal_owed = 1;
}

// An overrun queue is unusable: raises an event for it, and breaks the queue pairs that use it.
void attend_cqs(process& home) {
    if (home.own()->head.cq_attention.exchange(0) == 0)
        return;
    for (auto* cq : home.cqs) {
        if (cq == nullptr)
            continue;
        if (cq->cq->signal_owed.exchange(0) != 0)
            pay(home, *cq);
        auto fresh = std::uint32_t{1};
        if (!cq->cq->overrun.compare_exchange_strong(fresh, 2))
            continue;
        raise(context::of(cq->handle()->context), {IBV_EVENT_CQ_ERR, cq->index, cq->cq->serial, 0});
        for (auto* qp : home.qps)
            if (qp != nullptr && (qp->qp->send_cq == cq->index || qp->qp->receive_cq == cq->index))
                break_down(qp->local(), event_fatal);
    }
}

void attend_srqs(process& home) {
    if (home.own()->head.srq_attention.exchange(0) == 0)
        return;
    for (auto* srq : home.srqs)
        if (srq != nullptr && srq->srq->limit_event.exchange(0) != 0)
            raise(context::of(srq->seen.context), {IBV_EVENT_SRQ_LIMIT_REACHED, srq->index, srq->serial, 0});
}

// Raises an event for a link that went down or came up. Two changes since the last check raise two events.
void attend_ports(process& home) {
    const auto seen = home.ports().seen();
    const auto reported = std::exchange(home.ports_reported, seen);
    for (unsigned i = 0; i < seen.size(); ++i)
        for (auto change = seen[i] - std::min(seen[i] - reported[i], 2U); change != seen[i];) {
            const auto type = ++change % 2 != 0 ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE;
            const auto hca = i / port_states::ports_of_hca, port = i % port_states::ports_of_hca + 1;
            for (auto* context : home.contexts)
                if (context->hca->index == hca)
                    raise(*context, {static_cast<std::uint32_t>(type), 0, 0, port});
        }
}

// The process that moves a queue pair to the error state sets its attention bits next, and the owner must
// read these before it flushes. If that process died in between, the state stays unchanged for a whole round:
// only then is this true.
bool was_left_alone(queue_pair& qp) {
    const auto now = now_ns();
    if (qp.found_broken_ns == 0)
        qp.found_broken_ns = now;
    return now - qp.found_broken_ns >= check_interval_ns;
}

// Finishes what a peer that was killed half-way left undone. Runs once a second, while any queue pair is
// connected.
// Whether a producer has owed an event for a whole interval. A producer that is about to raise its event owes
// it for less than a microsecond, unless it has died.
bool is_overdue(completion_queue& cq) {
    const auto now = now_ns();
    if (cq.cq->signal_owed.load() == 0) {
        cq.owed_since_ns = 0;
        return false;
    }
    if (cq.owed_since_ns == 0)
        cq.owed_since_ns = now;
    if (now - cq.owed_since_ns < check_interval_ns)
        return false;
    cq.owed_since_ns = 0;
    return cq.cq->signal_owed.exchange(0) != 0;
}

bool check_all(process& home) {
    bool anything = false;
    for (std::uint32_t i = 0; i < home.qps_in_use; ++i)
        if (auto* qp = home.qps[i]; qp != nullptr && qp->qp->state.load() >= IBV_QPS_RTR) {
            anything = true;
            if (qp->qp->state.load() == IBV_QPS_ERR && !qp->flushed && was_left_alone(*qp))
                flush(*qp);
        }
    if (!anything)
        return false;
    for (auto* cq : home.cqs) {
        if (cq == nullptr)
            continue;
        // The entry was counted but never published: its producer died in between.
        if (cq->cq->produced.load() != cq->cq->consumed.load())
            const producer_guard guard(home.own(), *cq->cq);
        if (cq->cq->channel == no_index)
            continue;
        const bool owed = is_overdue(*cq);
        auto armed = std::uint32_t{lab::hca::anything};
        const bool silent = cq->cq->armed.load() == armed && has_unreported(home.own(), *cq->cq, false) &&
                            cq->cq->armed.compare_exchange_strong(armed, nothing);
        // A producer may be alive and stopped for longer: then this raises a second event. That is accepted:
        // an extra event costs one poll; a missing one would block a program for ever.
        if (owed || silent)
            pay(home, *cq);
    }
    return true;
}

} // namespace

std::uint64_t keep_house(process& home) {
    const std::lock_guard guard(home.objects);
    attend_qps(home);
    attend_cqs(home);
    attend_srqs(home);
    attend_ports(home);
    std::uint64_t next = UINT64_MAX;
    if (check_all(home)) {
        attend_cqs(home);
        next = now_ns() + check_interval_ns;
    }
    // Requests that wait: run_send_queue() schedules the next check itself.
    for (std::uint32_t i = 0; i < home.qps_in_use; ++i)
        if (auto* qp = home.qps[i]; qp != nullptr && qp->qp->sq.done.load() != qp->qp->sq.posted.load())
            run_send_queue(home, qp->local(), qp->remote());
    return std::min(next, arrive_due(home));
}

} // namespace lab::hca
