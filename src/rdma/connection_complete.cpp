// SPDX-License-Identifier: BSD-3-Clause
// What comes back to a connection: completions of the NIC and of the copy engine; and the receives that it
// posts.
#include "src/rdma/completion_status.hpp"
#include "src/rdma/connection_core.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::uint64_t receive_tag = 1ULL << 63;

const char* words_for(ibv_wc_status status) {
    switch (status) {
    case IBV_WC_LOC_LEN_ERR:
        return "a message did not fit";
    case IBV_WC_LOC_PROT_ERR:
        return "local memory is no longer registered, or not for this";
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair was stopped";
    case IBV_WC_REM_INV_REQ_ERR:
        return "the peer's NIC found the request invalid";
    case IBV_WC_REM_OP_ERR:
        return "the peer's NIC could not carry it out";
    case IBV_WC_RETRY_EXC_ERR:
        return "its NIC does not answer: it ended, or no path leads there (subnet, GID type, MTU, firewall "
               "on UDP "
               "4791, port down)";
    case IBV_WC_LOC_QP_OP_ERR:
        return "the NIC here could not carry it out: the port may be down or have lost its address";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer posts no receive";
    default: // the name of the status says it all
        return nullptr;
    }
}

} // namespace

std::size_t connection_core::collect() {
    std::size_t all = 0;
    ibv_wc entries[16];
    for (int rounds = 0; rounds < 4 && !failure_; ++rounds) {
        const int count = ::ibv_poll_cq(pair_.completions(), std::size(entries), entries);
        if (count < 0) {
            fail({errc::connection_broken, fmt::format("ibv_poll_cq for {}", peer()), -count});
            return all;
        }
        for (int i = 0; i < count && !failure_; ++i) {
            if (entries[i].status != IBV_WC_SUCCESS)
                fail(describe_failure(entries[i]));
            else if ((entries[i].wr_id & receive_tag) != 0)
                arrived(entries[i]);
            else
                sent(entries[i]);
        }
        all += static_cast<std::size_t>(count);
        if (static_cast<std::size_t>(count) < std::size(entries))
            break;
    }
    return all;
}

error connection_core::describe_failure(const ibv_wc& entry) const {
    const auto code = entry.status == IBV_WC_RETRY_EXC_ERR    ? errc::peer_gone
                      : entry.status == IBV_WC_REM_ACCESS_ERR ? errc::remote_access
                                                              : errc::connection_broken;
    const auto* words = words_for(entry.status);
    return {code, fmt::format("{} from {}{}{}", name_of(entry.status), peer(), words != nullptr ? ": " : "",
                              words != nullptr ? words : "")};
}

// Everything up to the request that asked for this completion is over.
void connection_core::sent(const ibv_wc& entry) {
    while (retired_ < entry.wr_id) {
        const auto over = at_send_queue_.pop();
        ++retired_;
        if (over.slot == nobody)
            continue;
        auto& owner = operations_[over.slot];
        if (over.lent_slab != no_slab) {
            const back_frame words{identity_of(over.slot), static_cast<std::uint32_t>(over.lent_slab)};
            if (!tell(frame_kind::back, words.encode()))
                return;
        }
        if (over.slab != no_slab && owner.kind == transfer_kind::read) {
            // The slab goes on to the device.
            if (auto begun = owner.stage->land(static_cast<unsigned>(over.slab), over.slot,
                                               device_address(owner.address + over.offset), over.bytes);
                !begun)
                return fail(begun.error());
            continue;
        }
        if (over.slab != no_slab)
            owner.stage->release_out(static_cast<unsigned>(over.slab));
        part_done(over.slot, over.bytes);
    }
}

