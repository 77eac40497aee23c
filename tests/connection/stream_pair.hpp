// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/stream.hpp"

#include <stdexcept>
#include <sys/socket.h>
#include <utility>

namespace testing_support {

// Two streams that are connected to each other.
inline std::pair<gaudi::stream, gaudi::stream> stream_pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        throw std::runtime_error("socketpair");
    return {gaudi::stream(gaudi::unique_fd(ends[0])), gaudi::stream(gaudi::unique_fd(ends[1]))};
}

} // namespace testing_support
