// SPDX-License-Identifier: BSD-3-Clause
// Both sides check everything that the other one sends before they use it: the peer of a TCP port may be any
// program. Numbers travel in big-endian order, data later as it lies in memory.
#include "src/connection/handshake.hpp"

#include "src/error/try.hpp"
#include "src/os/byte_order.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::uint64_t magic = 0x676175'6469'7264ULL << 8 | 0x6d; // "gaudirdm"
constexpr std::uint32_t ready_magic = 0x52454459;                  // "REDY"
constexpr std::size_t ready_bytes = 256;
constexpr std::uint32_t shortest_segment = 4096, longest_segment = 1U << 30;
// Data is sent as it lies in memory: both hosts must have the same byte order.
constexpr std::uint8_t native_order = std::endian::native == std::endian::little ? 1 : 2;

} // namespace

std::array<std::byte, hello::encoded_bytes> hello::encode() const {
    std::array<std::byte, encoded_bytes> bytes{};
    packer out(bytes);
    // Magic and version come first and never move, so that sides of different versions can tell each other.
    out.put(magic).put(version).put(static_cast<std::uint16_t>(encoded_bytes)).put(native_order);
    out.put(static_cast<std::uint8_t>(endpoint.ethernet ? 1 : 0))
        .put(static_cast<std::uint8_t>(sleeps ? 1 : 0));
    out.put(endpoint.mtu)
        .put(endpoint.reads_in_flight)
        .put(static_cast<std::uint8_t>(atomics ? 1 : 0))
        .put(endpoint.lid)
        .put(endpoint.qp_number)
        .put(endpoint.first_psn);
    for (const auto byte : endpoint.gid)
        out.put(byte);
    out.put(segment).put(longest_write).put(credits_address).put(credits_key);
    return bytes;
}

result<hello> hello::decode(std::span<const std::byte> bytes, const std::string& peer) {
    const auto refuse = [&](const std::string& what) {
        return tl::unexpected(error(errc::handshake_refused, fmt::format("{}: {}", peer, what)));
    };
    unpacker in(bytes);
    if (in.get<std::uint64_t>() != magic)
        return refuse("its first bytes are not a gaudi-direct handshake");
    hello remote;
    remote.version = in.get<std::uint16_t>();
    // Before the length: another version may have another length.
    if (remote.version != protocol_version)
        return tl::unexpected(
            error(errc::version_mismatch, fmt::format("{} has protocol version {}, this side {}", peer,
                                                      remote.version, protocol_version)));
    if (const auto length = in.get<std::uint16_t>(); length != encoded_bytes)
        return refuse(fmt::format("its greeting has {} bytes instead of {}", length, encoded_bytes));
    if (in.get<std::uint8_t>() != native_order)
        return refuse("its numbers have the other byte order");
    remote.endpoint.ethernet = in.get<std::uint8_t>() != 0;
    remote.sleeps = in.get<std::uint8_t>() != 0;
    remote.endpoint.mtu = in.get<std::uint8_t>();
    remote.endpoint.reads_in_flight = in.get<std::uint8_t>();
    remote.atomics = in.get<std::uint8_t>() != 0;
    remote.endpoint.lid = in.get<std::uint16_t>();
    remote.endpoint.qp_number = in.get<std::uint32_t>();
    remote.endpoint.first_psn = in.get<std::uint32_t>();
    for (auto& byte : remote.endpoint.gid)
        byte = in.get<std::uint8_t>();
    remote.segment = in.get<std::uint32_t>();
    remote.longest_write = in.get<std::uint64_t>();
    remote.credits_address = in.get<std::uint64_t>();
    remote.credits_key = in.get<std::uint32_t>();
    // What follows goes into ibv_modify_qp or into this side's arithmetic: the driver's EINVAL would not say
    // which value the peer sent.
    if (remote.endpoint.mtu < 1 || remote.endpoint.mtu > 5)
        return refuse(fmt::format("MTU code {}", remote.endpoint.mtu));
    if (remote.endpoint.qp_number >= 1U << 24 || remote.endpoint.first_psn >= 1U << 24)
        return refuse(fmt::format("queue pair {:#x}, sequence {:#x}", remote.endpoint.qp_number,
                                  remote.endpoint.first_psn));
    if (remote.segment < shortest_segment || remote.segment > longest_segment || remote.segment % 4096 != 0)
        return refuse(fmt::format("segments of {} bytes", remote.segment));
    if (remote.longest_write < remote.segment || remote.endpoint.reads_in_flight == 0)
        return refuse(fmt::format("requests of {} bytes, {} reads in flight", remote.longest_write,
                                  remote.endpoint.reads_in_flight));
    return remote;
}

result<void> send_hello(const stream& to, const hello& local, time_point deadline) {
    const auto bytes = local.encode();
    return to.send_all(bytes, deadline);
}

result<hello> receive_hello(const stream& from, time_point deadline) {
    std::array<std::byte, hello::encoded_bytes> bytes;
    // Version and magic come first: a peer of another version may send less than we expect.
    const std::span all(bytes);
    GAUDI_CHECK(from.receive_all(all.first(12), deadline));
    // Only magic and version are meaningful here: errors of the fields that follow are ignored until they
    // have arrived.
    std::fill(bytes.begin() + 12, bytes.end(), std::byte{0});
    if (const auto early = hello::decode(all, from.peer());
        !early && (early.error().code() == errc::version_mismatch || std::to_integer<int>(bytes[0]) != 'g'))
        return tl::unexpected(early.error());
    GAUDI_CHECK(from.receive_all(all.subspan(12), deadline));
    return hello::decode(all, from.peer());
}

result<void> send_ready(const stream& to, const std::string& refusal, time_point deadline) {
    std::array<std::byte, ready_bytes> bytes{};
    const auto length = std::min(refusal.size(), ready_bytes - 8);
    packer(bytes).put(ready_magic).put(static_cast<std::uint32_t>(length));
    std::memcpy(bytes.data() + 8, refusal.data(), length);
    return to.send_all(bytes, deadline);
}

result<void> receive_ready(const stream& from, time_point deadline) {
    std::array<std::byte, ready_bytes> bytes;
    GAUDI_CHECK(from.receive_all(bytes, deadline));
    unpacker in(bytes);
    const bool has_magic = in.get<std::uint32_t>() == ready_magic;
    const auto length = in.get<std::uint32_t>();
    if (!has_magic || length > ready_bytes - 8)
        return tl::unexpected(
            error(errc::handshake_refused,
                  fmt::format("{}: its answer is not a gaudi-direct handshake", from.peer())));
    if (length != 0)
        return tl::unexpected(
            error(errc::handshake_refused,
                  fmt::format("{} reports: {}", from.peer(),
                              std::string_view(reinterpret_cast<const char*>(bytes.data() + 8), length))));
    return {};
}

} // namespace gaudi
