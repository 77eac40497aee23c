// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/unique_fd.hpp"

namespace gaudi {

// A descriptor that a child of fork does not keep: a socket whose end says that this process is gone must
// end with it, whatever its children do.
class lone_fd {
public:
    lone_fd() = default;
    explicit lone_fd(unique_fd owned);
    lone_fd(lone_fd&& other) noexcept;
    lone_fd& operator=(lone_fd&& other) noexcept;
    ~lone_fd();

    [[nodiscard]] int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset();

private:
    int fd_ = -1;
    unsigned forks_ = 0;
};

} // namespace gaudi
