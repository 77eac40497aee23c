// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/os/unique_fd.hpp"

#include <chrono>
#include <cstdint>
#include <string_view>

namespace gaudi {

// One descriptor for a caller's own event loop: readable when one of several others is, or when a timer
// expires.
class event_set {
public:
    event_set() = default; // empty
    // `what`: whose descriptor it is, for errors. errc::descriptors_exhausted, system_call_failed.
    static result<event_set> make(std::string_view what);

    // `events` as epoll has them. errc::system_call_failed.
    result<void> add(int fd, std::uint32_t events) const;
    // Makes the descriptor readable after this time; 0: the timer is stopped.
    void set_timer(std::chrono::nanoseconds after) const;
    // The timer and the descriptors that were added edge-triggered (64 of them at a time) are no longer
    // readable for what has happened so far.
    void discard() const;
    [[nodiscard]] int descriptor() const { return epoll_.get(); }
    explicit operator bool() const { return static_cast<bool>(epoll_); }

private:
    unique_fd epoll_, timer_;
};

} // namespace gaudi
