// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/rdma/stream.hpp"

#include <deque>
#include <vector>

namespace gaudi {

// What the TCP connection carries once the queue pairs are joined: frames, each with a kind and a length.
enum class frame_kind : std::uint16_t {
    note = 1,
    offer = 2,
    grants = 3,
    goodbye = 4,
    ask = 5, // one-sided access to staged memory, see lender
    lend = 6,
    back = 7,
    over = 8
};
constexpr std::uint16_t last_frame_kind = 8;

struct frame {
    frame_kind kind;
    std::vector<std::byte> body;
};

class control_channel {
public:
    static constexpr std::size_t longest_body = 64 * 1024;

    explicit control_channel(stream joined) : stream_(std::move(joined)) {}

    // Blocks no longer than until the deadline. errc::peer_gone, handshake_timeout.
    result<void> send(frame_kind kind, std::span<const std::byte> body, time_point deadline) const;
    // Whole frames that have come; none where there is none. errc::peer_gone, handshake_refused.
    result<std::vector<frame>> receive();

    [[nodiscard]] const stream& line() const { return stream_; }
    [[nodiscard]] int descriptor() const { return stream_.descriptor(); }
    [[nodiscard]] const std::string& peer() const { return stream_.peer(); }

private:
    stream stream_;
    std::vector<std::byte> pending_; // the beginning of a frame
};

} // namespace gaudi
