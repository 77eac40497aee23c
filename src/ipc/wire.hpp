// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/handle.hpp"

#include <atomic>

namespace gaudi {

// What importers ask of an owner's broker, and what it answers. Every message has one size.

enum class wire_ask : std::uint16_t {
    open_lease = 1, // handle; wants: whether to pass the board, and with the first one the bell
    close_lease,    // lease; no answer
    open_context,   // lease: the device it lies on; answered with the device's descriptor and its ledger
    attach_slab,    // passes shared memory of `length` bytes that copies go through
    copy_out,       // lease: [offset, offset + length) to slab_offset
    copy_in,        // and back
    open_dmabuf,    // lease: answered with a DMA-BUF of its pages
    open_device,    // offset: the node; answered as open_context
    let_go          // lease: of the DMA-BUF that was given for it nothing is left; no answer
};

struct wire_head {
    static constexpr std::uint32_t magic_value = 0x57444731; // "1GDW"
    static constexpr std::uint16_t current_version = 1;
    std::uint32_t magic = magic_value;
    std::uint16_t version = current_version;
    wire_ask ask = wire_ask::open_lease;
    std::uint64_t id = 0; // the asker's, given back
};

constexpr std::uint32_t wants_board = 1;
constexpr std::uint32_t gives_bell = 2;

struct wire_request {
    wire_head head;
    std::uint32_t lease = 0;
    std::uint32_t wants = 0;
    std::uint64_t offset = 0, length = 0, slab_offset = 0;
    handle_record handle;
};

struct wire_reply {
    wire_head head;
    std::uint32_t failed = 0; // 0, or an errc + 1
    std::int32_t system_error = 0;
    std::uint32_t lease = 0;
    std::uint32_t given = 0;  // whether the board is passed, and the bell
    std::uint64_t skip = 0;   // from the beginning of the DMA-BUF to the bytes that the handle opens
    std::uint64_t window = 0; // length of the DMA-BUF
    std::uint32_t place = 0;  // a guest's
    std::uint32_t fetch =
        0; // descriptors could not be passed: these numbers of the owner's are to be fetched
    std::array<std::int32_t, 4> numbers{};
    char observed[160] = {};
};
static_assert(std::is_trivially_copyable_v<wire_request> && std::is_trivially_copyable_v<wire_reply>);

// Whether [offset, offset + length) lies in `size` bytes.
[[nodiscard]] constexpr bool lies_within(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
    return length != 0 && offset <= size && length <= size - offset;
}

// One lease as both sides see it, in memory they share. An importer counts itself in, looks whether the lease
// is revoked, and counts itself out when its copy has landed; the owner revokes, then waits for the count.
struct lease_word {
    std::atomic<std::uint32_t> revoked;
    std::atomic<std::uint32_t> in_flight;
};
constexpr std::uint32_t leases_per_client = 4096;

[[nodiscard]] std::string broker_name(const process_identity& owner);
// Where a device that is offered to others is served.
[[nodiscard]] std::string device_name(std::uint64_t node);

} // namespace gaudi
