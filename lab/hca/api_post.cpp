// SPDX-License-Identifier: BSD-3-Clause
// Posting requests: the hot path. It makes no system call, allocates nothing and takes one lock.
#include "lab/hca/api_post.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/execution.hpp"
#include "lab/hca/exported.hpp"
#include "lab/hca/message.hpp"
#include "lab/hca/modes.hpp"

#include <cstring>
#include <fmt/format.h>
#include <iterator>

namespace lab::hca {
namespace {

bool may_carry(std::uint32_t type, ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return true;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return type != IBV_QPT_UD;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return type == IBV_QPT_RC;
    default:
        return false;
    }
}

// 0, or the errno with which a driver rejects the request. `before`: requests of its list that have no place
// in the queue yet.
int check(const shared_qp& qp, const ibv_send_wr& wr, std::uint32_t before) {
    if (!may_carry(qp.type, wr.opcode))
        return EINVAL;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.sq.max_entries)
        return EINVAL;
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        if (reads_back(wr.opcode))
            return EINVAL;
        std::uint64_t length = 0;
        for (int i = 0; i < wr.num_sge; ++i)
            length += wr.sg_list[i].length;
        if (length > qp.sq.max_inline)
            return EINVAL;
    }
    if (qp.type == IBV_QPT_UD && wr.wr.ud.ah == nullptr)
        return EINVAL;
    const auto posted = qp.sq.posted.load(std::memory_order_relaxed) + before;
    return posted - qp.sq.released.load(std::memory_order_acquire) >= qp.sq.granted ? ENOMEM : 0;
}

// The same for a whole list.
int check_all(const shared_qp& qp, const ibv_send_wr* wr) {
    for (std::uint32_t before = 0; wr != nullptr; wr = wr->next, ++before)
        if (const int error = check(qp, *wr, before); error != 0)
            return error;
    return 0;
}

void write_entries(scatter_entry* into, const ibv_sge* list, int count) {
    for (int i = 0; i < count; ++i)
        into[i] = {list[i].addr, list[i].length, list[i].lkey};
}

void write_request(send_request& into, const shared_qp& qp, const ibv_send_wr& wr) {
    into.wr_id = wr.wr_id;
    into.immediate = wr.imm_data;
    into.opcode = static_cast<std::uint8_t>(wr.opcode);
    into.flags = static_cast<std::uint8_t>(wr.send_flags);
    into.entries = static_cast<std::uint16_t>(wr.num_sge);
    into.inline_length = 0;
    into.due_ns = due_time();
    if (qp.type == IBV_QPT_UD)
        into.datagram = {address_handle::of(wr.wr.ud.ah).where, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey};
    else if (is_atomic(wr.opcode))
        into.rdma = {wr.wr.atomic.remote_addr, wr.wr.atomic.compare_add, wr.wr.atomic.swap,
                     wr.wr.atomic.rkey};
    else
        into.rdma = {wr.wr.rdma.remote_addr, 0, 0, wr.wr.rdma.rkey};
    auto* trailing = reinterpret_cast<std::byte*>(&into + 1);
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        for (int i = 0; i < wr.num_sge; ++i) {
            std::memcpy(trailing + into.inline_length, reinterpret_cast<const void*>(wr.sg_list[i].addr),
                        wr.sg_list[i].length);
            into.inline_length += wr.sg_list[i].length;
        }
        return;
    }
    write_entries(reinterpret_cast<scatter_entry*>(trailing), wr.sg_list, wr.num_sge);
}

void write_request(receive_request& into, const ibv_recv_wr& wr) {
    into.wr_id = wr.wr_id;
    into.entries = static_cast<std::uint32_t>(wr.num_sge);
    write_entries(reinterpret_cast<scatter_entry*>(&into + 1), wr.sg_list, wr.num_sge);
}

// Text for the trace, for each request of a list: "write 4096 bytes to 0x7f.. key 0x101 (id 3)".
template <typename Request>
std::string lengths_of(const Request* wr) {
    std::string text;
    for (; wr != nullptr; wr = wr->next) {
        std::uint64_t bytes = 0;
        for (int i = 0; i < wr->num_sge; ++i)
            bytes += wr->sg_list[i].length;
        text += fmt::format("{}{} bytes in {} (id {:#x})", text.empty() ? "" : ", ", bytes, wr->num_sge,
                            wr->wr_id);
    }
    return text;
}

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad) {
    return watched(
        "ibv_post_send",
        [&] { return post_sends(queue_pair::of(handle), wr, bad, takes::those_before_a_bad_one); },
        [&] { return described(handle->qp_num, wr); });
}

// Appends to a receive queue or a shared receive queue. The caller holds the queue's lock.
int append(segment& own, shared_queue& queue, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    int error = 0;
    auto posted = queue.posted.load(std::memory_order_relaxed);
    for (; wr != nullptr; wr = wr->next, ++posted) {
        if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > queue.max_entries)
            error = EINVAL;
        else if (posted - queue.released.load(std::memory_order_acquire) >= queue.granted)
            error = ENOMEM;
        if (error != 0) {
            *bad = wr;
            break;
        }
        write_request(*own.at<receive_request>(queue.ring +
                                               std::uint64_t{posted & (queue.capacity - 1)} * queue.stride),
                      *wr);
    }
    queue.posted.store(posted, std::memory_order_release);
    return error;
}

