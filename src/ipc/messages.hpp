// SPDX-License-Identifier: BSD-3-Clause
// Messages between an importer and the broker of an owner, over a SOCK_SEQPACKET socket. A request is a head
// and one of the structs below; its answer is a head and the struct that the request names.
#pragma once

#include "src/ipc/handle.hpp"

#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace gaudi {

// ---- answers ----

struct nothing_more {
    std::uint32_t reserved = 0;
};
struct opened_lease {
    static constexpr std::uint32_t table = 1, revoke_socket = 2;
    std::uint32_t lease = 0;
    std::uint32_t passed = 0; // which of them are passed as descriptors, in this order
};
struct opened_context { // with two descriptors: the device and the shared context
    std::uint32_t member = 0;
};
struct opened_dmabuf {        // with one descriptor
    std::uint64_t skip = 0;   // from the beginning of the DMA-BUF to the bytes that the handle opens
    std::uint64_t window = 0; // length of the DMA-BUF
};

// ---- requests ----

struct open_lease_request {
    using answer = opened_lease;
    handle_record handle;
    std::uint64_t wants_table = 0; // 1: pass the lease table, and with the first one the revoke socket
};
struct close_lease_request {
    using answer = void;
    std::uint32_t lease = 0;
};
struct open_context_request { // of the device that the lease's memory lies on
    using answer = opened_context;
    std::uint32_t lease = 0;
};
struct attach_slab_request { // passes the shared memory that copies go through
    using answer = nothing_more;
    std::uint64_t length = 0;
};
struct copy_request { // copies between [offset, offset + length) of the leased memory and the slab
    using answer = nothing_more;
    std::uint32_t lease = 0;
    std::uint32_t to_slab = 0; // 1: to the slab, 0: from the slab
    std::uint64_t offset = 0, length = 0, slab_offset = 0;
};
struct open_dmabuf_request { // of the lease's pages
    using answer = opened_dmabuf;
    std::uint32_t lease = 0;
};
struct open_device_request {
    using answer = opened_context;
    std::uint64_t node = 0;
};
struct release_dmabuf_request { // the importer has released everything of the lease's DMA-BUF
    using answer = void;
    std::uint32_t lease = 0;
};

// A request's kind on the wire is its place in this list, counted from 1.
using ipc_request =
    std::variant<open_lease_request, close_lease_request, open_context_request, attach_slab_request,
                 copy_request, open_dmabuf_request, open_device_request, release_dmabuf_request>;

struct request_head {
    static constexpr std::uint32_t magic_value = 0x57444731; // "1GDW"
    static constexpr std::uint16_t current_version = 2;
    std::uint32_t magic = magic_value;
    std::uint16_t version = current_version;
    std::uint16_t kind = 0;
    std::uint64_t id = 0; // chosen by the importer, returned in the answer
};

struct answer_head {
    std::uint32_t magic = request_head::magic_value;
    std::uint16_t version = request_head::current_version;
    std::uint16_t reserved = 0;
    std::uint64_t id = 0;
    std::uint32_t failed = 0; // 0, or an errc + 1
    std::int32_t system_error = 0;
    // Descriptors that could not be passed: the importer fetches this many of the owner's descriptors, by
    // these numbers.
    std::uint32_t fetch = 0;
    std::array<std::int32_t, 4> numbers{};
    char observed[160] = {};

    void set_failure(const error& why) {
        failed = static_cast<std::uint32_t>(why.code()) + 1;
        system_error = why.system_error();
        std::strncpy(observed, why.observed().c_str(), sizeof(observed) - 1);
    }
};

// ---- encoding ----

constexpr std::size_t longest_request = sizeof(request_head) + sizeof(open_lease_request);
constexpr std::size_t longest_answer = sizeof(answer_head) + sizeof(opened_dmabuf);
using message_bytes = std::vector<std::byte>;

template <typename Head, typename Body>
message_bytes message_of(const Head& head, const Body& body) {
    static_assert(std::is_trivially_copyable_v<Head> && std::is_trivially_copyable_v<Body>);
    message_bytes bytes(sizeof(head) + sizeof(body));
    std::memcpy(bytes.data(), &head, sizeof(head));
    std::memcpy(bytes.data() + sizeof(head), &body, sizeof(body));
    return bytes;
}

template <typename Request, std::size_t Kind = 0>
constexpr std::uint16_t kind_of() {
    if constexpr (std::is_same_v<Request, std::variant_alternative_t<Kind, ipc_request>>)
        return Kind + 1;
    else
        return kind_of<Request, Kind + 1>();
}

template <typename Request>
message_bytes request_message(std::uint64_t id, const Request& request) {
    return message_of(request_head{.kind = kind_of<Request>(), .id = id}, request);
}

// The bytes as a T; none where the size differs.
template <typename T>
std::optional<T> read_as(std::span<const std::byte> bytes) {
    if (bytes.size() != sizeof(T))
        return {};
    T value;
    std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(T));
    return value;
}

// Decodes the body that follows a head. None where the kind is unknown or the size is wrong.
template <std::size_t Kind = 0>
std::optional<ipc_request> read_request(std::uint16_t kind, std::span<const std::byte> body) {
    if constexpr (Kind < std::variant_size_v<ipc_request>) {
        if (kind == Kind + 1)
            return read_as<std::variant_alternative_t<Kind, ipc_request>>(body);
        return read_request<Kind + 1>(kind, body);
    }
    return {};
}

// Whether [offset, offset + length) lies in `size` bytes.
[[nodiscard]] constexpr bool lies_within(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
    return length != 0 && offset <= size && length <= size - offset;
}

// One lease in the lease table, memory that both sides share. An importer increments in_flight, checks
// revoked, and decrements in_flight when its copy has completed; the owner sets revoked, then waits until
// in_flight is 0.
struct lease_word {
    std::atomic<std::uint32_t> revoked;
    std::atomic<std::uint32_t> in_flight;
};
constexpr std::uint32_t leases_per_client = 4096;

[[nodiscard]] std::string broker_name(const process_identity& owner);
// The name of the socket on which a process offers the device to others.
[[nodiscard]] std::string device_name(std::uint64_t node);

} // namespace gaudi
