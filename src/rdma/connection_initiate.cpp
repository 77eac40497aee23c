// SPDX-License-Identifier: BSD-3-Clause
// What a connection initiates: messages into the peer's receives, writes, reads, atomic operations.
#include "src/os/byte_order.hpp"
#include "src/rdma/connection_core.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <fmt/format.h>

namespace gaudi {

bool connection_core::room_to_send() const {
    return at_send_queue_.size() + kept_for_grants < pair_.sends();
}

// A request at the end of the chain. The caller sets its kind.
ibv_send_wr& connection_core::next_request(const posted& what, const local_part& where) {
    if (chained_ == longest_chain)
        flush();
    auto& entry = chain_entries_[chained_];
    entry = {where.address, what.bytes, where.key};
    auto& request = chain_[chained_];
    request = {};
    request.sg_list = &entry;
    request.num_sge = what.bytes != 0 ? 1 : 0;
    at_send_queue_.push(what);
    ++chained_;
    return request;
}

void connection_core::flush() {
    if (chained_ == 0 || failure_)
        return;
    for (std::size_t i = 0; i + 1 < chained_; ++i)
        chain_[i].next = &chain_[i + 1];
    auto& last = chain_[chained_ - 1];
    last.send_flags |= IBV_SEND_SIGNALED;
    // Its completion tells how many requests are over.
    for (std::size_t i = 0; i < chained_; ++i)
        chain_[i].wr_id = retired_ + at_send_queue_.size() - chained_ + i + 1;
    chained_ = 0;
    ibv_send_wr* refused = nullptr;
    if (const int rc = ::ibv_post_send(pair_.get(), chain_.data(), &refused); rc != 0)
        fail({errc::connection_broken, fmt::format("ibv_post_send towards {}", peer()), rc});
}

void connection_core::advance() {
    advance_receives();
    advance_initiated();
    tell_grants();
    flush();
}

void connection_core::advance_initiated() {
    while (!initiated_.empty() && !failure_) {
        const auto slot = initiated_.front();
        const auto& first = operations_[slot];
        bool given = false;
        if (first.by_lending)
            given = give_lent(slot) && (!first.immediate || first.failure || give_immediate(slot));
        else
            switch (first.kind) {
            case transfer_kind::send:
                given = give_message(slot);
                break;
            case transfer_kind::write:
                given = give_data(slot) && (!first.immediate || give_immediate(slot));
                break;
            case transfer_kind::read:
                given = give_data(slot);
                break;
            default:
                given = give_atomic(slot);
            }
        if (!given)
            return;
        initiated_.pop();
        operations_[slot].all_given = true;
        if (operations_[slot].outstanding == 0)
            finish(slot);
    }
}

// The peer's next receive, once it has granted one.
bool connection_core::open_peers_receive() {
    if (peer_open_)
        return true;
    const std::atomic_ref word(words_->grants_from_peer[peer_index_ % grant::ring_words]);
    const auto total = grant::decode(word.load(std::memory_order_acquire), peer_index_, grant::kind::receive);
    if (!total)
        return false;
    ++peer_index_;
    peer_open_ = true;
    peer_total_ = *total;
    peer_used_ = 0;
    return true;
}

bool connection_core::peers_part_granted() const {
    const std::atomic_ref word(words_->grants_from_peer[peer_index_ % grant::ring_words]);
    return grant::decode(word.load(std::memory_order_acquire), peer_index_, grant::kind::part).has_value();
}

void connection_core::use_peers_part() {
    ++peer_index_;
    peer_used_ += std::min<std::uint64_t>(segment_, peer_total_ - peer_used_);
    peer_open_ = peer_used_ < peer_total_;
}

// Copies ahead for the first operation, as far as there are slabs.
void connection_core::keep_filling(std::uint32_t slot) {
    auto& first = operations_[slot];
    while (first.fetched < first.length && first.stage->can_fill()) {
        const auto bytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(segment_, first.length - first.fetched));
        if (auto begun = first.stage->fill(slot, device_address(first.address + first.fetched), bytes);
            !begun)
            return fail(begun.error());
        first.fetched += bytes;
    }
}

std::optional<connection_core::local_part> connection_core::part_of(std::uint32_t slot, std::uint64_t offset,
                                                                    std::uint32_t bytes) {
    const auto& first = operations_[slot];
    if (first.stage == nullptr || bytes == 0)
        return local_part{first.address + offset, first.local_key};
    auto& stage = *first.stage;
    unsigned slab = 0;
    if (first.kind == transfer_kind::read) {
        if (!stage.can_read())
            return {};
        slab = stage.take_out();
    } else {
        if (!stage.filled())
            return {};
        const auto filled = stage.take_filled();
        if (!filled) {
            fail(filled.error());
            return {};
        }
        slab = filled->slab;
    }
    return local_part{stage.memory().address_of(slab), stage.memory().local_key(), static_cast<int>(slab)};
}

