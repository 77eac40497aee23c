// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/execution.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/message.hpp"
#include "lab/hca/modes.hpp"
#include "lab/hca/posted_writes.hpp"
#include "lab/hca/scattered.hpp"
#include "lab/hca/wire.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace lab::hca {
namespace {

verdict waiting(wait_reason why) {
    return {IBV_WC_SUCCESS, why, 0};
}
verdict failing(ibv_wc_status status) {
    return {status, wait_reason::none, 0};
}

// One request of a connected queue pair, or a datagram.
class execution {
public:
    execution(process& here, const endpoint& requester, const endpoint& responder,
              const send_request& request)
        : here_(here), requester_(requester), responder_(responder), request_(request) {}

    verdict run() {
        if (requester_.qp->type == IBV_QPT_UD)
            return datagram();
        if (const auto local = gather(); local.status != IBV_WC_SUCCESS)
            return local;
        if (is_to_fail())
            return failing(IBV_WC_GENERAL_ERR);
        if (!reads_back(request_.opcode))
            push_writes(here_, requester_, local());
        if (!peer_ready())
            return requester_.qp->type == IBV_QPT_UC ? verdict{} : waiting(wait_reason::peer);
        switch (request_.opcode) {
        case IBV_WR_SEND:
        case IBV_WR_SEND_WITH_IMM:
            return deliver(nullptr);
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return write();
        case IBV_WR_RDMA_READ:
            return read();
        default:
            return atomic();
        }
    }

private:
    // Finds the requester's local memory.
    verdict gather() {
        local().clear();
        return failing(static_cast<ibv_wc_status>(gather_local(here_, requester_, request_, local())));
    }

    // Copies a message to memory of `target`'s process.
    moved move(const endpoint& target, side& to, const side& from) {
        held_bytes last(here_, target, to, std::min(to.length, from.length),
                        request_.opcode == IBV_WR_RDMA_READ);
        auto sum = copy(to, from);
        last.copied(sum);
        return sum;
    }

    bool peer_ready() {
        if (!is_there(requester_, responder_))
            return false;
        auto& qp = *responder_.qp;
        if (!receives(qp)) {
            // The responder reads this when it reaches RTR.
            qp.rq.sender_waits.store(1, std::memory_order_seq_cst);
            if (!receives(qp))
                return false;
        }
        if (!are_connected(requester_, responder_) || !here_.has_link(*requester_.qp) || !here_.has_link(qp))
            return false;
        note_established(responder_);
        return true;
    }

    // A request that the responder must refuse: an error for RC, dropped silently for UC.
    verdict refused(std::uint32_t event, ibv_wc_status status) {
        if (requester_.qp->type == IBV_QPT_UC)
            return {};
        break_down(responder_, event);
        return failing(status);
    }

    verdict access_refused(access_result access) {
        return refused(event_access_error,
                       access == access_result::denied ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR);
    }

    // The bytes could not be moved: the memory, the process or the permission is gone.
    verdict not_moved(const moved& sum) {
        if (sum.forbidden) {
            warn_forbidden();
            return failing(IBV_WC_LOC_QP_OP_ERR);
        }
        // A process that is being killed loses its memory before its locks.
        if (sum.gone || !responder_.memory().alive() || !requester_.memory().alive())
            return waiting(wait_reason::peer);
        return refused(event_access_error, IBV_WC_REM_ACCESS_ERR);
    }

    static void warn_forbidden() {
        static std::atomic<bool> said{false};
        if (!said.exchange(true))
            std::fprintf(
                stderr,
                "gaudi-lab: the virtual HCA may not reach the memory of its peer: process_vm_writev is "
                "forbidden here (ptrace rules); allow it (kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE)\n");
    }

    access_result find_remote(std::uint64_t length, std::uint32_t rights) {
        remote().clear();
        if ((responder_.qp->access & rights) != rights)
            return access_result::denied;
        if (length == 0) // no memory is accessed, so the key is not checked
            return access_result::fine;
        return find_memory(here_, responder_.memory(), request_.rdma.key, request_.rdma.address, length,
                           responder_.qp->pd, rights, remote());
    }

