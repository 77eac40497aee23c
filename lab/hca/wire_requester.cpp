// SPDX-License-Identifier: BSD-3-Clause
// The requester over TCP: send queues of queue pairs whose peer is on another host.
#include "lab/hca/wire.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/message.hpp"
#include "lab/hca/modes.hpp"
#include "lab/hca/verbs.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lab::hca {
namespace {

constexpr std::uint64_t try_again_ns = 5 * 1000 * 1000;
constexpr std::uint32_t most_in_flight = 128;
constexpr std::uint64_t silence_ns = 10ULL * 1000000000; // a peer may take at least this long to answer

bool is_mapped_ipv4(const std::uint8_t* gid) {
    constexpr std::uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::memcmp(gid, prefix, sizeof(prefix)) == 0;
}

std::shared_ptr<link> link_to(process& here, const shared_qp& qp, const route& where, std::uint32_t number) {
    if (here.network() == nullptr || !is_mapped_ipv4(where.gid))
        return nullptr;
    return here.network()->find_or_connect(
        {ipv4_of(where.gid), static_cast<std::uint16_t>(first_port + slot_of(number))},
        ipv4_of(qp.own_gids[0]));
}

// How many bytes an RDMA read of this length requests from the peer: none for UCX's fence, which is answered
// in order like any request of no bytes.
std::uint64_t bytes_asked(const send_request& request, std::uint64_t length) {
    return is_answered_ucx_fence(request.rdma.address, request.rdma.key, length) ? 0 : length;
}

frame frame_of(const shared_qp& qp, const send_request& request, std::uint32_t place, std::uint64_t length) {
    frame head{};
    head.kind = static_cast<std::uint8_t>(frame_kind::request);
    head.opcode = request.opcode;
    head.flags = request.flags;
    head.source_qp = qp.number;
    head.target_qp = qp.peer_number;
    head.sequence = place;
    head.status = qp.send_psn;
    head.immediate = request.immediate;
    head.address = request.rdma.address;
    head.key = request.rdma.key;
    head.compare_or_add = request.rdma.compare_or_add;
    head.swap = request.rdma.swap;
    // `swap` holds the length of the answer where it is no operand of the request.
    head.length = reads_back(request.opcode) ? 0 : length;
    if (request.opcode == IBV_WR_RDMA_READ)
        head.swap = bytes_asked(request, length);
    return head;
}

std::uint64_t length_of(const send_request& request) {
    if ((request.flags & IBV_SEND_INLINE) != 0)
        return request.inline_length;
    const auto* entries = reinterpret_cast<const scatter_entry*>(&request + 1);
    return std::accumulate(entries, entries + request.entries, std::uint64_t{0},
                           [](std::uint64_t sum, const scatter_entry& each) { return sum + each.length; });
}

// `memory` is the requester's local memory.
void count(const endpoint& requester, std::uint8_t opcode, std::uint64_t bytes, const side& memory) {
    auto& counters = requester.qp->counted; // under the send queue's lock
    auto& of_dmabuf = reads_back(opcode) ? counters.bytes_to_dmabuf : counters.bytes_from_dmabuf;
    of_dmabuf.fetch_add(std::min(bytes, memory.hbm_bytes()), std::memory_order_relaxed);
    counters.messages.fetch_add(1, std::memory_order_relaxed);
    counters.bytes.fetch_add(bytes, std::memory_order_relaxed);
    counters.bytes_tcp.fetch_add(bytes, std::memory_order_relaxed);
}

// After a pause, sends the oldest unanswered request, and those after it, again.
void wait_for(shared_qp& qp, wait_reason why, std::uint64_t pause) {
    const auto now = now_ns();
    if (qp.waits.exchange(static_cast<std::uint32_t>(why)) != static_cast<std::uint32_t>(why)) {
        qp.waits_since_ns = now;
        qp.tries = 0;
    }
    ++qp.tries;
    qp.next_try_ns = now + pause;
    qp.sent = qp.sq.done.load();
}

// Checks a request on the requester's side; returns the status for its completion.
std::uint32_t check_request(process& here, const endpoint& requester, const send_request& request,
                            side& memory) {
    if (reads_back(request.opcode) && requester.qp->rd_atomic == 0)
        return IBV_WC_LOC_QP_OP_ERR;
    if (const auto status = gather_local(here, requester, request, memory); status != IBV_WC_SUCCESS)
        return status;
    return is_atomic(request.opcode) && memory.length < 8 ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

} // namespace

void send_remote_datagram(process& here, const endpoint& requester, const send_request& request,
                          const side& from) {
    const auto& qp = *requester.qp;
    const auto& target = request.datagram;
    const auto over = link_to(here, qp, target.where, target.qp_number);
    if (!over)
        return;
    frame head{};
    head.kind = static_cast<std::uint8_t>(frame_kind::datagram);
    head.opcode = request.opcode;
    head.flags = request.flags;
    head.source_qp = qp.number;
    head.target_qp = target.qp_number;
    head.key = (target.qkey & 0x80000000) != 0 ? qp.qkey : target.qkey;
    head.immediate = request.immediate;
    head.length = from.length;
    std::memcpy(&head.compare_or_add, qp.own_gids[0], 8);
    std::memcpy(&head.swap, qp.own_gids[0] + 8, 8);
    payload bytes;
    bytes.from = payload::source::bytes;
    bytes.bytes.resize(from.length);
    (void)copy(side::of(bytes.bytes.data(), from.length), from);
    over->send(head, std::move(bytes));
    count(requester, request.opcode, from.length, from);
}

std::uint64_t run_remote_send_queue(process& here, const endpoint& requester) {
    auto& qp = *requester.qp;
    auto& queue = qp.sq;
    for (;;) {
        const auto done = queue.done.load(std::memory_order_relaxed);
        const auto posted = queue.posted.load(std::memory_order_acquire);
        const auto state = qp.state.load(std::memory_order_acquire);
        if (qp.in_use.load() == 0 || done == posted)
            return UINT64_MAX;
        if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
            finish_request(requester, done, IBV_WC_WR_FLUSH_ERR, 0);
            qp.sent = done + 1;
            continue;
        }
        // TCP loses nothing, but a peer may never answer.
        const auto silence =
            qp.sent != done && qp.timeout != 0
                ? qp.progress_ns +
                      std::max<std::uint64_t>((4096ULL << qp.timeout) * (qp.retry_count + 1U), silence_ns)
                : UINT64_MAX;
        if (silence != UINT64_MAX && now_ns() >= silence) {
            fail_request(requester, done, IBV_WC_RETRY_EXC_ERR);
            qp.sent = done + 1;
            continue;
        }
        if ((state != IBV_QPS_RTS && !is_draining(qp, qp.sent)) || qp.sent == posted ||
            qp.sent - done >= most_in_flight)
            return silence;
        const auto now = qp.waits.load() != 0 ? now_ns() : 0;
        if (qp.waits.load() != 0 && qp.sent == done) {
            // This deadline is for a peer that is not reachable; missing receives are limited by the number
            // of retries.
            if (now >= deadline_of(qp, nullptr)) {
                fail_request(requester, done, IBV_WC_RETRY_EXC_ERR);
                qp.sent = done + 1;
                continue;
            }
            if (now < qp.next_try_ns)
                return qp.next_try_ns;
        }
        const auto place = qp.sent;
        // Wait for the outstanding requests first: no request is sent after one that is being retried, or
        // without a link.
        const bool linked = here.has_link(qp);
        if (place != done && (!linked || qp.waits.load() != 0))
            return silence;
        const auto& request = requester.request<send_request>(queue, place);
        if (request.due_ns != 0 && now_ns() < request.due_ns)
            return request.due_ns;
        if ((request.flags & IBV_SEND_FENCE) != 0 && place != done)
            return silence; // reads posted before it must complete first
        side memory;
        const auto status = check_request(here, requester, request, memory);
        if (status != IBV_WC_SUCCESS) {
            if (place != done)
                return silence; // it fails in order, when those before it are answered
            fail_request(requester, place, status);
            qp.sent = place + 1;
            continue;
        }
        const auto over = linked ? link_to(here, qp, qp.destination, qp.peer_number) : nullptr;
        // An unreliable queue pair drops the message silently.
        if ((!over || over->lost()) && qp.type == IBV_QPT_UC && place == done) {
            finish_request(requester, place, IBV_WC_SUCCESS, memory.length);
            qp.sent = place + 1;
            continue;
        }
        if (!over || over->lost()) {
            wait_for(qp, wait_reason::peer, try_again_ns);
            if (qp.timeout != 0 && now_ns() >= deadline_of(qp, nullptr))
                continue;
            return qp.next_try_ns;
        }
        const auto head = frame_of(qp, request, place, memory.length);
        payload body;
        if (head.length != 0) {
            body.from = payload::source::request;
            body.qp = index_of(qp.number);
            body.place = place;
            body.life = qp.life;
        }
        qp.sent = place + 1;
        qp.link = over->id();
        qp.progress_ns = now_ns();
        over->send(head, std::move(body));
    }
}

