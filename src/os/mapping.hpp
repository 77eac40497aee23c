// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace gaudi {

// Mapped memory with one owner.
class mapping {
public:
    mapping() = default;
    mapping(mapping&& other) noexcept;
    mapping& operator=(mapping&& other) noexcept;
    ~mapping();

    // Anonymous, zeroed, private. Not inherited by children: the device's view of pinned pages must stay the
    // parent's.
    static result<mapping> anonymous(std::size_t size);
    static result<mapping> of_file(int fd, std::uint64_t offset, std::size_t size);

    [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

private:
    mapping(std::span<std::byte> bytes, int owner) : bytes_(bytes), owner_(owner) {}

    std::span<std::byte> bytes_;
    int owner_ =
        0; // 0: everybody who has it; else the only process that does, because children do not inherit it
};

} // namespace gaudi