    verdict write() {
        if (const auto access = find_remote(local().length, IBV_ACCESS_REMOTE_WRITE);
            access != access_result::fine)
            return access_refused(access);
        if (has_immediate(request_.opcode))
            return deliver(&remote());
        const auto sum = move(responder_, remote(), local());
        if (!sum.fine)
            return not_moved(sum);
        count(*requester_.qp, sum);
        return {IBV_WC_SUCCESS, wait_reason::none, local().length};
    }

    verdict read() {
        if (requester_.qp->rd_atomic == 0)
            return failing(IBV_WC_LOC_QP_OP_ERR);
        if (responder_.qp->dest_rd_atomic == 0)
            return refused(event_request_error, IBV_WC_REM_INV_REQ_ERR);
        if (is_answered_ucx_fence(request_.rdma.address, request_.rdma.key, local().length))
            return {IBV_WC_SUCCESS, wait_reason::none, 8};
        if (const auto access = find_remote(local().length, IBV_ACCESS_REMOTE_READ);
            access != access_result::fine)
            return access_refused(access);
        if (const auto& qp = *requester_.qp; scatters_read(qp, local().length)) {
            const auto bytes = local().length;
            local().clear();
            local().add(scattered_of(qp.sq, request_), bytes);
        }
        push_writes(here_, responder_, remote());
        const auto sum = move(requester_, local(), remote());
        if (!sum.fine)
            return not_moved(sum);
        count(*requester_.qp, sum);
        return {IBV_WC_SUCCESS, wait_reason::none, local().length};
    }

    verdict atomic() {
        if (requester_.qp->rd_atomic == 0)
            return failing(IBV_WC_LOC_QP_OP_ERR);
        if (local().length < 8)
            return failing(IBV_WC_LOC_LEN_ERR);
        if (request_.rdma.address % 8 != 0 || responder_.qp->dest_rd_atomic == 0)
            return refused(event_request_error, IBV_WC_REM_INV_REQ_ERR);
        if (const auto access = find_remote(8, IBV_ACCESS_REMOTE_ATOMIC); access != access_result::fine)
            return access_refused(access);
        push_writes(here_, responder_, remote());
        std::uint64_t before = 0;
        const auto sum =
            exchange(responder_.memory(), remote(),
                     {request_.opcode, request_.rdma.compare_or_add, request_.rdma.swap}, before);
        if (!sum.fine)
            return not_moved(sum);
        if (const auto back = copy(local(), side::of(&before, sizeof(before))); !back.fine)
            return not_moved(back);
        count(*requester_.qp, sum);
        return {IBV_WC_SUCCESS, wait_reason::none, 8};
    }

    // Whether mode rnr refuses, or has refused, this delivery. A refused delivery is retried when the RNR
    // timer has expired, however often the queue is run meanwhile.
    [[nodiscard]] bool is_sent_away() const {
        const auto& qp = *requester_.qp;
        switch (static_cast<wait_reason>(qp.waits.load(std::memory_order_relaxed))) {
        case wait_reason::none:
            return receiver_not_ready();
        case wait_reason::receive:
            return keeps_the_rnr_timer() &&
                   now_ns() < qp.waits_since_ns.load() + rnr_time_ns(responder_.qp->min_rnr_timer);
        case wait_reason::peer:
            break;
        }
        return false;
    }

