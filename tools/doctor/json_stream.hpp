// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/unique_handle.hpp>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tools::doctor {

// A TCP connection that carries JSON, a line a message. Every call ends within its limit, and no line of a
// peer is longer than 64 KiB.
class json_stream {
public:
    // On failure `why` says what failed.
    static std::optional<json_stream> connect(const std::string& host, const std::string& port,
                                              std::string& why);
    // Waits without limit for the first peer.
    static std::optional<json_stream> accept(std::uint16_t port, std::string& why);

    bool send(const nlohmann::json& message);
    // nullopt: the peer left, sent something else, or said nothing within the limit.
    std::optional<nlohmann::json> receive(std::chrono::milliseconds limit = std::chrono::seconds(30));
    [[nodiscard]] const std::string& peer() const { return peer_; }

private:
    struct descriptor {
        int fd = -1;
        explicit operator bool() const { return fd >= 0; }
        void close() noexcept;
    };
    json_stream(int fd, std::string peer) : socket_({fd}), peer_(std::move(peer)) {}

    gaudi::unique_handle<descriptor> socket_;
    std::string peer_, received_;
};

} // namespace tools::doctor