// A message takes the peer's receive whole: parts that it does not need are sent empty.
bool connection_core::give_message(std::uint32_t slot) {
    auto& first = operations_[slot];
    const bool staged = first.stage != nullptr;
    if (!first.begun) {
        if (!open_peers_receive())
            return false;
        if (first.length > peer_total_) {
            first.failure = error(errc::message_too_long, fmt::format("{} bytes into a receive of {} at {}",
                                                                      first.length, peer_total_, peer()));
            return true;
        }
        first.begun = true;
    }
    if (staged)
        keep_filling(slot);
    while (peer_open_) {
        if (!peers_part_granted() || !room_to_send())
            return false;
        const auto bytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(segment_, first.length - first.given));
        const auto part = part_of(slot, first.given, bytes);
        if (!part)
            return false;
        use_peers_part();
        auto& request = next_request({slot, bytes, part->slab}, *part);
        request.opcode = IBV_WR_SEND;
        if (!peer_open_ && first.immediate) {
            request.opcode = IBV_WR_SEND_WITH_IMM;
            request.imm_data = htonl(*first.immediate);
        }
        if (bytes <= pair_.longest_inline() && first.way == memory_way::host)
            request.send_flags = IBV_SEND_INLINE;
        first.given += bytes;
        ++first.outstanding;
        if (staged)
            keep_filling(slot);
    }
    return true;
}

// The data of a write or read, cut where a request or a slab ends. The last part of a write with immediate is
// left to give_immediate.
bool connection_core::give_data(std::uint32_t slot) {
    auto& first = operations_[slot];
    const bool staged = first.stage != nullptr, reading = first.kind == transfer_kind::read;
    const auto longest = staged ? segment_ : longest_write_;
    const auto plain =
        first.immediate ? (first.length == 0 ? 0 : (first.length - 1) / longest * longest) : first.length;
    if (staged && !reading)
        keep_filling(slot);
    while (first.given < plain) {
        if (!room_to_send())
            return false;
        const auto bytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(longest, first.length - first.given));
        const auto part = part_of(slot, first.given, bytes);
        if (!part)
            return false;
        auto& request = next_request({slot, bytes, part->slab, first.given}, *part);
        request.opcode = reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        request.wr.rdma.remote_addr = first.remote_address + first.given;
        request.wr.rdma.rkey = first.remote_key;
        if (!reading && bytes <= pair_.longest_inline() && first.way == memory_way::host)
            request.send_flags = IBV_SEND_INLINE;
        first.given += bytes;
        ++first.outstanding;
        if (staged && !reading)
            keep_filling(slot);
    }
    return true;
}

// The last part of a write, with the number that completes the peer's receive.
bool connection_core::give_immediate(std::uint32_t slot) {
    auto& first = operations_[slot];
    if (!first.immediate_given) {
        if (!open_peers_receive() || !peers_part_granted() || !room_to_send())
            return false;
        const auto bytes = static_cast<std::uint32_t>(first.length - first.given);
        const auto part = part_of(slot, first.given, bytes);
        if (!part)
            return false;
        first.immediate_given = true;
        use_peers_part();
        auto& request = next_request({slot, bytes, part->slab}, *part);
        request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request.imm_data = htonl(*first.immediate);
        request.wr.rdma.remote_addr = first.remote_address + first.given;
        request.wr.rdma.rkey = first.remote_key;
        first.given += bytes;
        ++first.outstanding;
    }
    return burn_rest_of_receive(slot);
}

bool connection_core::burn_rest_of_receive(std::uint32_t slot) {
    while (peer_open_) {
        if (!peers_part_granted() || !room_to_send())
            return false;
        use_peers_part();
        next_request({slot, 0}, {}).opcode = IBV_WR_SEND;
        ++operations_[slot].outstanding;
    }
    return true;
}

bool connection_core::give_atomic(std::uint32_t slot) {
    auto& first = operations_[slot];
    if (!room_to_send())
        return false;
    auto& request = next_request(
        {slot, 8}, {reinterpret_cast<std::uintptr_t>(&words_->atomic_results[slot]), words_region_->lkey});
    const bool adding = first.kind == transfer_kind::fetch_add;
    request.opcode = adding ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
    request.wr.atomic = {first.remote_address, adding ? first.operand : first.compare,
                         adding ? 0 : first.operand, first.remote_key};
    ++first.outstanding;
    return true;
}

// Words that the peer has not heard of: told together, once they are as many as it still has in hand.
void connection_core::tell_grants() {
    if (told_ == granted_ || granted_ - told_ < told_ - consumed_ || failure_)
        return;
    if (theirs_.sleeps) {
        std::array<std::byte, 16 * 64> body;
        while (told_ < granted_) {
            std::size_t bytes = 0;
            for (; told_ < granted_ && bytes < body.size(); ++told_, bytes += 16)
                packer(std::span(body).subspan(bytes))
                    .put(told_)
                    .put(words_->grants_to_peer[told_ % grant::ring_words]);
            if (!tell(frame_kind::grants, std::span(body).first(bytes)))
                return;
        }
        return;
    }
    while (told_ < granted_ && at_send_queue_.size() < pair_.sends()) {
        const auto place = told_ % grant::ring_words;
        const auto words = std::min<std::uint64_t>(granted_ - told_, grant::ring_words - place);
        const auto bytes = static_cast<std::uint32_t>(words * sizeof(std::uint64_t));
        auto& request =
            next_request({nobody, bytes}, {reinterpret_cast<std::uintptr_t>(&words_->grants_to_peer[place]),
                                           words_region_->lkey});
        request.opcode = IBV_WR_RDMA_WRITE;
        request.wr.rdma.remote_addr = theirs_.grants_address + place * sizeof(std::uint64_t);
        request.wr.rdma.rkey = theirs_.grants_key;
        told_ += words;
    }
}

} // namespace gaudi
