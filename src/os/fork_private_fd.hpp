// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/unique_handle.hpp>

#include "src/os/unique_fd.hpp"

namespace gaudi {

// A descriptor that is closed in a child of fork. A peer learns from a closed socket that this process has
// ended: a child must not keep the socket open.
class fork_private_fd {
public:
    fork_private_fd() = default;
    explicit fork_private_fd(unique_fd owned);

    [[nodiscard]] int get() const { return open_->fd; }
    explicit operator bool() const { return static_cast<bool>(open_); }
    void reset() { open_ = {}; }

private:
    struct open_descriptor {
        int fd = -1;
        unsigned forks = 0; // fork_count() when it was opened
        explicit operator bool() const { return fd >= 0; }
        void close() noexcept;
    };
    unique_handle<open_descriptor> open_;
};

} // namespace gaudi
