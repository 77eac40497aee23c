// SPDX-License-Identifier: BSD-3-Clause
// Cuts the first waiting operation into work requests. Every post_ function may stop anywhere, for lack of
// room, credits or slabs, and is called again later: all progress is in the operation itself.
#include "src/connection/initiator.hpp"

#include "src/connection/staging.hpp"
#include "src/error/try.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <fmt/format.h>

namespace gaudi {

initiator::initiator(const limits& bounds, atomic_results results, operation_table& operations,
                     send_queue& queue, peer_credits& credits, const control_channel& control,
                     device_flush& flush)
    : limits_(bounds), results_(results), operations_(operations), queue_(queue), credits_(credits),
      control_(control), flush_(flush), waiting_(operations.size()) {}

result<void> initiator::advance() {
    while (!waiting_.empty()) {
        const auto slot = waiting_.front();
        // Strictly in the order of the calls: a later operation must not overtake one that waits for credits.
        GAUDI_TRY(const bool posted, post(slot));
        if (!posted)
            return {};
        waiting_.pop();
        // Only now may the operation finish: its completions so far may be those of its first parts.
        operations_.mark_fully_posted(slot);
    }
    return {};
}

result<bool> initiator::post(std::uint32_t slot) {
    const auto& first = operations_[slot];
    switch (first.kind) {
    case transfer_kind::send:
        return post_message(slot);
    case transfer_kind::read:
    case transfer_kind::write: {
        GAUDI_TRY(const bool posted, first.remote_staged ? post_to_staging(slot) : post_data(slot));
        if (!posted || !first.immediate || first.failure)
            return posted;
        return post_immediate(slot);
    }
    default:
        return post_atomic(slot);
    }
}

ibv_send_wr& initiator::append(const posted_request& request, const local_part& part) {
    auto& operation = operations_[request.slot];
    operation.posted += request.bytes;
    ++operation.outstanding;
    return queue_.append(request, part);
}

// Starts copies into free slabs for the first operation, ahead of posting.
result<void> initiator::keep_filling(std::uint32_t slot) {
    auto& first = operations_[slot];
    while (first.stage != nullptr && first.fetched < first.length && first.stage->can_fill()) {
        const auto bytes = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(limits_.segment, first.length - first.fetched));
        GAUDI_CHECK(first.stage->fill(slot, device_address(first.address + first.fetched), bytes));
        first.fetched += bytes;
    }
    return {};
}

result<std::optional<local_part>> initiator::part_of(std::uint32_t slot, std::uint64_t offset,
                                                     std::uint32_t bytes) {
    const auto& first = operations_[slot];
    // A part without bytes has no entry in its work request, so that its address is never used.
    if (first.stage == nullptr || bytes == 0)
        return local_part{first.address + offset, first.local_key};
    auto& stage = *first.stage;
    if (first.kind == transfer_kind::read)
        return stage.can_read() ? std::optional(stage.memory().part(stage.take_out())) : std::nullopt;
    if (!stage.filled())
        return std::nullopt;
    GAUDI_TRY(const auto filled, stage.take_filled());
    return stage.memory().part(filled.slab);
}

// A message consumes every part of the peer's receive: parts beyond the message's length are sent empty.
result<bool> initiator::post_message(std::uint32_t slot) {
    auto& first = operations_[slot];
    if (!first.started) {
        // Without an announced receive the peer's NIC would answer "not ready" and this NIC would retry.
        if (!credits_.open_receive())
            return false;
        if (first.length > credits_.length()) {
            // Nothing was posted: the receive stays open for the next message, and the connection lives on.
            first.failure =
                error(errc::message_too_long, fmt::format("{} bytes into a receive of {} at {}", first.length,
                                                          credits_.length(), control_.peer()));
            return true;
        }
        first.started = true;
    }
    GAUDI_CHECK(keep_filling(slot));
    // Each part of the receive is a request that the peer has posted; it takes one message, in order.
    while (credits_.is_open()) {
        if (!credits_.part_available() || !queue_.has_room())
            return false;
        const auto bytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(limits_.segment, first.length - first.posted));
        GAUDI_TRY(const auto part, part_of(slot, first.posted, bytes));
        if (!part)
            return false;
        credits_.use_part();
        auto& wr = append({slot, bytes, part->slab}, *part);
        wr.opcode = IBV_WR_SEND;
        if (!credits_.is_open() && first.immediate) {
            wr.opcode = IBV_WR_SEND_WITH_IMM;
            wr.imm_data = htonl(*first.immediate);
        }
        if (bytes <= limits_.longest_inline && first.path == memory_path::host)
            wr.send_flags = IBV_SEND_INLINE;
        GAUDI_CHECK(keep_filling(slot));
    }
    return true;
}

