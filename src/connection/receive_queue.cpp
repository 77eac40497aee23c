// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/receive_queue.hpp"

#include "src/connection/staging.hpp"
#include "src/error/try.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <fmt/format.h>

namespace gaudi {

receive_queue::receive_queue(ibv_qp* qp, unsigned depth, std::string peer, std::uint32_t segment,
                             operation_table& operations, local_credits& credits, device_flush& flush)
    : qp_(qp), depth_(depth), peer_(std::move(peer)), segment_(segment), operations_(operations),
      credits_(credits), flush_(flush), waiting_(operations.size()), posted_(depth) {}

// A receive is announced by a word with its whole length, then by one word for each part that is posted.
// Posted before it is announced: the sender may use a credit as soon as it arrives.
result<void> receive_queue::advance() {
    while (!waiting_.empty()) {
        const auto slot = waiting_.front();
        auto& first = operations_[slot];
        do {
            // Later receives wait as well: messages are matched to receives in order.
            if (posted_.size() >= depth_ || (first.stage != nullptr && !first.stage->can_receive()))
                return {};
            const auto bytes =
                static_cast<std::uint32_t>(std::min<std::uint64_t>(segment_, first.length - first.posted));
            local_part part{first.address + first.posted, first.local_key};
            if (first.stage != nullptr)
                part = first.stage->memory().part(first.stage->take_in());
            GAUDI_CHECK(post({slot, bytes, part.slab, first.posted}, part));
            if (!first.started)
                credits_.announce(credit::kind::receive, first.length);
            first.started = true;
            credits_.announce(credit::kind::part, bytes);
            first.posted += bytes;
            ++first.outstanding;
        } while (first.posted < first.length);
        waiting_.pop();
        operations_.mark_fully_posted(slot);
    }
    return {};
}

result<void> receive_queue::post(const posted_request& request, const local_part& part) {
    ibv_sge entry{part.address, request.bytes, part.key};
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &entry;
    wr.num_sge = request.bytes != 0 ? 1 : 0;
    ibv_recv_wr* refused = nullptr;
    if (const int rc = ::ibv_post_recv(qp_, &wr, &refused); rc != 0)
        return tl::unexpected(error(errc::connection_broken, fmt::format("ibv_post_recv for {}", peer_), rc));
    posted_.push(request);
    return {};
}

result<void> receive_queue::completed(const ibv_wc& entry) {
    const auto request = posted_.pop();
    auto& operation = operations_[request.slot];
    credits_.consume(request.offset == 0 ? 2 : 1); // the first part also used the word with the length
    if ((entry.wc_flags & IBV_WC_WITH_IMM) != 0)
        operation.outcome.immediate = ntohl(entry.imm_data);
    // A write with immediate consumes a receive and does not write its memory.
    const bool has_data = entry.opcode != IBV_WC_RECV_RDMA_WITH_IMM && entry.byte_len != 0;
    operation.outcome.bytes += entry.byte_len;
    if (request.slab != no_slab) {
        // The flush counts as one more part of the operation.
        if (flush_.hold(request.slot, 0))
            ++operation.outstanding;
        const auto slab = static_cast<unsigned>(request.slab);
        // The part counts as completed when the device has the bytes, not the slab.
        if (has_data)
            return operation.stage->start_delivery(
                slab, request.slot, device_address(operation.address + request.offset), entry.byte_len);
        operation.stage->release_in(slab);
    }
    const auto bytes = has_data ? entry.byte_len : 0;
    if (operation.local_device && bytes != 0)
        flush_.add({operation.address + request.offset + bytes - 1, operation.local_key, nullptr});
    if (!flush_.hold(request.slot, bytes))
        operations_.part_completed(request.slot, bytes);
    return {};
}

} // namespace gaudi
