// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/receive.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/verbs.hpp"

#include <algorithm>

namespace lab::hca {
namespace {

void note_taken(const endpoint& responder, const taken_receive& taken, std::uint32_t place) {
    auto& qp = *responder.qp;
    qp.rq.taken_wr_id = taken.wr_id;
    qp.rq.taken_place = place;
    ++qp.rq.taken_sequence;
    qp.rq.taken.store(1, std::memory_order_release);
}

bool was_completed(const endpoint& which) {
    const auto& qp = *which.qp;
    if (qp.rq.receives_polled.load() == qp.rq.taken_sequence)
        return true;
    const auto& cq = which.cq(qp.receive_cq);
    for (auto at = cq.consumed.load(); at != cq.produced.load(); ++at) {
        const auto& entry = entry_of(which.memory(), cq, at);
        if (entry.qp_number == qp.number && entry.of_send_queue == 0 && entry.place == qp.rq.taken_sequence)
            return true;
    }
    return false;
}

void read_request(const endpoint& responder, const shared_queue& queue, std::uint32_t place,
                  taken_receive& into) {
    const auto& request = responder.request<receive_request>(queue, place);
    into.wr_id = request.wr_id;
    into.entry_count = std::min(request.entries, max_scatter);
    const auto* entries = reinterpret_cast<const scatter_entry*>(&request + 1);
    std::copy_n(entries, into.entry_count, into.entries);
}

void check_limit(const endpoint& responder, shared_srq& srq, std::uint32_t left) {
    const auto limit = srq.limit.load(std::memory_order_relaxed);
    if (limit == 0 || left >= limit)
        return;
    srq.limit = 0; // each arming raises one event
    srq.limit_event = 1;
    responder.memory()->head.srq_attention = 1;
    responder.memory().ring();
}

} // namespace

receive_queue_guard::receive_queue_guard(segment& owner, shared_queue& queue) : queue_(queue) {
    if (!queue.lock.lock())
        return;
    if (queue.taking != 0) {
        auto& qp = owner->qps[queue.taking - 1];
        if (qp.rq.taken_place == queue.done.load()) // recorded as taken, but still in the queue
            qp.rq.taken = 0;
        queue.taking = 0;
    }
}

inbound_guard::inbound_guard(const endpoint& responder) : lock_(responder.qp->inbound) {
    if (!lock_.lock() || responder.qp->rq.taken.load() == 0 || was_completed(responder))
        return;
    auto& qp = *responder.qp;
    if (qp.srq == no_index) {
        const receive_queue_guard guard(responder.memory(), qp.rq);
        if (qp.rq.taken_place + 1 == qp.rq.done.load()) {
            qp.rq.done = qp.rq.taken_place;
            qp.rq.taken = 0;
            return;
        }
    }
    complete_orphan(responder);
}

bool take_receive(const endpoint& responder, taken_receive& into) {
    auto& qp = *responder.qp;
    auto* srq = qp.srq == no_index ? nullptr : &responder.memory()->srqs[qp.srq];
    auto& queue = srq != nullptr ? srq->queue : qp.rq;
    // Prefetched before the lock is taken: most likely the next receive is the one after the last.
    thread_local struct {
        const shared_queue* queue;
        std::uint32_t place;
    } next{};
    if (next.queue == &queue)
        __builtin_prefetch(&responder.request<receive_request>(queue, next.place));
    const receive_queue_guard guard(responder.memory(), queue);
    const auto place = queue.done.load(std::memory_order_relaxed);
    next = {&queue, place + 1};
    const auto posted = queue.posted.load(std::memory_order_acquire);
    if (place == posted) {
        qp.rq.sender_waits.store(1);
        if (srq != nullptr)
            srq->senders_wait.store(1);
        return false;
    }
    into.of_srq = srq != nullptr;
    read_request(responder, queue, place, into);
    std::atomic_ref(queue.taking).store(index_of(qp.number) + 1, std::memory_order_release);
    note_taken(responder, into, place);
    queue.done.store(place + 1, std::memory_order_release);
    std::atomic_ref(queue.taking).store(0, std::memory_order_release);
    if (srq != nullptr)
        check_limit(responder, *srq, posted - place - 1);
    return true;
}

access_result find_buffers(process& here, const endpoint& responder, const taken_receive& taken, side& to) {
    const auto pd = taken.of_srq ? responder.memory()->srqs[responder.qp->srq].pd : responder.qp->pd;
    return find_entries(here, responder.memory(), taken.entries, taken.entry_count, pd,
                        IBV_ACCESS_LOCAL_WRITE, to);
}

void complete_receive(const endpoint& responder, const taken_receive& taken, completion& entry) {
    entry.of_srq = taken.of_srq;
    entry.place = responder.qp->rq.taken_sequence;
    push(*responder.owner, responder.qp->receive_cq, entry);
    responder.qp->rq.taken.store(0, std::memory_order_release);
}

void complete_orphan(const endpoint& which) {
    auto& qp = *which.qp;
    if (qp.rq.taken.exchange(0) == 0 || was_completed(which))
        return;
    completion entry{};
    entry.wr_id = qp.rq.taken_wr_id;
    entry.status = IBV_WC_WR_FLUSH_ERR;
    entry.opcode = IBV_WC_RECV;
    entry.qp_number = qp.number;
    entry.of_srq = qp.srq != no_index;
    entry.place = qp.rq.taken_sequence;
    push(*which.owner, qp.receive_cq, entry);
}

void flush_receives(const endpoint& which) {
    auto& qp = *which.qp;
    completion entry{};
    entry.status = IBV_WC_WR_FLUSH_ERR;
    entry.opcode = IBV_WC_RECV;
    entry.qp_number = qp.number;
    if (qp.srq != no_index)
        return; // the receives belong to all queue pairs of the shared queue
    for (;;) {
        taken_receive taken;
        const receive_queue_guard guard(which.memory(), qp.rq);
        const auto place = qp.rq.done.load();
        if (place == qp.rq.posted.load() || qp.state.load() != IBV_QPS_ERR)
            return;
        read_request(which, qp.rq, place, taken);
        qp.rq.done = place + 1;
        entry.wr_id = taken.wr_id;
        push(*which.owner, qp.receive_cq, entry);
    }
}

} // namespace lab::hca