// The data of a write or read, cut where a work request or a slab ends. The last part of a write with
// immediate is left to post_immediate.
result<bool> initiator::post_data(std::uint32_t slot) {
    auto& first = operations_[slot];
    const bool reading = first.kind == transfer_kind::read;
    const auto longest = first.stage != nullptr ? limits_.segment : limits_.longest_request;
    const auto end =
        first.immediate ? (first.length == 0 ? 0 : (first.length - 1) / longest * longest) : first.length;
    if (!reading)
        GAUDI_CHECK(keep_filling(slot));
    while (first.posted < end) {
        if (!queue_.has_room())
            return false;
        const auto offset = first.posted;
        const auto bytes =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(longest, first.length - offset));
        GAUDI_TRY(const auto part, part_of(slot, offset, bytes));
        if (!part)
            return false;
        auto& wr = append({slot, bytes, part->slab, offset}, *part);
        wr.opcode = reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        wr.wr.rdma.remote_addr = first.remote_address + offset;
        wr.wr.rdma.rkey = first.remote_key;
        if (!reading && bytes <= limits_.longest_inline && first.path == memory_path::host)
            wr.send_flags = IBV_SEND_INLINE;
        if (!reading)
            GAUDI_CHECK(keep_filling(slot));
    }
    return true;
}

// The last part of a write, with the number that completes the peer's receive.
result<bool> initiator::post_immediate(std::uint32_t slot) {
    auto& first = operations_[slot];
    if (!first.immediate_posted) {
        if (!credits_.open_receive() || !credits_.part_available() || !queue_.has_room())
            return false;
        const auto offset = first.posted;
        const auto bytes = static_cast<std::uint32_t>(first.length - offset);
        GAUDI_TRY(const auto part, part_of(slot, offset, bytes));
        if (!part)
            return false;
        first.immediate_posted = true;
        credits_.use_part();
        auto& wr = append({slot, bytes, part->slab}, *part);
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(*first.immediate);
        wr.wr.rdma.remote_addr = first.remote_address + offset;
        wr.wr.rdma.rkey = first.remote_key;
    }
    // The immediate has consumed one part; the peer's receive is complete only when all are consumed.
    return use_up_receive(slot);
}

bool initiator::use_up_receive(std::uint32_t slot) {
    while (credits_.is_open()) {
        if (!credits_.part_available() || !queue_.has_room())
            return false;
        credits_.use_part();
        append({slot, 0}, {}).opcode = IBV_WR_SEND;
    }
    return true;
}

result<bool> initiator::post_atomic(std::uint32_t slot) {
    const auto& first = operations_[slot];
    if (!queue_.has_room())
        return false;
    auto& wr = append({slot, 8}, {reinterpret_cast<std::uintptr_t>(&results_.words[slot]), results_.key});
    const bool adding = first.kind == transfer_kind::fetch_add;
    wr.opcode = adding ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic = {first.remote_address, adding ? first.operand : first.compare, adding ? 0 : first.operand,
                    first.remote_key};
    return true;
}

