// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/os/fork_private_fd.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace gaudi {

// Waits for many descriptors at a time (epoll). Any thread may call wake(), add() and remove(); one thread
// calls wait().
class poller {
public:
    // errc::descriptors_exhausted
    static result<poller> make();

    // errc::system_call_failed
    result<void> add(int fd, std::uint32_t events) const;
    void remove(int fd) const;
    // Ends the current wait(), or the next one.
    void wake() const;
    // The descriptors that are ready; valid until the next call. -1: no limit.
    std::span<const int> wait(int milliseconds);

private:
    fork_private_fd epoll_, event_;
    std::array<int, 32> ready_{};
};

} // namespace gaudi
