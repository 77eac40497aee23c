// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

namespace lab::hca {

// Whether GAUDI_LAB_HCA_MODE sets any mode. Decided when a device is opened.
inline std::atomic<bool> mode_is_set{false};
void decide_modes();

// When a request posted now may run; 0: at once. In the modes of GAUDI_LAB_HCA_MODE the guard thread runs it
// later:
//   deferred        as soon as the guard thread gets to it, never inside ibv_post_send
//   delay=TIME      after a random time up to TIME (us, ms) for each request: queue pairs overtake each
//                   other, requests of one queue pair never do
[[nodiscard]] std::uint64_t due_time_of_mode();
[[nodiscard]] inline std::uint64_t due_time() {
    return mode_is_set.load(std::memory_order_relaxed) ? due_time_of_mode() : 0;
}

// Whether requests run after ibv_post_send has returned.
[[nodiscard]] bool runs_later_by_mode();
[[nodiscard]] inline bool runs_later() {
    return mode_is_set.load(std::memory_order_relaxed) && runs_later_by_mode();
}

// GAUDI_LAB_HCA_QUIRKS=ucx-fence: an RDMA read of 8 bytes at address 0 with key 0xff succeeds and reads
// nothing. UCX uses it as a fence where it has no key; NICs other than mlx5 refuse it.
[[nodiscard]] bool is_answered_ucx_fence(std::uint64_t address, std::uint32_t key, std::uint64_t length);

// Whether this delivery must find no receive although one is posted (mode rnr=N: every N-th); it is retried
// after the RNR timer.
[[nodiscard]] bool receiver_not_ready_by_mode();
[[nodiscard]] inline bool receiver_not_ready() {
    return mode_is_set.load(std::memory_order_relaxed) && receiver_not_ready_by_mode();
}
[[nodiscard]] bool sends_away_by_mode();
[[nodiscard]] inline bool keeps_the_rnr_timer() {
    return mode_is_set.load(std::memory_order_relaxed) && sends_away_by_mode();
}
// How long the last bytes of a message to device memory stay on their way after the completion (mode
// posted=TIME); 0: they do not.
[[nodiscard]] std::uint64_t posted_for_by_mode();
[[nodiscard]] inline std::uint64_t posted_for_ns() {
    return mode_is_set.load(std::memory_order_relaxed) ? posted_for_by_mode() : 0;
}

// Whether this request must fail (mode error=N: every N-th).
[[nodiscard]] bool fails_by_mode();
[[nodiscard]] inline bool is_to_fail() {
    return mode_is_set.load(std::memory_order_relaxed) && fails_by_mode();
}

} // namespace lab::hca
