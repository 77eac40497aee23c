// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gaudi_ucx {

// What a key says about memory: its process, its address, and its allocation. It has the same meaning in
// every process, and it distinguishes the allocation it was made for from a later one at the same address. It
// contains no descriptor.
struct memory_key {
    static constexpr std::uint32_t magic_value = 0x4b444731; // "1GDK"
    static constexpr std::uint16_t current_version = 1;
    enum : std::uint16_t { host = 0, device = 1 };

    std::uint32_t magic = magic_value;
    std::uint16_t version = current_version;
    std::uint16_t kind = host;
    std::uint64_t machine = 0; // checksum of the boot id
    std::uint64_t process = 0; // random, chosen once per process
    std::uint32_t pid = 0;
    std::uint32_t device_index = 0;
    std::uint64_t base = 0;
    std::uint64_t length = 0;
    std::uint64_t generation = 0; // 0: memory that this library did not allocate
    std::uint64_t checksum = 0;

    // A key for memory of this process.
    [[nodiscard]] static memory_key make(std::uint16_t kind, std::uint64_t base, std::uint64_t length);
    void seal();
    // Why it is not a valid key: corrupted, or of another version. Empty where it is valid.
    [[nodiscard]] std::string_view fault() const;
    [[nodiscard]] bool valid_in_this_process() const;
};
static_assert(sizeof(memory_key) == 64);

} // namespace gaudi_ucx
