// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/call/trace.hpp"
#include "lab/hca/objects.hpp"

#include <atomic>

namespace lab::hca {

// ibv_post_send: 0 or an errno; *bad is the first request that was not taken.
[[nodiscard]] int post_sends(queue_pair& pair, ibv_send_wr* wr, ibv_send_wr** bad);

// Whether posting goes through trace and faults. Set when the device is opened: it costs one load.
inline std::atomic<bool> watching{false};
void decide_watching();
// A fault's errno, or what the body answers.
[[nodiscard]] int watch(const char* name, int (*body)(void*), void* state);

template <typename Body>
int watched(const char* name, Body&& body) {
    if (!watching.load(std::memory_order_relaxed)) [[likely]]
        return body();
    return watch(
        name, [](void* state) { return (*static_cast<std::remove_reference_t<Body>*>(state))(); }, &body);
}

} // namespace lab::hca