endpoint wire::own_qp(std::uint32_t number) const {
    auto& own = home_->own();
    auto& qp = own->qps[index_of(number)]; // only an address so far; nothing is read
    if (slot_of(number) != own.slot() || index_of(number) >= own->head.qps_used.load() ||
        qp.in_use.load(std::memory_order_acquire) == 0 || qp.number != number)
        return {};
    return {home_->self().get(), &qp};
}

void wire::finish_answer(link& from) {
    const auto& head = from.head_;
    const auto requester = own_qp(head.target_qp);
    if (requester.qp == nullptr)
        return;
    auto& qp = *requester.qp;
    std::uint64_t run_at = UINT64_MAX;
    {
        const lock_guard guard(qp.sq.lock);
        const auto done = qp.sq.done.load();
        if (qp.in_use.load() == 0 || qp.remote == 0 || qp.state.load() == IBV_QPS_ERR || done == qp.sent ||
            head.sequence != done || qp.peer_number != head.source_qp || !is_from_peer(from, qp))
            return; // from before a reset, or not from the peer
        qp.progress_ns = now_ns();
        const auto& request = requester.request<send_request>(qp.sq, done);
        side memory;
        const auto gathered = gather_local(*home_, requester, request, memory);
        const auto settle = [&](std::uint32_t status) {
            qp.waits = static_cast<std::uint32_t>(wait_reason::none);
            if (status != IBV_WC_SUCCESS) {
                fail_request(requester, done, status);
                qp.sent = done + 1;
                return;
            }
            const auto bytes = is_atomic(request.opcode) ? std::uint64_t{8} : length_of(request);
            count(requester, request.opcode, bytes, memory);
            hca::finish_request(requester, done, status, bytes);
        };
        if (head.status == answer_no_receive) {
            const auto used =
                qp.waits.load() == static_cast<std::uint32_t>(wait_reason::receive) ? qp.tries : 0;
            if (qp.rnr_retry != 7 && used >= qp.rnr_retry)
                settle(IBV_WC_RNR_RETRY_EXC_ERR);
            else
                wait_for(qp, wait_reason::receive, rnr_time_ns(head.immediate));
        } else if (head.status == answer_not_ready) {
            if (qp.type == IBV_QPT_UC)
                settle(IBV_WC_SUCCESS);
            else
                wait_for(qp, wait_reason::peer, try_again_ns);
        } else if (head.status > IBV_WC_GENERAL_ERR)
            settle(IBV_WC_GENERAL_ERR);
        else if (is_atomic(request.opcode)) {
            const auto status = head.status == IBV_WC_SUCCESS ? gathered : head.status;
            if (status == IBV_WC_SUCCESS && memory.length >= 8)
                (void)copy(memory, side::of(&head.compare_or_add, 8));
            settle(status);
        } else if (request.opcode == IBV_WR_RDMA_READ && head.status == IBV_WC_SUCCESS) {
            settle(from.spoiled_ || gathered != IBV_WC_SUCCESS ||
                           bytes_asked(request, memory.length) != head.length
                       ? std::uint32_t{IBV_WC_LOC_PROT_ERR}
                       : std::uint32_t{IBV_WC_SUCCESS});
        } else
            settle(head.status);
        run_at = run_locked_send_queue(*home_, requester, {});
    }
    if (run_at != UINT64_MAX)
        home_->run_at(run_at);
}

