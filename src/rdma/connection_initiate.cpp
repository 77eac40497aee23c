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
ibv_send_wr& connection_core::next_request(const posted& what, std::uint64_t address, std::uint32_t bytes,
                                           std::uint32_t key) {
    if (chained_ == longest_chain)
        flush();
    auto& entry = chain_entries_[chained_];
    entry = {address, bytes, key};
    auto& request = chain_[chained_];
    request = {};
    request.sg_list = &entry;
    request.num_sge = bytes != 0 ? 1 : 0;
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
        posted what{slot, bytes};
        auto address = first.address + first.given;
        auto key = first.local_key;
        if (staged && bytes != 0) {
            if (!first.stage->filled())
                return false;
            const auto part = first.stage->take_filled();
            if (!part) {
                fail(part.error());
                return false;
            }
            what.slab = static_cast<int>(part->slab);
            address = first.stage->address_of(part->slab);
            key = first.stage->key();
        }
        use_peers_part();
        auto& request = next_request(what, address, bytes, key);
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
        posted what{slot, bytes, no_slab, first.given};
        auto address = first.address + first.given;
        auto key = first.local_key;
        if (staged) {
            if (reading ? !first.stage->can_read() : !first.stage->filled())
                return false;
            if (reading)
                what.slab = static_cast<int>(first.stage->take_out());
            else if (const auto part = first.stage->take_filled(); part)
                what.slab = static_cast<int>(part->slab);
            else {
                fail(part.error());
                return false;
            }
            address = first.stage->address_of(static_cast<unsigned>(what.slab));
            key = first.stage->key();
        }
        auto& request = next_request(what, address, bytes, key);
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
        posted what{slot, bytes};
        auto address = first.address + first.given;
        auto key = first.local_key;
        if (first.stage != nullptr && bytes != 0) {
            if (!first.stage->filled())
                return false;
            const auto part = first.stage->take_filled();
            if (!part) {
                fail(part.error());
                return false;
            }
            what.slab = static_cast<int>(part->slab);
            address = first.stage->address_of(part->slab);
            key = first.stage->key();
        }
        first.immediate_given = true;
        use_peers_part();
        auto& request = next_request(what, address, bytes, key);
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
        next_request({slot, 0}, 0, 0, 0).opcode = IBV_WR_SEND;
        ++operations_[slot].outstanding;
    }
    return true;
}

bool connection_core::give_atomic(std::uint32_t slot) {
    auto& first = operations_[slot];
    if (!room_to_send())
        return false;
    auto& request = next_request({slot, 8}, reinterpret_cast<std::uintptr_t>(&words_->atomic_results[slot]),
                                 8, words_region_->lkey);
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
            if (auto sent = control_.send(frame_kind::grants, std::span(body).first(bytes),
                                          std::chrono::steady_clock::now() + options_.deadline);
                !sent)
                return fail(sent.error());
        }
        return;
    }
    while (told_ < granted_ && at_send_queue_.size() < pair_.sends()) {
        const auto place = told_ % grant::ring_words;
        const auto words = std::min<std::uint64_t>(granted_ - told_, grant::ring_words - place);
        const auto bytes = static_cast<std::uint32_t>(words * sizeof(std::uint64_t));
        auto& request = next_request({}, reinterpret_cast<std::uintptr_t>(&words_->grants_to_peer[place]),
                                     bytes, words_region_->lkey);
        request.opcode = IBV_WR_RDMA_WRITE;
        request.wr.rdma.remote_addr = theirs_.grants_address + place * sizeof(std::uint64_t);
        request.wr.rdma.rkey = theirs_.grants_key;
        told_ += words;
    }
}

} // namespace gaudi
