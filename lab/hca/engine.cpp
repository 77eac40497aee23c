// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/engine.hpp"

#include "lab/hca/modes.hpp"
#include "lab/hca/receive.hpp"
#include "lab/hca/verbs.hpp"
#include "lab/hca/wire.hpp"

#include <algorithm>
#include <cstring>

namespace lab::hca {
namespace {

constexpr std::uint64_t largest_message = 1ULL << 31;
constexpr std::uint64_t look_again_ns = 100 * 1000 * 1000; // while something waits: is the peer still there?

struct verdict {
    ibv_wc_status status = IBV_WC_SUCCESS;
    wait_reason waits = wait_reason::none;
    std::uint64_t bytes = 0;
};

verdict waiting(wait_reason why) {
    return {IBV_WC_SUCCESS, why, 0};
}
verdict failing(ibv_wc_status status) {
    return {status, wait_reason::none, 0};
}

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

bool answers_to(const shared_qp& qp, const route& where) {
    if (where.by_gid == 0)
        return where.lid == qp.own_lid;
    return std::memcmp(where.gid, qp.own_gids[0], 16) == 0 || std::memcmp(where.gid, qp.own_gids[1], 16) == 0;
}

bool receives(const shared_qp& qp) {
    const auto state = qp.state.load(std::memory_order_acquire);
    return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
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
    bool has_immediate() const {
        return request_.opcode == IBV_WR_SEND_WITH_IMM || request_.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    }

    // The requester's own memory.
    verdict gather() {
        local().clear();
        return failing(static_cast<ibv_wc_status>(gather_local(here_, requester_, request_, local())));
    }

    bool peer_ready() {
        if (responder_.who == nullptr || !responder_.memory().alive())
            return false;
        auto& qp = *responder_.qp;
        const auto& own = *requester_.qp;
        if (own.peer_incarnation.load(std::memory_order_relaxed) != responder_.memory()->head.incarnation ||
            qp.in_use.load(std::memory_order_acquire) == 0)
            return false;
        if (!receives(qp)) {
            qp.rq.sender_waits.store(1, std::memory_order_seq_cst); // it looks when it gets there
            if (!receives(qp))
                return false;
        }
        return qp.type == own.type && qp.peer_number == own.number &&
               qp.peer_incarnation.load(std::memory_order_relaxed) == requester_.memory()->head.incarnation &&
               qp.receive_psn == own.send_psn && answers_to(qp, own.destination);
    }

    // A request that the responder must refuse: what a wrong key is to RC, and nothing at all to UC.
    verdict refused(std::uint32_t event, ibv_wc_status status) {
        if (requester_.qp->type == IBV_QPT_UC)
            return {};
        break_down(responder_, event);
        return failing(status);
    }

    // Bytes that could not be moved: the memory, the process or the permission is gone.
    verdict not_moved(const moved& sum) {
        if (sum.forbidden) {
            warn_forbidden();
            return failing(IBV_WC_LOC_QP_OP_ERR);
        }
        if (!responder_.memory().alive() || !requester_.memory().alive())
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

    // Under the requester's lock: nobody else writes them.
    void count(const moved& sum) {
        const auto add = [](std::atomic<std::uint64_t>& to, std::uint64_t value) {
            to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
        };
        auto& counters = requester_.qp->counted;
        add(counters.messages, 1);
        add(counters.bytes, sum.mapped + sum.across);
        if (sum.mapped != 0)
            add(counters.bytes_mapped, sum.mapped);
        if (sum.across != 0)
            add(counters.bytes_copied_across, sum.across);
    }

    reach find_remote(std::uint64_t length, std::uint32_t rights) {
        remote().clear();
        if ((responder_.qp->access & rights) != rights)
            return reach::denied;
        if (length == 0) // no memory is touched: the key is not looked at
            return reach::fine;
        return find_memory(here_, responder_.memory(), request_.rdma.key, request_.rdma.address, length,
                           responder_.qp->pd, rights, remote());
    }

    verdict write() {
        if (const auto found = find_remote(local().length, IBV_ACCESS_REMOTE_WRITE); found != reach::fine)
            return refused(event_access_error,
                           found == reach::denied ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR);
        if (has_immediate())
            return deliver(&remote());
        const auto sum = copy(remote(), local());
        if (!sum.fine)
            return not_moved(sum);
        count(sum);
        return {IBV_WC_SUCCESS, wait_reason::none, local().length};
    }

    verdict read() {
        if (requester_.qp->rd_atomic == 0)
            return failing(IBV_WC_LOC_QP_OP_ERR);
        if (responder_.qp->dest_rd_atomic == 0)
            return refused(event_request_error, IBV_WC_REM_INV_REQ_ERR);
        // UCX fences with a read of nothing where it has no key for it; other cards than mlx5 refuse that.
        if (request_.rdma.address == 0 && request_.rdma.key == 0xff && local().length == 8 &&
            answers_ucx_fence())
            return {IBV_WC_SUCCESS, wait_reason::none, 8};
        if (const auto found = find_remote(local().length, IBV_ACCESS_REMOTE_READ); found != reach::fine)
            return refused(event_access_error,
                           found == reach::denied ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR);
        const auto sum = copy(local(), remote());
        if (!sum.fine)
            return not_moved(sum);
        count(sum);
        return {IBV_WC_SUCCESS, wait_reason::none, local().length};
    }

    verdict atomic() {
        if (requester_.qp->rd_atomic == 0)
            return failing(IBV_WC_LOC_QP_OP_ERR);
        if (local().length < 8)
            return failing(IBV_WC_LOC_LEN_ERR);
        if (request_.rdma.address % 8 != 0 || responder_.qp->dest_rd_atomic == 0)
            return refused(event_request_error, IBV_WC_REM_INV_REQ_ERR);
        if (const auto found = find_remote(8, IBV_ACCESS_REMOTE_ATOMIC); found != reach::fine)
            return refused(event_access_error,
                           found == reach::denied ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_OP_ERR);
        std::uint64_t before = 0;
        const auto sum = exchange(before);
        if (!sum.fine)
            return not_moved(sum);
        side value;
        value.pieces.push_back({piece::kind::local, reinterpret_cast<std::uint64_t>(&before), 8});
        value.length = 8;
        if (const auto back = copy(local(), value); !back.fine)
            return not_moved(back);
        count(sum);
        return {IBV_WC_SUCCESS, wait_reason::none, 8};
    }

    std::uint64_t changed(std::uint64_t value) const {
        if (request_.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            return value + request_.rdma.compare_or_add;
        return value == request_.rdma.compare_or_add ? request_.rdma.swap : value;
    }

    // Device memory with the CPU's own instructions; host memory under a lock that all NICs of the lab know:
    // atomic among them, as IBV_ATOMIC_HCA says, and not against the CPU.
    moved exchange(std::uint64_t& before) {
        const auto& at = remote().pieces[0];
        moved sum;
        if (at.where == piece::kind::hbm) {
            std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(at.address));
            before = word.load();
            while (!word.compare_exchange_weak(before, changed(before))) {
            }
            sum.mapped = 8;
            return sum;
        }
        const lock_guard guard(responder_.memory()->head.atomics[at.address / 8 % 64]);
        std::uint64_t value = 0;
        side cell;
        cell.pieces.push_back({piece::kind::local, reinterpret_cast<std::uint64_t>(&value), 8});
        cell.length = 8;
        sum = copy(cell, remote());
        if (!sum.fine)
            return sum;
        before = value;
        value = changed(value);
        return copy(remote(), cell);
    }

    // Consumes a receive. `target`: a write with immediate data, which leaves the receive's buffers alone.
    verdict deliver(const side* target) {
        const bool reliable = requester_.qp->type == IBV_QPT_RC;
        taken_receive taken;
        if ((reliable && requester_.qp->waits.load(std::memory_order_relaxed) == 0 && receiver_not_ready()) ||
            !take_receive(responder_, taken))
            return reliable ? waiting(wait_reason::receive) : verdict{};
        completion entry = completion_for(taken);
        const auto finish = [&](ibv_wc_status status) {
            entry.status = status;
            complete_receive(responder_, taken, entry);
        };
        const side* to = target;
        if (target == nullptr) {
            remote().clear();
            const auto found = find_buffers(here_, responder_, taken, remote());
            if (found != reach::fine) {
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
        }
        const auto sum = copy(*to, local());
        if (!sum.fine) {
            finish(IBV_WC_LOC_PROT_ERR);
            break_down(responder_, 0);
            return not_moved(sum);
        }
        count(sum);
        finish(IBV_WC_SUCCESS);
        return {IBV_WC_SUCCESS, wait_reason::none, local().length};
    }

    completion completion_for(const taken_receive& taken) const {
        completion entry{};
        entry.wr_id = taken.wr_id;
        entry.opcode =
            request_.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        entry.byte_count = static_cast<std::uint32_t>(local().length);
        entry.qp_number = responder_.qp->number;
        entry.source_qp = requester_.qp->number;
        entry.source_lid = requester_.qp->own_lid;
        entry.solicited = (request_.flags & IBV_SEND_SOLICITED) != 0;
        if (has_immediate()) {
            entry.flags |= IBV_WC_WITH_IMM;
            entry.immediate = request_.immediate;
        }
        return entry;
    }

    verdict datagram() {
        if (const auto found = gather(); found.status != IBV_WC_SUCCESS)
            return found;
        if (local().length > requester_.qp->path_mtu)
            return failing(IBV_WC_LOC_LEN_ERR);
        const auto& target = request_.datagram;
        if (here_.network() != nullptr && target.where.by_gid != 0 && !here_.is_ours(target.where.gid)) {
            send_remote_datagram(here_, requester_, request_, local());
            return {};
        }
        const auto who = here_.find_peer(slot_of(target.qp_number));
        // From here on it is the network's: what does not arrive is lost without a word.
        if (!who || !who->memory().alive())
            return {};
        if (index_of(target.qp_number) >= who->memory()->head.qps_used.load())
            return {};
        responder_ = {who.get(), &who->memory()->qps[index_of(target.qp_number)]};
        auto& qp = *responder_.qp;
        const inbound_guard guard(responder_);
        const auto qkey = (target.qkey & 0x80000000) != 0 ? requester_.qp->qkey : target.qkey;
        if (qp.in_use.load(std::memory_order_acquire) == 0 || qp.type != IBV_QPT_UD ||
            qp.number != target.qp_number || !receives(qp) || qp.qkey != qkey ||
            !answers_to(qp, target.where))
            return {};
        taken_receive taken;
        if (!take_receive(responder_, taken))
            return {};
        completion entry = completion_for(taken);
        entry.byte_count += grh_size;
        if (target.where.by_gid != 0)
            entry.flags |= IBV_WC_GRH;
        remote().clear();
        const auto found = find_buffers(here_, responder_, taken, remote());
        if (found != reach::fine || remote().length < local().length + grh_size) {
            entry.status = found != reach::fine ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR;
            complete_receive(responder_, taken, entry);
            break_down(responder_, 0);
            return {};
        }
        // The header's place comes first, filled where there was a header.
        ibv_grh header{};
        header.version_tclass_flow = __builtin_bswap32(6U << 28);
        header.paylen = __builtin_bswap16(static_cast<std::uint16_t>(local().length + 24)); // BTH, DETH, CRC
        header.next_hdr = 0x1b;
        header.hop_limit = 64;
        std::memcpy(header.sgid.raw, requester_.qp->own_gids[0], 16);
        std::memcpy(header.dgid.raw, target.where.gid, 16);
        local().pieces.insert(local().pieces.begin(),
                              {target.where.by_gid != 0 ? piece::kind::local : piece::kind::null,
                               reinterpret_cast<std::uint64_t>(&header), grh_size});
        local().length += grh_size;
        const auto sum = copy(remote(), local());
        if (!sum.fine && sum.forbidden)
            warn_forbidden();
        entry.status = sum.fine ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
        complete_receive(responder_, taken, entry);
        count(sum);
        return {};
    }

    static constexpr std::uint32_t grh_size = 40;

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

void finish(const endpoint& requester, std::uint32_t place, const verdict& end) {
    finish_request(requester, place, end.status, end.bytes);
}

// After the holder of the lock died: a request whose completion was written already is not run again.
void pass_over_completed(const endpoint& requester) {
    auto& queue = requester.qp->sq;
    auto done = queue.done.load();
    const auto ahead = [&](std::uint32_t place) { return place + 1 - done - 1 < queue.capacity; };
    if (const auto released = queue.released.load(); released - done - 1 < queue.capacity)
        done = released;
    auto& cq = requester.cq(requester.qp->send_cq);
    for (auto at = cq.consumed.load(); at != cq.produced.load(); ++at) {
        const auto& entry = *requester.memory().at<completion>(
            cq.ring + std::uint64_t{at & (cq.capacity - 1)} * sizeof(completion));
        if (entry.qp_number == requester.qp->number && entry.of_send_queue != 0 && ahead(entry.place))
            done = entry.place + 1;
    }
    queue.done = done;
}

// Whether the wait has lasted too long; starts the clock of a new one.
bool given_up(const endpoint& requester, const endpoint& responder, wait_reason why) {
    auto& qp = *requester.qp;
    const auto now = now_ns();
    if (qp.waits.load() != static_cast<std::uint32_t>(why)) {
        qp.waits_since_ns = now;
        qp.waits = static_cast<std::uint32_t>(why);
    }
    return now >= deadline_of(qp, responder.qp);
}

} // namespace

std::uint32_t gather_local(process& here, const endpoint& requester, const send_request& request, side& to) {
    const auto* behind = reinterpret_cast<const std::byte*>(&request + 1);
    if ((request.flags & IBV_SEND_INLINE) != 0) {
        to.pieces.push_back(
            {piece::kind::local, reinterpret_cast<std::uint64_t>(behind), request.inline_length});
        to.length = request.inline_length;
        return IBV_WC_SUCCESS;
    }
    const bool reads_back = request.opcode == IBV_WR_RDMA_READ ||
                            request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                            request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    const auto* entries = reinterpret_cast<const scatter_entry*>(behind);
    for (unsigned i = 0; i < request.entries; ++i)
        switch (entries[i].length == 0 ? reach::fine
                                       : find_memory(here, requester.memory(), entries[i].key,
                                                     entries[i].address, entries[i].length, requester.qp->pd,
                                                     reads_back ? IBV_ACCESS_LOCAL_WRITE : 0, to)) {
        case reach::denied:
            return IBV_WC_LOC_PROT_ERR;
        case reach::unmappable:
            return IBV_WC_LOC_QP_OP_ERR;
        case reach::fine:
            break;
        }
    return to.length > largest_message ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

std::uint64_t rnr_time_ns(std::uint32_t code) {
    return std::uint64_t{rnr_units[code & 31]} * 10000;
}

void finish_request(const endpoint& requester, std::uint32_t place, std::uint32_t status,
                    std::uint64_t bytes) {
    auto& queue = requester.qp->sq;
    const auto& request = requester.request<send_request>(queue, place);
    if (status != IBV_WC_SUCCESS || requester.qp->signal_all != 0 ||
        (request.flags & IBV_SEND_SIGNALED) != 0) {
        completion entry{};
        entry.wr_id = request.wr_id;
        entry.status = status;
        entry.opcode = completion_opcode(request.opcode);
        entry.byte_count = static_cast<std::uint32_t>(bytes);
        entry.qp_number = requester.qp->number;
        entry.place = place;
        entry.of_send_queue = 1;
        push(*requester.who, requester.qp->send_cq, entry);
    }
    queue.done.store(place + 1, std::memory_order_release);
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
    std::uint64_t look_at = UINT64_MAX;
    {
        const send_queue_guard guard(requester);
        look_at = run_locked_send_queue(here, requester, responder);
    }
    if (look_at != UINT64_MAX && &requester.memory() == &here.own())
        here.look_at(look_at);
}

std::uint64_t run_locked_send_queue(process& here, const endpoint& requester, const endpoint& responder) {
    auto& qp = *requester.qp;
    auto& queue = qp.sq;
    if (qp.remote != 0)
        return run_remote_send_queue(here, requester);
    std::uint64_t look_at = UINT64_MAX;
    for (;;) {
        const auto place = queue.done.load(std::memory_order_relaxed);
        if (qp.in_use.load(std::memory_order_relaxed) == 0 ||
            place == queue.posted.load(std::memory_order_acquire))
            break;
        const auto state = qp.state.load(std::memory_order_acquire);
        if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
            finish(requester, place, failing(IBV_WC_WR_FLUSH_ERR));
            continue;
        }
        if (state != IBV_QPS_RTS)
            break;
        const auto& request = requester.request<send_request>(queue, place);
        if (request.due_ns != 0 && now_ns() < request.due_ns) {
            look_at = request.due_ns;
            break;
        }
        auto end = execution(here, requester, responder, request).run();
        if (end.waits != wait_reason::none) {
            if (!given_up(requester, responder, end.waits)) {
                look_at = std::min(deadline_of(qp, responder.qp), now_ns() + look_again_ns);
                if (mode_is_set &&
                    end.waits == wait_reason::receive) // nobody will post the one that is there
                    look_at = std::min(look_at, now_ns() + rnr_time_ns(responder.qp->min_rnr_timer));
                break;
            }
            end =
                failing(end.waits == wait_reason::receive ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR);
        }
        if (qp.waits.load(std::memory_order_relaxed) != 0)
            qp.waits = static_cast<std::uint32_t>(wait_reason::none);
        if (end.status != IBV_WC_SUCCESS) {
            qp.counted.errors.fetch_add(1, std::memory_order_relaxed);
            if (qp.type == IBV_QPT_RC)
                break_down(requester, 0);
            else {
                auto before = state;
                qp.state.compare_exchange_strong(before, IBV_QPS_SQE);
            }
        }
        finish(requester, place, end);
    }
    return look_at;
}

} // namespace lab::hca
