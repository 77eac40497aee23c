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

// Whole messages with descriptors between processes of one host: SOCK_SEQPACKET on an abstract name.

constexpr unsigned most_passed = 4;

struct received_message {
    std::size_t bytes = 0;
    unsigned descriptors = 0;
    bool descriptors_lost = false; // for want of room for them here
    std::array<unique_fd, most_passed> passed;
};

using channel_deadline = std::chrono::steady_clock::time_point;

[[nodiscard]] result<unique_fd> listen_on(std::string_view name);
// errc::peer_gone: nobody listens there.
[[nodiscard]] result<unique_fd> connect_to(std::string_view name);
// errc::peer_silent: there was no room for it in time. A deadline in the past: now or never.
result<void> send_message(int socket, std::span<const std::byte> message, std::span<const int> passed,
                          channel_deadline deadline);
// errc::peer_gone, peer_silent; handle_invalid: longer than `into`.
[[nodiscard]] result<received_message> receive_message(int socket, std::span<std::byte> into,
                                                       channel_deadline deadline);

} // namespace gaudi
