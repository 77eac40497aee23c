// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/stream.hpp"

#include <deque>
#include <optional>
#include <vector>

namespace gaudi {

// Frames on the TCP stream once the queue pairs are connected, each with a kind and a length.
enum class frame_kind : std::uint16_t {
    note = 1,
    offer = 2,
    credits = 3,
    goodbye = 4,
    access_request = 5, // one-sided access to staged memory, see staging_protocol.hpp
    slab_grant = 6,
    slab_return = 7,
    access_end = 8
};
constexpr std::uint16_t last_frame_kind = 8;

struct frame {
    frame_kind kind;
    std::vector<std::byte> body;
};

class control_channel {
public:
    static constexpr std::size_t longest_body = 64 * 1024;

    // `limit`: how long a frame may take to be sent.
    control_channel(stream joined, std::chrono::milliseconds limit)
        : stream_(std::move(joined)), limit_(limit) {}

    // Blocks no longer than the limit, or until the deadline. errc::peer_gone, handshake_timeout: the peer
    // may have received half a frame and cannot parse what follows.
    result<void> send(frame_kind kind, std::span<const std::byte> body) const {
        return send(kind, body, std::chrono::steady_clock::now() + limit_);
    }
    result<void> send(frame_kind kind, std::span<const std::byte> body, time_point deadline) const;
    // The complete frames received so far, possibly none. errc::peer_gone, protocol_violated.
    result<std::vector<frame>> receive();

    [[nodiscard]] const stream& line() const { return stream_; }
    [[nodiscard]] int descriptor() const { return stream_.descriptor(); }
    [[nodiscard]] const std::string& peer() const { return stream_.peer(); }

private:
    stream stream_;
    const std::chrono::milliseconds limit_;
    std::vector<std::byte> pending_; // an incomplete frame
};

// Received notes and offers that the caller has not asked for yet.
class inbox {
public:
    static constexpr std::size_t most_bytes = std::size_t{64} << 20;

    // errc::protocol_violated where more than most_bytes are unread.
    result<void> add(frame received, const std::string& peer);
    // The body of the oldest frame of this kind.
    std::optional<std::vector<std::byte>> take(frame_kind kind);
    [[nodiscard]] bool empty() const { return frames_.empty(); }

private:
    std::deque<frame> frames_;
    std::size_t bytes_ = 0;
};

} // namespace gaudi
