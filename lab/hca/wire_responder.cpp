// SPDX-License-Identifier: BSD-3-Clause
// The responder over TCP: the wire's thread executes the requests of queue pairs on other hosts. It receives
// bytes from the socket directly into their destination.
#include "lab/hca/wire.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/message.hpp"
#include "lab/hca/scattered.hpp"

#include <algorithm>
#include <cstring>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

namespace lab::hca {
namespace {

completion completion_of(const frame& head, const taken_receive& taken) {
    const message_head message{head.opcode, head.flags,     head.immediate,
                               head.length, head.source_qp, head.target_qp};
    return completion_of(message, taken);
}

} // namespace

void wire::answer(link& to, std::uint32_t status, payload body, std::uint64_t length, std::uint64_t value) {
    frame reply{};
    reply.kind = static_cast<std::uint8_t>(frame_kind::answer);
    reply.opcode = to.head_.opcode;
    reply.source_qp = to.head_.target_qp;
    reply.target_qp = to.head_.source_qp;
    reply.sequence = to.head_.sequence;
    reply.status = status;
    reply.length = length;
    reply.compare_or_add = value;
    if (status == answer_no_receive)
        reply.immediate = to.rnr_timer_;
    to.send(reply, std::move(body));
}

bool wire::is_from_peer(const link& from, const shared_qp& qp) const {
    return from.peer_.ip == ipv4_of(qp.destination.gid) && from.peer_slot_ == slot_of(qp.peer_number);
}

// The queue pair that the message is for, if it was not reset since the message began. A caller that relies
// on the result holds its `inbound` lock.
endpoint wire::same_life(const link& from) const {
    const auto target = own_qp(from.head_.target_qp);
    return target.qp != nullptr && target.qp->life == from.life_ && target.qp->remote != 0 ? target
                                                                                           : endpoint{};
}

// A request begins: checks that it comes from the connected peer, and finds the destination of its bytes. The
// bytes of a refused request are read and discarded.
void wire::begin_request(link& from) {
    const auto& head = from.head_;
    from.sink_ = link::sink::discard;
    const auto target = own_qp(head.target_qp);
    from.replies_ = true;
    from.reply_ = answer_not_ready;
    from.life_ = UINT32_MAX;
    if (target.qp == nullptr)
        return;
    const lock_guard guard(target.qp->inbound); // a reset waits for this lock
    if (!receives(*target.qp) || target.qp->type == IBV_QPT_UD || target.qp->remote == 0 ||
        target.qp->peer_number != head.source_qp || target.qp->receive_psn != head.status ||
        !is_from_peer(from, *target.qp) || !home_->has_link(*target.qp))
        return;
    note_established(target);
    auto& qp = *target.qp;
    // The thread that polled may have written the program's memory that the request is about, if bytes came
    // with a completion. The peer learned of it otherwise; this is what tells this thread.
    (void)qp.rq.released.load(std::memory_order_acquire);
    (void)qp.sq.released.load(std::memory_order_acquire);
    from.rnr_timer_ = qp.min_rnr_timer;
    from.life_ = qp.life;
    if (qp.type == IBV_QPT_UC)
        qp.expected = head.sequence; // lost messages are not sent again
    if (head.sequence != qp.expected) {
        from.replies_ = false;
        return; // follows a request that is sent again
    }
    from.reply_ = find_sink(from, target);
    if (from.reply_ == answer_no_receive)
        return;
    ++qp.expected;
    if (qp.type == IBV_QPT_UC && from.reply_ != IBV_WC_SUCCESS)
        from.reply_ = IBV_WC_SUCCESS; // an unreliable queue pair drops the message silently
}

std::uint32_t wire::find_sink(link& from, endpoint target) {
    const auto& head = from.head_;
    auto& qp = *target.qp;
    const bool reliable = qp.type == IBV_QPT_RC;
    const auto refuse = [&](std::uint32_t event, std::uint32_t status) {
        if (reliable)
            from.event_ = event; // raised when the peer is answered
        return status;
    };
    const auto found_in = [&](std::uint64_t length, std::uint32_t rights) {
        side memory;
        if ((qp.access & rights) != rights)
            return access_result::denied;
        return length == 0
                   ? access_result::fine
                   : find_memory(*home_, home_->own(), head.key, head.address, length, qp.pd, rights, memory);
    };
    const auto unless_fine = [&](access_result access) {
        if (access == access_result::fine)
            return std::uint32_t{IBV_WC_SUCCESS};
        return refuse(event_access_error,
                      access == access_result::denied ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR);
    };
    switch (head.opcode) {
    case IBV_WR_RDMA_READ:
        if (qp.dest_rd_atomic == 0)
            return refuse(event_request_error, IBV_WC_REM_INV_REQ_ERR);
        return unless_fine(found_in(head.swap, IBV_ACCESS_REMOTE_READ));
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        if (head.address % 8 != 0 || qp.dest_rd_atomic == 0)
            return refuse(event_request_error, IBV_WC_REM_INV_REQ_ERR);
        return unless_fine(run_atomic(from, qp));
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        if (const auto status = unless_fine(found_in(head.length, IBV_ACCESS_REMOTE_WRITE));
            status != IBV_WC_SUCCESS)
            return status;
        from.sink_ = link::sink::region;
        break;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        break;
    default:
        return refuse(event_request_error, IBV_WC_REM_INV_REQ_ERR);
    }
    if (head.opcode == IBV_WR_RDMA_WRITE)
        return IBV_WC_SUCCESS;
    if (!take_receive(target, from.taken_)) {
        qp.rq.sender_waits = 0; // no process here can run it; the peer sends it again
        from.sink_ = link::sink::discard;
        return reliable ? answer_no_receive : std::uint32_t{IBV_WC_SUCCESS};
    }
    from.has_taken_ = true;
    if (!is_send(head.opcode))
        return IBV_WC_SUCCESS;
    side buffers;
    from.local_status_ = IBV_WC_SUCCESS;
    if (find_buffers(*home_, target, from.taken_, buffers) != access_result::fine)
        from.local_status_ = IBV_WC_LOC_PROT_ERR;
    else if (buffers.length < head.length)
        from.local_status_ = IBV_WC_LOC_LEN_ERR;
    if (from.local_status_ == IBV_WC_SUCCESS) {
        from.sink_ = link::sink::buffers;
        return IBV_WC_SUCCESS;
    }
    // The program gets its error completion after the peer is answered: it may exit at once.
    return from.local_status_ == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR;
}

// Runs at once, under the lock under which its memory was found: there is no payload to wait for.
access_result wire::run_atomic(link& from, const shared_qp& qp) {
    const auto& head = from.head_;
    side cell;
    if ((qp.access & IBV_ACCESS_REMOTE_ATOMIC) == 0)
        return access_result::denied;
    if (const auto access = find_memory(*home_, home_->own(), head.key, head.address, 8, qp.pd,
                                        IBV_ACCESS_REMOTE_ATOMIC, cell);
        access != access_result::fine)
        return access;
    const auto sum =
        exchange(home_->own(), cell, {head.opcode, head.compare_or_add, head.swap}, from.before_);
    return sum.fine ? access_result::fine : access_result::denied;
}

// The destination of a message was deregistered after the message began: refuse it as if it had never
// existed.
void wire::lose_sink(link& from, const shared_qp& qp) {
    const bool reliable = qp.type == IBV_QPT_RC;
    if (from.has_taken_)
        from.local_status_ = IBV_WC_LOC_PROT_ERR;
    if (reliable && from.sink_ == link::sink::region)
        from.event_ = event_access_error;
    if (reliable)
        from.reply_ = from.sink_ == link::sink::region ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR;
    from.sink_ = link::sink::discard;
}

bool wire::begin_datagram(link& from) {
    from.sink_ = link::sink::datagram;
    if (from.head_.length > 4096)
        return false;
    from.small_.resize(from.head_.length);
    return true;
}

// Receives some of the payload. Returns the number of bytes, 0 at the end of the connection, or -errno.
int wire::receive_some(link& from) {
    const auto left = from.head_.length - from.got_;
    iovec entries[most_entries];
    std::size_t count = 0;
    side memory;
    shared_lock* held = nullptr;
    static thread_local std::vector<std::byte> rubbish(65536); // bytes to discard
    bool memory_valid = false;
    const auto number = from.head_.target_qp;
    auto& qp = home_->own()->qps[index_of(number)];
    const endpoint target{home_->self().get(), &qp};
    // The memory is looked up each time, under a lock that keeps its region registered meanwhile.
    switch (from.sink_) {
    case link::sink::buffers:
    case link::sink::region:
        qp.inbound.lock();
        held = &qp.inbound;
        if (qp.in_use.load() != 0 && qp.number == number && qp.life == from.life_ && receives(qp))
            memory_valid =
                from.sink_ == link::sink::buffers
                    ? find_buffers(*home_, target, from.taken_, memory) == access_result::fine
                    : find_memory(*home_, home_->own(), from.head_.key, from.head_.address, from.head_.length,
                                  qp.pd, IBV_ACCESS_REMOTE_WRITE, memory) == access_result::fine;
        if (memory_valid && from.sink_ == link::sink::buffers &&
            scatters_receive(qp, from.taken_.of_srq, from.head_.length))
            memory = side::of(scattered_of(qp.rq, target.request<receive_request>(qp.rq, qp.rq.taken_place)),
                              from.head_.length);
        break;
    case link::sink::read_back:
        qp.sq.lock.lock();
        held = &qp.sq.lock;
        if (qp.in_use.load() != 0 && qp.number == number && qp.remote != 0 && is_from_peer(from, qp) &&
            qp.peer_number == from.head_.source_qp && from.head_.status == IBV_WC_SUCCESS &&
            qp.sq.done.load() == from.head_.sequence && qp.sent != qp.sq.done.load() &&
            (qp.state.load() == IBV_QPS_RTS || qp.state.load() == IBV_QPS_SQD)) {
            const auto& request = target.request<send_request>(qp.sq, from.head_.sequence);
            memory_valid = request.opcode == IBV_WR_RDMA_READ &&
                           gather_local(*home_, target, request, memory) == IBV_WC_SUCCESS &&
                           memory.length == from.head_.length;
            if (memory_valid && scatters_read(qp, memory.length))
                memory = side::of(scattered_of(qp.sq, request), memory.length);
        }
        break;
    case link::sink::datagram:
        memory.add(from.small_.data(), from.small_.size());
        memory_valid = true;
        break;
    case link::sink::discard:
        break;
    }
    if (memory_valid && memory.length >= from.head_.length) {
        count = entries_of(memory, from.got_, left, rubbish, entries, most_entries);
    } else {
        from.spoiled_ = true;
        if (from.sink_ == link::sink::buffers || from.sink_ == link::sink::region)
            lose_sink(from, qp);
        entries[count++] = {rubbish.data(), std::min<std::uint64_t>(left, rubbish.size())};
    }
    msghdr message{};
    message.msg_iov = entries;
    message.msg_iovlen = count;
    const auto got = ::recvmsg(from.fd_, &message, MSG_DONTWAIT);
    const int error = errno;
    if (held != nullptr)
        held->unlock();
    return got < 0 ? -error : static_cast<int>(got);
}

void wire::finish_request(link& from) {
    const auto& head = from.head_;
    const bool delivered = std::exchange(from.has_taken_, false);
    // Completes the receive, once, and only if its queue pair was not reset since.
    const auto complete = [&](std::uint32_t status) {
        const auto target = same_life(from);
        if (!delivered || target.qp == nullptr)
            return;
        const lock_guard guard(target.qp->inbound);
        if (same_life(from).qp == nullptr || target.qp->rq.taken.load() == 0)
            return;
        auto entry = completion_of(head, from.taken_);
        entry.status = status;
        complete_receive(target, from.taken_, entry);
    };
    const auto target = same_life(from);
    const auto status = from.reply_ != answer_no_receive && from.replies_ && target.qp == nullptr
                            ? answer_not_ready
                            : from.reply_;
    const bool fine = status == IBV_WC_SUCCESS && from.local_status_ == IBV_WC_SUCCESS;
    if (fine)
        complete(IBV_WC_SUCCESS);
    if (from.replies_ && status != IBV_WC_SUCCESS)
        answer(from, status);
    if (!fine) {
        complete(from.local_status_ != IBV_WC_SUCCESS ? from.local_status_
                                                      : std::uint32_t{IBV_WC_LOC_PROT_ERR});
        if (target.qp != nullptr && (from.event_ != 0 || delivered))
            break_down(target, from.event_);
    }
    if (!from.replies_ || status != IBV_WC_SUCCESS)
        return;
    if (head.opcode == IBV_WR_RDMA_READ && head.swap != 0) {
        payload bytes;
        bytes.from = payload::source::region;
        bytes.qp = index_of(head.target_qp);
        bytes.life = from.life_;
        bytes.address = head.address;
        bytes.key = head.key;
        answer(from, IBV_WC_SUCCESS, std::move(bytes), head.swap);
        return;
    }
    answer(from, IBV_WC_SUCCESS, {}, 0, from.before_);
}

void wire::finish_datagram(link& from) {
    const auto& head = from.head_;
    const auto target = own_qp(head.target_qp);
    if (target.qp == nullptr)
        return;
    const inbound_guard guard(target);
    if (own_qp(head.target_qp).qp == nullptr || target.qp->type != IBV_QPT_UD || !receives(*target.qp) ||
        target.qp->qkey != head.key || !home_->has_link(*target.qp))
        return;
    taken_receive taken;
    if (!take_receive(target, taken))
        return;
    auto entry = completion_of(head, taken);
    entry.byte_count += grh_size;
    entry.flags |= IBV_WC_GRH;
    std::uint8_t source[16];
    std::memcpy(source, &head.compare_or_add, 8);
    std::memcpy(source + 8, &head.swap, 8);
    const auto header = grh_of(source, target.qp->own_gids[0], head.length);
    side buffers, message;
    message.add(&header, grh_size);
    message.add(from.small_.data(), from.small_.size());
    if (find_buffers(*home_, target, taken, buffers) != access_result::fine)
        entry.status = IBV_WC_LOC_PROT_ERR;
    else if (buffers.length < message.length)
        entry.status = IBV_WC_LOC_LEN_ERR;
    else
        (void)copy(buffers, message);
    complete_receive(target, taken, entry);
    if (entry.status != IBV_WC_SUCCESS)
        break_down(target, 0);
}

} // namespace lab::hca