void connection_core::arrived(const ibv_wc& entry) {
    const auto over = at_receive_queue_.pop();
    auto& owner = operations_[over.slot];
    consumed_ += over.offset == 0 ? 2 : 1;
    if ((entry.wc_flags & IBV_WC_WITH_IMM) != 0)
        owner.outcome.immediate = ntohl(entry.imm_data);
    const bool into_memory = entry.opcode != IBV_WC_RECV_RDMA_WITH_IMM;
    owner.outcome.bytes += entry.byte_len;
    if (over.slab != no_slab) {
        const auto slab = static_cast<unsigned>(over.slab);
        if (into_memory && entry.byte_len != 0) {
            if (auto begun = owner.stage->land(slab, over.slot, device_address(owner.address + over.offset),
                                               entry.byte_len);
                !begun)
                fail(begun.error());
            return;
        }
        owner.stage->release_in(slab);
    }
    part_done(over.slot, into_memory ? entry.byte_len : 0);
}

std::size_t connection_core::collect_copies() {
    std::size_t all = 0;
    for (const auto& each : stagings_)
        for (; !failure_ && each->landed(); ++all) {
            const auto part = each->take_landed();
            if (!part)
                fail(part.error());
            else
                part_done(part->operation, part->bytes);
        }
    return all;
}

void connection_core::part_done(std::uint32_t slot, std::uint64_t bytes) {
    auto& owner = operations_[slot];
    owner.landed += bytes;
    if (--owner.outstanding == 0 && owner.all_given)
        finish(slot);
}

void connection_core::finish(std::uint32_t slot) {
    auto& over = operations_[slot];
    const bool atomic = over.kind == transfer_kind::fetch_add || over.kind == transfer_kind::compare_swap;
    if (over.kind != transfer_kind::receive)
        over.outcome.bytes = over.landed;
    if (atomic)
        over.outcome.value = words_->atomic_results[slot];
    if (!over.failure) {
        auto& way = over.way == memory_way::host        ? report_.host
                    : over.way == memory_way::zero_copy ? report_.zero_copy
                                                        : report_.staged;
        ++way.operations;
        way.bytes += over.landed;
    }
    over.lease.reset();
    over.state = state::finished;
    if (over.dropped)
        drop(slot);
}

bool connection_core::post_receive(const posted& what, const local_part& where) {
    if (failure_)
        return false;
    ibv_sge entry{where.address, what.bytes, where.key};
    ibv_recv_wr request{};
    request.wr_id = receive_tag;
    request.sg_list = &entry;
    request.num_sge = what.bytes != 0 ? 1 : 0;
    ibv_recv_wr* refused = nullptr;
    if (const int rc = ::ibv_post_recv(pair_.get(), &request, &refused); rc != 0) {
        fail({errc::connection_broken, fmt::format("ibv_post_recv for {}", peer()), rc});
        return false;
    }
    at_receive_queue_.push(what);
    return true;
}

// A receive is announced with its whole length, then part by part as they are posted.
void connection_core::advance_receives() {
    const auto announce = [this](grant::kind what, std::uint64_t length) {
        words_->grants_to_peer[granted_ % grant::ring_words] = grant::encode(granted_, what, length);
        ++granted_;
    };
    while (!receives_.empty() && !failure_) {
        const auto slot = receives_.front();
        auto& first = operations_[slot];
        do {
            if (at_receive_queue_.size() >= pair_.receives() ||
                (first.stage != nullptr && !first.stage->can_receive()))
                return;
            const auto bytes =
                static_cast<std::uint32_t>(std::min<std::uint64_t>(segment_, first.length - first.given));
            local_part where{first.address + first.given, first.local_key};
            if (first.stage != nullptr) {
                const auto slab = first.stage->take_in();
                where = {first.stage->memory().address_of(slab), first.stage->memory().local_key(),
                         static_cast<int>(slab)};
            }
            if (!post_receive({slot, bytes, where.slab, first.given}, where))
                return;
            if (!first.begun)
                announce(grant::kind::receive, first.length);
            first.begun = true;
            announce(grant::kind::part, bytes);
            first.given += bytes;
            ++first.outstanding;
        } while (first.given < first.length);
        first.all_given = true;
        receives_.pop();
    }
}

} // namespace gaudi
