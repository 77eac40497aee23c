// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/scattered.hpp"

#include "lab/hca/modes.hpp"

#include <algorithm>
#include <cstring>
#include <infiniband/verbs.h>

namespace lab::hca {
namespace {

// The part of scatter to CQE that libmlx5 has: the processor copies, whatever the address is.
template <typename Request>
void copy_to_entries(const endpoint& own, const shared_queue& queue, Request& request, std::size_t length) {
    const auto* entry = reinterpret_cast<const scatter_entry*>(&request + 1);
    const auto* const end = entry + request.entries;
    for (const std::byte* from = scattered_of(queue, request); length != 0 && entry != end; ++entry) {
        const auto bytes = std::min<std::size_t>(length, entry->length);
        const bool null_region = own.memory()->mrs[entry->key >> 8].kind == mr_kind::null; // as libmlx5
        if (!null_region) // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the program
            std::memcpy(reinterpret_cast<void*>(entry->address), from, bytes);
        from += bytes;
        length -= bytes;
    }
}

void copy_read(const endpoint& own, const completion& entry) {
    const auto& request = own.request<send_request>(own.qp->sq, entry.place);
    // UCX's fence reads nothing.
    if (scatters_read(*own.qp, entry.byte_count) &&
        !is_answered_ucx_fence(request.rdma.address, request.rdma.key, entry.byte_count))
        copy_to_entries(own, own.qp->sq, request, entry.byte_count);
}

void copy_receive(const endpoint& own, const completion& entry) {
    const auto& queue = own.qp->rq;
    if (scatters_receive(*own.qp, entry.of_srq != 0, entry.byte_count))
        copy_to_entries(own, queue,
                        own.request<receive_request>(queue, queue.released.load(std::memory_order_relaxed)),
                        entry.byte_count);
}

} // namespace

void copy_scattered(const endpoint& own, const completion& entry) {
    if (entry.status != IBV_WC_SUCCESS || own.qp->scatters == 0)
        return;
    if (entry.of_send_queue != 0 && entry.opcode == IBV_WC_RDMA_READ)
        copy_read(own, entry);
    else if (entry.of_send_queue == 0 && entry.opcode == IBV_WC_RECV)
        copy_receive(own, entry);
}

} // namespace lab::hca
