// SPDX-License-Identifier: BSD-3-Clause
// The frames of one-sided access to memory that no NIC can reach, over the connection's TCP stream. The
// initiator requests access; the owner of the memory grants slabs of host memory one by one, which the
// initiator's NIC reads or writes; the initiator returns each; the owner ends the access.
#pragma once

#include "src/os/byte_order.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace gaudi {

struct access_request {
    std::uint64_t id = 0; // of the initiator's operation
    std::uint64_t address = 0, length = 0;
    std::uint32_t key = 0;
    bool writing = false;

    auto fields() { return std::tie(id, address, length, key, writing); }
};

struct slab_grant {
    std::uint64_t id = 0, offset = 0, address = 0;
    std::uint32_t bytes = 0, key = 0, slab = 0;

    auto fields() { return std::tie(id, offset, address, bytes, key, slab); }
};

// The initiator has read or written the slab.
struct slab_return {
    std::uint64_t id = 0;
    std::uint32_t slab = 0;

    auto fields() { return std::tie(id, slab); }
};

// The access is complete, or refused with a reason, which follows the fields.
struct access_end {
    std::uint64_t id = 0;
    std::string refusal = {};

    auto fields() { return std::tie(id); }
};

template <typename Frame>
std::vector<std::byte> encode_frame(Frame frame) {
    std::vector<std::byte> body;
    std::apply(
        [&](const auto&... field) {
            body.resize((sizeof(field) + ...));
            packer out(body);
            (out.put(field), ...);
        },
        frame.fields());
    if constexpr (requires { frame.refusal; }) {
        const auto text = std::as_bytes(std::span(frame.refusal));
        body.insert(body.end(), text.begin(), text.end());
    }
    return body;
}

// None where the body has the wrong size.
template <typename Frame>
std::optional<Frame> decode_frame(std::span<const std::byte> body) {
    Frame frame;
    constexpr bool has_text = requires {
        frame.refusal;
    };
    const bool fits = std::apply(
        [&](auto&... field) {
            constexpr auto bytes = (sizeof(field) + ...);
            if (has_text ? body.size() < bytes : body.size() != bytes)
                return false;
            unpacker in(body);
            ((field = in.get<std::remove_reference_t<decltype(field)>>()), ...);
            if constexpr (has_text)
                frame.refusal.assign(reinterpret_cast<const char*>(in.rest().data()), in.rest().size());
            return true;
        },
        frame.fields());
    return fits ? std::optional(std::move(frame)) : std::nullopt;
}

} // namespace gaudi
