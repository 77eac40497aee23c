// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gaudi_ucx {

// What a key says about memory: whose it is, where, and which allocation. It means the same in every process,
// and it tells a later allocation at the same address from the one it was made for. No descriptor is in it.
struct memory_key {
    static constexpr std::uint32_t magic_value = 0x4b444731; // "1GDK"
    static constexpr std::uint16_t current_version = 1;
    enum : std::uint16_t { host = 0, device = 1 };

    std::uint32_t magic = magic_value;
    std::uint16_t version = current_version;
    std::uint16_t kind = host;
    std::uint64_t machine = 0; // boot id, mixed
    std::uint64_t process = 0; // random, made once
    std::uint32_t pid = 0;
    std::uint32_t device_index = 0;
    std::uint64_t base = 0;
    std::uint64_t length = 0;
    std::uint64_t generation = 0; // 0: memory that somebody else allocated
    std::uint64_t checksum = 0;

    // A key of this process.
    [[nodiscard]] static memory_key make(std::uint16_t kind, std::uint64_t base, std::uint64_t length);
    void seal();
    // Why it is none of ours: corrupted, or of another version. Empty: it is whole.
    [[nodiscard]] std::string_view fault() const;
    [[nodiscard]] bool valid_in_this_process() const;
};
static_assert(sizeof(memory_key) == 64);

} // namespace gaudi_ucx