    // Consumes a receive. `target`: the memory of a write with immediate data, which leaves the receive's
    // buffers untouched.
    verdict deliver(side* target) {
        const bool reliable = requester_.qp->type == IBV_QPT_RC;
        taken_receive taken;
        if ((reliable && is_sent_away()) || !take_receive(responder_, taken))
            return reliable ? waiting(wait_reason::receive) : verdict{};
        completion entry = completion_for(taken);
        const auto finish = [&](ibv_wc_status status) {
            entry.status = status;
            complete_receive(responder_, taken, entry);
        };
        side* to = target;
        if (target == nullptr) {
            remote().clear();
            const auto access = find_buffers(here_, responder_, taken, remote());
            if (access != access_result::fine) {
                finish(IBV_WC_LOC_PROT_ERR);
                break_down(responder_, 0);
                return reliable ? failing(IBV_WC_REM_OP_ERR) : verdict{};
            }
            if (remote().length < local().length) {
                finish(IBV_WC_LOC_LEN_ERR);
                break_down(responder_, 0);
                return reliable ? failing(IBV_WC_REM_INV_REQ_ERR) : verdict{};
            }
            to = &remote();
            if (const auto& qp = *responder_.qp; scatters_receive(qp, taken.of_srq, local().length)) {
                const auto& request = responder_.request<receive_request>(qp.rq, qp.rq.taken_place);
                remote().clear();
                remote().add(scattered_of(qp.rq, request), local().length);
            }
        }
        const auto sum = move(responder_, *to, local());
        if (!sum.fine) {
            finish(IBV_WC_LOC_PROT_ERR);
            break_down(responder_, 0);
            return not_moved(sum);
        }
        count(*requester_.qp, sum);
        finish(IBV_WC_SUCCESS);
        return {IBV_WC_SUCCESS, wait_reason::none, local().length};
    }

    completion completion_for(const taken_receive& taken) const {
        auto entry = completion_of({request_.opcode, request_.flags, request_.immediate, local().length,
                                    requester_.qp->number, responder_.qp->number},
                                   taken);
        entry.source_lid = requester_.qp->own_lid;
        return entry;
    }

    verdict datagram() {
        if (const auto gathered = gather(); gathered.status != IBV_WC_SUCCESS)
            return gathered;
        if (local().length > requester_.qp->path_mtu)
            return failing(IBV_WC_LOC_LEN_ERR);
        const auto& target = request_.datagram;
        if (!here_.has_link(*requester_.qp))
            return {};
        if (here_.network() != nullptr && target.where.by_gid != 0 && !here_.is_local(target.where.gid)) {
            send_remote_datagram(here_, requester_, request_, local());
            return {};
        }
        const auto target_peer = here_.find_peer(slot_of(target.qp_number));
        // From here on the datagram is sent: if it does not arrive, it is dropped silently.
        if (!target_peer || !target_peer->memory().alive())
            return {};
        if (index_of(target.qp_number) >= target_peer->memory()->head.qps_used.load())
            return {};
        responder_ = {target_peer.get(), &target_peer->memory()->qps[index_of(target.qp_number)]};
        auto& qp = *responder_.qp;
        const inbound_guard guard(responder_);
        const auto qkey = (target.qkey & 0x80000000) != 0 ? requester_.qp->qkey : target.qkey;
        if (qp.in_use.load(std::memory_order_acquire) == 0 || qp.type != IBV_QPT_UD ||
            qp.number != target.qp_number || !receives(qp) || qp.qkey != qkey ||
            !answers_to(qp, target.where) || !here_.has_link(qp))
            return {};
        taken_receive taken;
        if (!take_receive(responder_, taken))
            return {};
        completion entry = completion_for(taken);
        entry.byte_count += grh_size;
        if (target.where.by_gid != 0)
            entry.flags |= IBV_WC_GRH;
        remote().clear();
        const auto access = find_buffers(here_, responder_, taken, remote());
        if (access != access_result::fine || remote().length < local().length + grh_size) {
            entry.status = access != access_result::fine ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR;
            complete_receive(responder_, taken, entry);
            break_down(responder_, 0);
            return {};
        }
        // The receive buffer starts with 40 bytes for the GRH, filled only if the datagram was sent with one.
        auto header = grh_of(requester_.qp->own_gids[0], target.where.gid, local().length);
        local().pieces.insert(local().pieces.begin(),
                              {target.where.by_gid != 0 ? piece::kind::local : piece::kind::null,
                               reinterpret_cast<std::uint64_t>(&header), grh_size});
        local().length += grh_size;
        const auto sum = copy(remote(), local());
        if (!sum.fine && sum.forbidden)
            warn_forbidden();
        entry.status = sum.fine ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
        complete_receive(responder_, taken, entry);
        count(*requester_.qp, sum);
        return {};
    }

