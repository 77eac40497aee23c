// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/os/unique_fd.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>

namespace gaudi {

// Whole messages with descriptors between processes of one host: SOCK_SEQPACKET on an abstract name, which
// belongs to a network namespace.

constexpr unsigned most_passed = 4;

struct received_message {
    std::size_t bytes = 0;
    unsigned descriptors = 0;
    bool descriptors_lost = false; // no room for them here (MSG_CTRUNC), for example at the descriptor limit
    std::array<unique_fd, most_passed> passed;
};

using channel_deadline = std::chrono::steady_clock::time_point;

[[nodiscard]] result<unique_fd> listen_on(std::string_view name);
// errc::peer_gone: no process listens on the name; peer_silent: its backlog stayed full.
[[nodiscard]] result<unique_fd> connect_to(std::string_view name);
// errc::peer_silent: the receiver had no room for it before the deadline. A deadline in the past: the call
// does not wait.
result<void> send_message(int socket, std::span<const std::byte> message, std::span<const int> passed,
                          channel_deadline deadline);
// errc::peer_gone, peer_silent; protocol_violated: the message is longer than `into`.
[[nodiscard]] result<received_message> receive_message(int socket, std::span<std::byte> into,
                                                       channel_deadline deadline);

} // namespace gaudi
