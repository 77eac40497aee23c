// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/unique_handle.hpp>

#include "src/os/unique_fd.hpp"

namespace gaudi {

// A descriptor that a child of fork does not keep: a socket whose end says that this process is gone must
// end with it, whatever its children do.
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
        unsigned forks = 0; // of this process when it got it
        explicit operator bool() const { return fd >= 0; }
        void close() noexcept;
    };
    unique_handle<open_descriptor> open_;
};

} // namespace gaudi