    // Reused: no allocation in the steady state.
    struct scratch {
        side local, remote;
    };
    static scratch& reused() {
        thread_local scratch kept;
        return kept;
    }
    side& local() { return scratch_.local; }
    side& remote() { return scratch_.remote; }
    [[nodiscard]] const side& local() const { return scratch_.local; }

    scratch& scratch_ = reused();
    process& here_;
    endpoint requester_, responder_;
    const send_request& request_;
};

} // namespace

verdict execute(process& here, const endpoint& requester, const endpoint& responder,
                const send_request& request) {
    return execution(here, requester, responder, request).run();
}

namespace {

// Finds the memory that a request names: first where the last request found it, then by a lookup.
std::byte* find_kept(stretch& kept, process& here, const segment& owner, std::uint32_t key,
                     std::uint64_t address, std::uint64_t length, std::uint32_t pd, std::uint32_t rights) {
    if (auto* cached = kept.find(key, address, length))
        return cached;
    kept = find_stretch(here, owner, key, address, length, pd, rights);
    return kept.find(key, address, length);
}

} // namespace

bool move_at_once(process& here, const endpoint& requester, const endpoint& responder, lookup_cache& cached,
                  const ibv_send_wr& wr) {
    auto& qp = *requester.qp;
    constexpr std::uint32_t small = 32768;
    const bool reads = wr.opcode == IBV_WR_RDMA_READ;
    if ((wr.opcode != IBV_WR_RDMA_WRITE && !reads) || qp.type != IBV_QPT_RC || wr.num_sge != 1 ||
        wr.sg_list->length - 1 >= small || (reads && scatters_read(qp, wr.sg_list->length)) ||
        mode_is_set.load(std::memory_order_relaxed) || qp.remote.load(std::memory_order_relaxed) != 0 ||
        qp.state.load(std::memory_order_acquire) != IBV_QPS_RTS || !is_there(requester, responder))
        return false;
    const auto& remote = *responder.qp;
    const std::uint32_t right = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if (remote.state.load(std::memory_order_acquire) != IBV_QPS_RTS || (remote.access & right) == 0 ||
        (reads && (qp.rd_atomic == 0 || remote.dest_rd_atomic == 0)) || !answers_to(remote, qp.destination) ||
        here.ports().down() != 0) // some port is down: the general path checks which
        return false;
    if (!cached.connected || cached.life != remote.life.load(std::memory_order_relaxed)) {
        if (!are_connected(requester, responder))
            return false;
        cached = {true, remote.life.load(std::memory_order_relaxed), {}, {}};
    }
    auto& kept = reads ? cached.reads : cached.writes;
    const auto& sge = *wr.sg_list;
    auto* const there = find_kept(kept.remote, here, responder.memory(), wr.wr.rdma.rkey,
                                  wr.wr.rdma.remote_addr, sge.length, remote.pd, right);
    const bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
    auto* const own = inlined ? reinterpret_cast<std::byte*>(sge.addr)
                              : find_kept(kept.local, here, requester.memory(), sge.lkey, sge.addr,
                                          sge.length, qp.pd, reads ? IBV_ACCESS_LOCAL_WRITE : 0);
    const bool apart = there + sge.length <= own || own + sge.length <= there;
    if (there == nullptr || own == nullptr || !apart) // overlapping memory is copied through the ring
        return false;
    copy_local(reads ? own : there, reads ? there : own, sge.length);
    moved sum;
    sum.mapped = sge.length;
    const bool local_hbm = !inlined && kept.local.hbm;
    sum.to_hbm = (reads ? local_hbm : kept.remote.hbm) ? sge.length : 0;
    sum.from_hbm = (reads ? kept.remote.hbm : local_hbm) ? sge.length : 0;
    count(qp, sum);
    const auto place = qp.sq.posted.load(std::memory_order_relaxed);
    if (qp.signal_all != 0 || (wr.send_flags & IBV_SEND_SIGNALED) != 0)
        complete_send(requester, place,
                      {wr.wr_id, static_cast<std::uint8_t>(wr.opcode), IBV_WC_SUCCESS, sge.length});
    qp.sq.posted.store(place + 1, std::memory_order_relaxed);
    qp.sq.done.store(place + 1, std::memory_order_release);
    return true;
}

} // namespace lab::hca
