// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/ipc.hpp>

#include "src/os/identity.hpp"

#include <type_traits>

namespace gaudi {

// The content of a memory_handle. Only processes of one host read it, so that the byte order is the host's.
struct handle_record {
    static constexpr std::uint32_t magic_value = 0x48444731; // "1GDH"
    static constexpr std::uint16_t current_version = 1;

    std::uint32_t magic = magic_value;
    std::uint16_t version = current_version;
    std::uint16_t size = memory_handle::size;
    std::uint64_t machine = 0;
    std::array<std::uint64_t, 2> random{};
    std::uint64_t start_time = 0;
    std::uint32_t pid = 0;
    std::uint32_t device_index = 0;
    std::uint64_t device = 0; // its node: names the device on this machine
    std::uint64_t base = 0;
    std::uint64_t allocated = 0;
    std::uint64_t generation = 0;
    std::uint64_t secret = 0; // chosen by the owner for each shared range: a handle cannot be made up
    std::uint64_t offset = 0; // of the shared range in the allocation
    std::uint64_t length = 0;
    std::array<std::uint64_t, 2> reserved{};
    std::uint64_t checksum = 0;

    [[nodiscard]] process_identity owner() const { return {machine, random, start_time, pid, 0}; }
    void set_owner(const process_identity& process);
    [[nodiscard]] memory_handle seal();
};
static_assert(sizeof(handle_record) == memory_handle::size && std::is_trivially_copyable_v<handle_record>);

// errc::handle_invalid
[[nodiscard]] result<handle_record> read_handle(std::span<const std::byte> bytes);

} // namespace gaudi