// The connection is closed: its outstanding requests fail if it was established; otherwise they are sent
// again.
void wire::lose(const std::shared_ptr<link>& gone) {
    gone->lost_ = true;
    {
        const std::lock_guard guard(mutex_);
        if (const auto entry = by_peer_.find(gone->peer_); entry != by_peer_.end() && entry->second == gone)
            by_peer_.erase(entry);
        by_fd_.erase(gone->fd_);
    }
    if (gone->has_taken_) // a message that broke off
        if (const auto target = own_qp(gone->head_.target_qp); target.qp != nullptr)
            break_down(target, 0);
    for (std::uint32_t i = 0; i < home_->own()->head.qps_used.load(); ++i) {
        auto& qp = home_->own()->qps[i];
        if (qp.in_use.load() == 0)
            continue;
        const endpoint requester{home_->self().get(), &qp};
        std::uint64_t run_at = UINT64_MAX;
        {
            const lock_guard guard(qp.sq.lock);
            const auto done = qp.sq.done.load();
            if (qp.in_use.load() == 0 || qp.remote == 0 || qp.type == IBV_QPT_UD || qp.sent == done ||
                qp.link != gone->id_)
                continue;
            if (gone->established_) {
                fail_request(requester, done, IBV_WC_RETRY_EXC_ERR);
                qp.sent = done + 1;
            } else {
                wait_for(qp, wait_reason::peer, try_again_ns);
            }
            run_at = run_locked_send_queue(*home_, requester, {});
        }
        if (run_at != UINT64_MAX)
            home_->run_at(run_at);
    }
}

} // namespace lab::hca