// Reads or writes the slabs that the peer grants. Fully posted once the peer has ended the access.
result<bool> initiator::post_to_staging(std::uint32_t slot) {
    auto& first = operations_[slot];
    const bool reading = first.kind == transfer_kind::read, fills = first.stage != nullptr && !reading;
    if (!first.started) {
        first.started = true;
        const access_request request{operations_.id_of(slot), first.remote_address, first.length,
                                     first.remote_key, !reading};
        // Once per operation: the peer refuses a second request with the same id.
        GAUDI_CHECK(control_.send(frame_kind::access_request, encode_frame(request)));
    }
    // Both sides are staged: the part is copied from the device into a slab here while the peer's slab waits.
    while (fills && !granted_.empty() && first.stage->can_fill()) {
        const auto grant = granted_.front();
        granted_.pop_front();
        GAUDI_CHECK(first.stage->fill(slot, device_address(first.address + grant.offset), grant.bytes));
        filling_grants_.push_back(grant);
    }
    // In the order of the grants: slabs are filled in that order, so that the front of both lists belongs
    // together.
    auto& ready = fills ? filling_grants_ : granted_;
    while (!ready.empty() && queue_.has_room()) {
        const auto grant = ready.front();
        GAUDI_TRY(const auto part, part_of(slot, grant.offset, grant.bytes));
        if (!part)
            break;
        ready.pop_front();
        auto& wr = append({slot, grant.bytes, part->slab, grant.offset, static_cast<int>(grant.slab)}, *part);
        wr.opcode = reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        wr.wr.rdma.remote_addr = grant.address;
        wr.wr.rdma.rkey = grant.key;
    }
    // Also after a refusal every grant must be consumed: the next operation would take a leftover one for its
    // own.
    return first.remote_done && granted_.empty() && filling_grants_.empty() &&
           (first.failure || first.posted == first.length);
}

result<void> initiator::completed(std::uint64_t wr_id) {
    // One completion stands for all requests up to it: only the last of a chain is signalled.
    while (const auto request = queue_.retire(wr_id)) {
        if (request->slot == no_operation)
            continue;
        auto& operation = operations_[request->slot];
        if (request->remote_slab != no_slab) {
            const slab_return frame{operations_.id_of(request->slot),
                                    static_cast<std::uint32_t>(request->remote_slab)};
            // After the completion, not after the post: the owner copies from the slab as soon as it is
            // returned.
            GAUDI_CHECK(control_.send(frame_kind::slab_return, encode_frame(frame)));
        }
        if (request->slab != no_slab && operation.kind == transfer_kind::read) {
            // The copy engine now copies the slab to the device.
            GAUDI_CHECK(operation.stage->start_delivery(static_cast<unsigned>(request->slab), request->slot,
                                                        device_address(operation.address + request->offset),
                                                        request->bytes));
            continue;
        }
        if (request->slab != no_slab)
            operation.stage->release_out(static_cast<unsigned>(request->slab));
        if (operation.kind == transfer_kind::fetch_add || operation.kind == transfer_kind::compare_swap)
            operation.outcome.value = results_.words[request->slot];
        if (operation.kind == transfer_kind::read && operation.local_device && request->bytes != 0) {
            flush_.add(
                {operation.address + request->offset + request->bytes - 1, operation.local_key, nullptr});
            if (flush_.hold(request->slot, request->bytes))
                continue;
        }
        operations_.part_completed(request->slot, request->bytes);
    }
    return {};
}

result<void> initiator::slab_granted(const slab_grant& grant) {
    // The offset decides where this side copies to: a grant beyond the operation would leave its memory.
    const bool expected = !waiting_.empty() && grant.id == operations_.id_of(waiting_.front());
    const auto length = expected ? operations_[waiting_.front()].length : 0;
    if (!expected || grant.bytes == 0 || grant.bytes > limits_.segment || grant.offset > length ||
        grant.bytes > length - grant.offset)
        return tl::unexpected(
            error(errc::protocol_violated, fmt::format("{} granted a slab of {} bytes that was not requested",
                                                       control_.peer(), grant.bytes)));
    granted_.push_back(grant);
    return {};
}

result<void> initiator::access_ended(const access_end& end) {
    // The id carries the slot's serial: a late frame cannot end a later operation in the same slot.
    const auto slot = operations_.find(end.id);
    if (!slot || !operations_[*slot].remote_staged)
        return tl::unexpected(
            error(errc::protocol_violated,
                  fmt::format("{} ended an access that was not requested", control_.peer())));
    auto& ended = operations_[*slot];
    ended.remote_done = true;
    if (!end.refusal.empty())
        ended.failure = error(errc::remote_access, fmt::format("{}: {}", control_.peer(), end.refusal));
    return {};
}

} // namespace gaudi
