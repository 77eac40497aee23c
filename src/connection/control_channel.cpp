// SPDX-License-Identifier: BSD-3-Clause
#include "src/connection/control_channel.hpp"

#include "src/os/byte_order.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::size_t header_bytes = 8;

std::size_t bytes_held_by(const frame& waiting) {
    return sizeof(waiting) + waiting.body.size();
}

} // namespace

result<void> control_channel::send(frame_kind kind, std::span<const std::byte> body,
                                   time_point deadline) const {
    std::vector<std::byte> bytes(header_bytes + body.size());
    packer(bytes).put(static_cast<std::uint32_t>(body.size())).put(static_cast<std::uint16_t>(kind));
    std::copy(body.begin(), body.end(), bytes.begin() + header_bytes);
    return stream_.send_all(bytes, deadline);
}

result<std::vector<frame>> control_channel::receive() {
    std::vector<frame> whole;
    std::array<std::byte, 4096> fresh;
    for (;;) {
        const auto got = stream_.receive_some(fresh);
        if (!got) {
            if (!whole.empty())
                return whole; // the next call reports the end of the stream
            return tl::unexpected(got.error());
        }
        if (*got == 0)
            return whole;
        pending_.insert(pending_.end(), fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(*got));
        while (pending_.size() >= header_bytes) {
            unpacker in(pending_);
            const auto length = in.get<std::uint32_t>();
            const auto kind = in.get<std::uint16_t>();
            // Checked with the header alone: a peer that claims a long frame must not make this side wait for
            // it or store it.
            if (length > longest_body || kind < 1 || kind > last_frame_kind)
                return tl::unexpected(
                    error(errc::protocol_violated, fmt::format("{} sent a frame of kind {} and {} bytes",
                                                               stream_.peer(), kind, length)));
            if (pending_.size() < header_bytes + length)
                break;
            const auto begin = pending_.begin() + header_bytes;
            whole.push_back({static_cast<frame_kind>(kind), {begin, begin + length}});
            pending_.erase(pending_.begin(), begin + length);
        }
    }
}

result<void> inbox::add(frame received, const std::string& peer) {
    bytes_ += bytes_held_by(received);
    frames_.push_back(std::move(received));
    // Counted with the size of the entries: notes without bytes would otherwise be free.
    if (bytes_ > most_bytes)
        return tl::unexpected(
            error(errc::protocol_violated,
                  fmt::format("{} sent {} notes and offers that this side has not taken, more than {} MiB",
                              peer, frames_.size(), most_bytes >> 20)));
    return {};
}

std::optional<std::vector<std::byte>> inbox::take(frame_kind kind) {
    const auto oldest = std::find_if(frames_.begin(), frames_.end(),
                                     [&](const frame& waiting) { return waiting.kind == kind; });
    if (oldest == frames_.end())
        return {};
    bytes_ -= bytes_held_by(*oldest);
    auto body = std::move(oldest->body);
    frames_.erase(oldest);
    return body;
}

} // namespace gaudi
