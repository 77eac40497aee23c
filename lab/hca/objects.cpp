// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/objects.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/receive.hpp"

#include <unistd.h>

namespace lab::hca {

std::uint16_t lid_of(unsigned device, unsigned port) {
    return static_cast<std::uint16_t>(1 + device * 2 + (port - 1));
}

void raise(context& where, const async_record& what) {
    // The pipe does not block: a program that never reads its events loses later ones, as with a driver whose
    // queue is full.
    (void)!::write(where.async_pipe[1], &what, sizeof(what));
}

void run_waiting_sender(queue_pair& qp) {
    std::shared_ptr<peer> other;
    {
        const receive_queue_guard guard(qp.home->own(), qp.qp->rq);
        other = qp.other;
    }
    if (!other || !other->memory().alive())
        return;
    auto& theirs = other->memory()->qps[index_of(qp.qp->peer_number)];
    if (theirs.in_use.load(std::memory_order_acquire) == 0 || theirs.peer_number != qp.qp->number ||
        theirs.peer_incarnation.load() != qp.home->own()->head.incarnation)
        return;
    run_send_queue(*qp.home, {other.get(), &theirs}, qp.local());
}

void purge(completion_queue& cq, std::uint32_t qp_number, bool also_receives_of_srq) {
    const lock_guard consumers(cq.cq->consumers);
    const lock_guard producers(cq.cq->producers);
    const auto mask = cq.cq->capacity - 1;
    const auto first = cq.cq->consumed.load(), last = cq.cq->produced.load();
    // Entries that stay move towards the producer's end, so that the place of the next entry does not change.
    auto to = last;
    for (auto from = last; from != first; --from) {
        const auto& entry = cq.ring[(from - 1) & mask];
        if (entry.qp_number == qp_number) {
            if (entry.of_srq != 0 && also_receives_of_srq)
                cq.home->own()->srqs[cq.home->own()->qps[index_of(qp_number)].srq].queue.released.fetch_add(
                    1);
            continue;
        }
        --to;
        if (to != from - 1)
            fill(cq.ring[to & mask], entry);
        publish(cq.ring[to & mask], to);
    }
    cq.consumed_up_to(to);
}

void flush(queue_pair& qp) {
    if (qp.qp->state.load() != IBV_QPS_ERR)
        return;
    qp.flushed = true;
    run_send_queue(*qp.home, qp.local(), qp.remote());
    wait_for_both_sides(qp); // an executor that is alive completes the receive it took
    if (qp.qp->remote == 0)
        complete_orphan(qp.local());
    flush_receives(qp.local());
    if (qp.qp->srq != no_index && !qp.last_receive_reported) {
        qp.last_receive_reported = true;
        raise(context::of(qp.handle()->context), {IBV_EVENT_QP_LAST_WQE_REACHED, qp.index, qp.serial, 0});
    }
}

void wait_for_both_sides(queue_pair& pair) {
    pair.qp->sq.lock.wait_for_turn();
    pair.qp->inbound.wait_for_turn();
    if (const auto remote = pair.remote(); remote.owner != nullptr)
        remote.qp->sq.lock.wait_for_turn();
}

void wait_for_executors(process& home) {
    const std::lock_guard guard(home.objects);
    for (std::uint32_t i = 0; i < home.qps_in_use; ++i) {
        const auto* qp = home.qps[i];
        if (qp == nullptr)
            continue;
        qp->qp->sq.lock.wait_for_turn();
        qp->qp->inbound.wait_for_turn();
        if (const auto remote = qp->remote(); remote.owner != nullptr)
            remote.qp->sq.lock.wait_for_turn();
    }
}

} // namespace lab::hca
