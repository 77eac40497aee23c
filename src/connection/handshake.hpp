// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/connection/stream.hpp"
#include "src/rdma/queue_pair.hpp"

#include <array>
#include <cstdint>

namespace gaudi {

constexpr std::uint16_t protocol_version = 2;

// What each side sends before any data. decode() checks every field before any is used.
struct hello {
    static constexpr std::size_t encoded_bytes = 96;

    std::uint16_t version = protocol_version;
    qp_endpoint endpoint;
    bool sleeps = false; // waits by events: credits must go over TCP, because an RDMA Write does not wake it
    bool atomics = false;
    std::uint32_t segment = 0;         // longest part of a message
    std::uint64_t longest_write = 0;   // of one work request
    std::uint64_t credits_address = 0; // where the other side writes its credits
    std::uint32_t credits_key = 0;

    [[nodiscard]] std::array<std::byte, encoded_bytes> encode() const;
    // errc::handshake_refused, version_mismatch
    static result<hello> decode(std::span<const std::byte> bytes, const std::string& peer);
};

result<void> send_hello(const stream& to, const hello& local, time_point deadline);
result<hello> receive_hello(const stream& from, time_point deadline);

// The last step: each side reports that its queue pair can receive, or why the connection fails.
result<void> send_ready(const stream& to, const std::string& refusal, time_point deadline);
result<void> receive_ready(const stream& from, time_point deadline);

} // namespace gaudi
