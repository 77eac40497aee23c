// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/os/unique_fd.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace gaudi {

using time_point = std::chrono::steady_clock::time_point;

// For poll(2): never negative, rounded up.
[[nodiscard]] int milliseconds_until(time_point deadline);

// A TCP connection that never blocks beyond a deadline, except while the system resolves a name.
class stream {
public:
    stream() = default;
    // Takes ownership of a connected socket.
    explicit stream(unique_fd connected);

    // "host", "host:port", "[v6]:port".
    static result<stream> connect(const std::string& peer, std::uint16_t default_port, time_point deadline);

    result<void> send_all(std::span<const std::byte> bytes, time_point deadline) const;
    result<void> receive_all(std::span<std::byte> bytes, time_point deadline) const;
    // Reads what has arrived; 0 where nothing has. errc::peer_gone at the end of the stream.
    result<std::size_t> receive_some(std::span<std::byte> bytes) const;

    [[nodiscard]] const std::string& peer() const { return peer_; }
    [[nodiscard]] int descriptor() const { return fd_.get(); }

private:
    unique_fd fd_;
    std::string peer_;
};

// A listening socket for both families. errc::address_in_use.
struct listening {
    unique_fd fd;
    std::uint16_t port = 0;
};
[[nodiscard]] result<listening> listen_on(const std::string& address, std::uint16_t port);
// errc::wait_timeout
[[nodiscard]] result<stream> accept_from(int listening, time_point deadline);

} // namespace gaudi
