// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/engine.hpp"

#include "lab/hca/execution.hpp"
#include "lab/hca/message.hpp"
#include "lab/hca/modes.hpp"
#include "lab/hca/verbs.hpp"
#include "lab/hca/wire.hpp"

#include <algorithm>

namespace lab::hca {
namespace {

constexpr std::uint64_t largest_message = 1ULL << 31;
// While a request waits: how often to check that the peer is alive.
constexpr std::uint64_t recheck_ns = 100 * 1000 * 1000;

// Receiver-not-ready timer, in units of 10 microseconds, by its code.
constexpr std::uint32_t rnr_units[32] = {
    65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

ibv_wc_opcode completion_opcode(std::uint8_t opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    default:
        return IBV_WC_SEND;
    }
}

// After the holder of the lock died: skips the requests whose completion was already written, so that they do
// not run again.
void pass_over_completed(const endpoint& requester) {
    auto& queue = requester.qp->sq;
    auto done = queue.done.load();
    const auto ahead = [&](std::uint32_t place) { return place + 1 - done - 1 < queue.capacity; };
    if (const auto released = queue.released.load(); released - done - 1 < queue.capacity)
        done = released;
    auto& cq = requester.cq(requester.qp->send_cq);
    for (auto at = cq.consumed.load(); at != cq.produced.load(); ++at) {
        const auto& entry = entry_of(requester.memory(), cq, at);
        if (entry.qp_number == requester.qp->number && entry.of_send_queue != 0 && ahead(entry.place))
            done = entry.place + 1;
    }
    queue.done = done;
}

// Whether the wait has exceeded its deadline; starts the clock of a new wait.
bool given_up(const endpoint& requester, const endpoint& responder, wait_reason why) {
    auto& qp = *requester.qp;
    const auto now = now_ns();
    if (qp.waits.load() != static_cast<std::uint32_t>(why)) {
        qp.waits_since_ns = now;
        qp.waits = static_cast<std::uint32_t>(why);
    }
    return now >= deadline_of(qp, responder.qp);
}

void notify_if_drained(const endpoint& requester) {
    auto& qp = *requester.qp;
    if (qp.notify_drained == 0 || qp.state.load() != IBV_QPS_SQD || is_draining(qp, qp.sq.done.load()))
        return;
    qp.notify_drained = 0;
    call_attention(requester, event_drained);
}

} // namespace

void begin_drain(shared_qp& qp, bool raise_event) {
    const auto done = qp.sq.done.load();
    const bool waits = qp.waits.load() != 0 && done != qp.sq.posted.load();
    qp.drains_to = qp.remote != 0 && qp.sent != done ? qp.sent : done + (waits ? 1U : 0U);
    qp.notify_drained = raise_event ? 1 : 0;
}

bool is_draining(const shared_qp& qp, std::uint32_t place) {
    return qp.state.load(std::memory_order_acquire) == IBV_QPS_SQD &&
           static_cast<std::int32_t>(qp.drains_to - place) > 0;
}

std::uint32_t gather_local(process& here, const endpoint& requester, const send_request& request, side& to) {
    const auto* trailing = reinterpret_cast<const std::byte*>(&request + 1);
    if ((request.flags & IBV_SEND_INLINE) != 0) {
        to.add(trailing, request.inline_length);
        return IBV_WC_SUCCESS;
    }
    const auto* entries = reinterpret_cast<const scatter_entry*>(trailing);
    const std::uint32_t rights = reads_back(request.opcode) ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0;
    switch (find_entries(here, requester.memory(), entries, request.entries, requester.qp->pd, rights, to)) {
    case access_result::denied:
        return IBV_WC_LOC_PROT_ERR;
    case access_result::unmappable:
        return IBV_WC_LOC_QP_OP_ERR;
    case access_result::fine:
        break;
    }
    return to.length > largest_message ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

std::uint64_t rnr_time_ns(std::uint32_t code) {
    return std::uint64_t{rnr_units[code & 31]} * 10000;
}

void complete_send(const endpoint& requester, std::uint32_t place, const ended_send& how) {
    completion entry{};
    entry.wr_id = how.wr_id;
    entry.status = how.status;
    entry.opcode = completion_opcode(how.opcode);
    entry.byte_count = static_cast<std::uint32_t>(how.bytes);
    entry.qp_number = requester.qp->number;
    entry.place = place;
    entry.of_send_queue = 1;
    push(*requester.owner, requester.qp->send_cq, entry);
}

void finish_request(const endpoint& requester, std::uint32_t place, std::uint32_t status,
                    std::uint64_t bytes) {
    auto& queue = requester.qp->sq;
    const auto& request = requester.request<send_request>(queue, place);
    if (status != IBV_WC_SUCCESS || requester.qp->signal_all != 0 || (request.flags & IBV_SEND_SIGNALED) != 0)
        complete_send(requester, place, {request.wr_id, request.opcode, status, bytes});
    queue.done.store(place + 1, std::memory_order_release);
}

void fail_request(const endpoint& requester, std::uint32_t place, std::uint32_t status) {
    auto& qp = *requester.qp;
    qp.counted.errors.fetch_add(1, std::memory_order_relaxed);
    if (qp.type == IBV_QPT_RC)
        break_down(requester, 0);
    else {
        std::uint32_t running = IBV_QPS_RTS;
        qp.state.compare_exchange_strong(running, IBV_QPS_SQE);
    }
    finish_request(requester, place, status, 0);
}

std::uint64_t deadline_of(const shared_qp& requester, const shared_qp* responder) {
    const auto since = requester.waits_since_ns.load();
    switch (static_cast<wait_reason>(requester.waits.load())) {
    case wait_reason::none:
        return UINT64_MAX;
    case wait_reason::receive:
        if (requester.rnr_retry == 7 || responder == nullptr)
            return UINT64_MAX;
        return since + requester.rnr_retry * rnr_time_ns(responder->min_rnr_timer);
    case wait_reason::peer:
        if (requester.timeout == 0)
            return UINT64_MAX;
        return since + (4096ULL << requester.timeout) * (requester.retry_count + 1U);
    }
    return UINT64_MAX;
}

send_queue_guard::send_queue_guard(const endpoint& requester) : lock_(requester.qp->sq.lock) {
    if (lock_.lock())
        pass_over_completed(requester);
}

void run_send_queue(process& here, const endpoint& requester, const endpoint& responder) {
    std::uint64_t run_at = UINT64_MAX;
    {
        const send_queue_guard guard(requester);
        run_at = run_locked_send_queue(here, requester, responder);
    }
    if (run_at != UINT64_MAX && &requester.memory() == &here.own())
        here.run_at(run_at);
}

namespace {

std::uint64_t run_local_send_queue(process& here, const endpoint& requester, const endpoint& responder) {
    auto& qp = *requester.qp;
    auto& queue = qp.sq;
    std::uint64_t run_at = UINT64_MAX;
    for (;;) {
        const auto place = queue.done.load(std::memory_order_relaxed);
        if (qp.in_use.load(std::memory_order_relaxed) == 0 ||
            place == queue.posted.load(std::memory_order_acquire))
            break;
        const auto state = qp.state.load(std::memory_order_acquire);
        if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
            finish_request(requester, place, IBV_WC_WR_FLUSH_ERR, 0);
            continue;
        }
        if (state != IBV_QPS_RTS && !is_draining(qp, place))
            break;
        const auto& request = requester.request<send_request>(queue, place);
        if (request.due_ns != 0 && now_ns() < request.due_ns) {
            run_at = request.due_ns;
            break;
        }
        auto end = execute(here, requester, responder, request);
        if (end.waits != wait_reason::none) {
            if (!given_up(requester, responder, end.waits)) {
                run_at = std::min(deadline_of(qp, responder.qp), now_ns() + recheck_ns);
                // A receive is posted already (mode rnr), so no later post will run the request: retry by
                // timer.
                if (mode_is_set && end.waits == wait_reason::receive)
                    run_at = std::min(run_at, now_ns() + rnr_time_ns(responder.qp->min_rnr_timer));
                break;
            }
            end.status = end.waits == wait_reason::receive ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
        }
        if (qp.waits.load(std::memory_order_relaxed) != 0)
            qp.waits = static_cast<std::uint32_t>(wait_reason::none);
        if (end.status != IBV_WC_SUCCESS)
            fail_request(requester, place, end.status);
        else
            finish_request(requester, place, IBV_WC_SUCCESS, end.bytes);
    }
    return run_at;
}

} // namespace

std::uint64_t run_locked_send_queue(process& here, const endpoint& requester, const endpoint& responder) {
    const auto run_at = requester.qp->remote != 0 ? run_remote_send_queue(here, requester)
                                                  : run_local_send_queue(here, requester, responder);
    notify_if_drained(requester);
    return run_at;
}

} // namespace lab::hca
