// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace lab::hca {

// When a request posted now may run: 0, at once. In the modes of GAUDI_LAB_HCA_MODE it runs later, by the
// guard:
//   deferred        as soon as the guard gets to it, never inside ibv_post_send
//   delay=TIME      after a random time up to TIME (us, ms), each request by itself: queue pairs overtake
//   each
//                   other, requests of one queue pair never do
[[nodiscard]] std::uint64_t due_time();

// GAUDI_LAB_HCA_QUIRKS=ucx-fence: an RDMA read of 8 bytes at address 0 with key 0xff succeeds.
[[nodiscard]] bool answers_ucx_fence();

// Whether this delivery is to find no receive although there is one (mode rnr=N: every N-th); it is tried
// again after the timer.
[[nodiscard]] bool receiver_not_ready();

} // namespace lab::hca
