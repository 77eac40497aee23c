// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/trace.hpp"
#include "lab/hca/objects.hpp"

#include <atomic>
#include <string>

namespace lab::hca {

// What happens to a list with a bad request: ibv_post_send() posts the requests before it, ibv_wr_complete()
// posts none.
enum class takes { those_before_a_bad_one, all_or_none };
// Returns 0 or an errno; *bad is the first request that was not posted.
[[nodiscard]] int post_sends(queue_pair& pair, ibv_send_wr* wr, ibv_send_wr** bad, takes which);

// Describes a list of requests in words, for the trace.
[[nodiscard]] std::string described(std::uint32_t qp_number, const ibv_send_wr* wr);

// Whether posting goes through the trace and the fault script. Set when a device is opened; reading it costs
// one load.
inline std::atomic<bool> watching{false};
void decide_watching();
// Returns the errno of a fault, or what the body returns; traces the call.
[[nodiscard]] int watch(const char* name, const std::string& arguments, int (*body)(void*), void* state);

// `describe` makes the text of the arguments, only if the call is watched.
template <typename Body, typename Describe>
int watched(const char* name, Body&& body, Describe&& describe) {
    if (!watching.load(std::memory_order_relaxed)) [[likely]]
        return body();
    return watch(
        name, tracing() ? describe() : std::string{},
        [](void* state) { return (*static_cast<std::remove_reference_t<Body>*>(state))(); }, &body);
}

} // namespace lab::hca
