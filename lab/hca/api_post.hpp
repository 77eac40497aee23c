// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/trace.hpp"
#include "lab/hca/objects.hpp"

#include <atomic>
#include <string>

namespace lab::hca {

// What becomes of a list with a bad request: ibv_post_send() posts those before it, ibv_wr_complete() none.
enum class takes { those_before_a_bad_one, all_or_none };
// 0 or an errno; *bad is the first request that was not taken.
[[nodiscard]] int post_sends(queue_pair& pair, ibv_send_wr* wr, ibv_send_wr** bad, takes which);

// What a list of requests asks for, in words, for the trace.
[[nodiscard]] std::string described(std::uint32_t qp_number, const ibv_send_wr* wr);

// Whether posting goes through trace and faults. Set when the device is opened: it costs one load.
inline std::atomic<bool> watching{false};
void decide_watching();
// A fault's errno, or what the body answers; with a trace of the call.
[[nodiscard]] int watch(const char* name, const std::string& arguments, int (*body)(void*), void* state);

// `describe` makes the text of the arguments, when somebody wants to read it.
template <typename Body, typename Describe>
int watched(const char* name, Body&& body, Describe&& describe) {
    if (!watching.load(std::memory_order_relaxed)) [[likely]]
        return body();
    return watch(
        name, tracing() ? describe() : std::string{},
        [](void* state) { return (*static_cast<std::remove_reference_t<Body>*>(state))(); }, &body);
}

} // namespace lab::hca