int post_receives(queue_pair& pair, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& qp = *pair.qp;
    int error = EINVAL;
    if (!pair.home->present() || qp.srq != no_index ||
        qp.state.load(std::memory_order_acquire) == IBV_QPS_RESET) {
        *bad = wr;
        return error;
    }
    {
        const receive_queue_guard guard(pair.home->own(), qp.rq);
        error = append(pair.home->own(), qp.rq, wr, bad);
    }
    if (qp.state.load() == IBV_QPS_ERR)
        flush_receives(pair.local());
    else if (qp.rq.sender_waits.load() != 0 && qp.rq.sender_waits.exchange(0) != 0)
        run_waiting_sender(pair);
    return error;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    return watched(
        "ibv_post_recv", [&] { return post_receives(queue_pair::of(handle), wr, bad); },
        [&] { return fmt::format("qp {:#x}, {}", handle->qp_num, lengths_of(wr)); });
}

// Runs the senders that found the shared receive queue empty.
void run_waiting_senders(shared_receive_queue& srq) {
    const std::lock_guard guard(srq.home->objects);
    for (std::uint32_t i = 0; i < srq.home->qps_in_use; ++i)
        if (auto* pair = srq.home->qps[i];
            pair != nullptr && pair->qp->srq == srq.index && pair->qp->rq.sender_waits.exchange(0) != 0)
            run_waiting_sender(*pair);
}

int post_shared(shared_receive_queue& srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    if (!srq.home->present()) {
        *bad = wr;
        return EINVAL;
    }
    int error = 0;
    {
        const receive_queue_guard guard(srq.home->own(), srq.srq->queue);
        error = append(srq.home->own(), srq.srq->queue, wr, bad);
    }
    if (srq.srq->senders_wait.load() != 0 && srq.srq->senders_wait.exchange(0) != 0)
        run_waiting_senders(srq);
    return error;
}

int post_srq_recv(ibv_srq* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    return watched(
        "ibv_post_srq_recv", [&] { return post_shared(shared_receive_queue::of(handle), wr, bad); },
        [&] { return fmt::format("srq {}, {}", handle->handle, lengths_of(wr)); });
}

} // namespace

std::string described(std::uint32_t qp_number, const ibv_send_wr* wr) {
    constexpr std::string_view names[] = {
        "write", "write with immediate", "send",         "send with immediate",
        "read",  "compare and swap",     "fetch and add"};
    std::string text = fmt::format("qp {:#x}", qp_number);
    for (; wr != nullptr; wr = wr->next) {
        ibv_send_wr one = *wr;
        one.next = nullptr;
        text += fmt::format(", {} {}",
                            static_cast<std::size_t>(wr->opcode) < std::size(names) ? names[wr->opcode] : "?",
                            lengths_of(&one));
        if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
            wr->opcode == IBV_WR_RDMA_READ)
            text += fmt::format(" at {:#x} key {:#x}", wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
    }
    return text;
}

int post_sends(queue_pair& pair, ibv_send_wr* wr, ibv_send_wr** bad, takes which) {
    auto& qp = *pair.qp;
    const auto state = qp.state.load(std::memory_order_acquire);
    if (!pair.home->present() || state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) {
        *bad = wr;
        return EINVAL;
    }
    const auto local = pair.local();
    std::uint64_t run_at = UINT64_MAX;
    int error = 0;
    {
        const send_queue_guard guard(local);
        const auto remote = pair.remote(); // the peer may change; read it under the lock
        if (which == takes::all_or_none)
            if (error = check_all(qp, wr); error != 0) {
                *bad = wr;
                return error;
            }
        for (; wr != nullptr; wr = wr->next) {
            error = check(qp, *wr, 0);
            if (error != 0) {
                *bad = wr;
                break;
            }
            const auto posted = qp.sq.posted.load(std::memory_order_relaxed);
            if (qp.sq.done.load(std::memory_order_relaxed) == posted &&
                move_at_once(*pair.home, local, remote, pair.cached, *wr))
                continue;
            write_request(local.request<send_request>(qp.sq, posted), qp, *wr);
            qp.sq.posted.store(posted + 1, std::memory_order_release);
        }
        // In this mode the guard thread runs the requests, never this call.
        if (runs_later())
            run_at = 0;
        else
            run_at = run_locked_send_queue(*pair.home, local, remote);
    }
    if (run_at != UINT64_MAX)
        pair.home->run_at(run_at);
    return error;
}

void fill_post_operations(verbs_context& context) {
    context.context.ops.post_send = post_send;
    context.context.ops.post_recv = post_recv;
    context.context.ops.post_srq_recv = post_srq_recv;
}

} // namespace lab::hca
