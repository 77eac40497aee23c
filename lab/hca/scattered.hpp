// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/shared_state.hpp"

#include <cstddef>
#include <cstdint>

namespace lab::hca {

// Scatter to CQE: what arrives in so few bytes is not written to memory. It comes with the completion, here
// in the last bytes of its request's place, and the processor that polls copies it to where it belongs.
constexpr std::uint32_t scatter_bytes = 32;
[[nodiscard]] inline bool scatters_receive(const shared_qp& qp, bool of_srq, std::uint64_t length) {
    return qp.scatters != 0 && !of_srq && length != 0 && length <= scatter_bytes;
}
// Reads, where every request is signalled.
[[nodiscard]] inline bool scatters_read(const shared_qp& qp, std::uint64_t length) {
    return qp.scatters != 0 && qp.signal_all != 0 && length != 0 && length <= scatter_bytes;
}
template <typename Request>
[[nodiscard]] std::byte* scattered_of(const shared_queue& queue, Request& request) {
    auto* const place = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(&request));
    return place + queue.stride - scatter_bytes;
}

// Of the process that polls `entry`: copies the payload, if it came with the completion, to where it belongs.
void copy_scattered(const endpoint& own, const completion& entry);

} // namespace lab::hca
