// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace gaudi {

// Writes big-endian numbers one after the other. The caller provides enough room.
class packer {
public:
    explicit packer(std::span<std::byte> into) : rest_(into) {}

    template <std::unsigned_integral T>
    packer& put(T value) {
        for (std::size_t i = 0; i < sizeof(T); ++i)
            rest_[i] = static_cast<std::byte>(value >> (8 * (sizeof(T) - 1 - i)));
        rest_ = rest_.subspan(sizeof(T));
        return *this;
    }

private:
    std::span<std::byte> rest_;
};

// Reads what packer wrote. The caller checks that enough bytes are left.
class unpacker {
public:
    explicit unpacker(std::span<const std::byte> from) : rest_(from) {}

    template <std::unsigned_integral T>
    T get() {
        T value = 0;
        for (std::size_t i = 0; i < sizeof(T); ++i)
            value = static_cast<T>(static_cast<T>(value << (sizeof(T) > 1 ? 8 : 0)) |
                                   static_cast<T>(std::to_integer<unsigned>(rest_[i])));
        rest_ = rest_.subspan(sizeof(T));
        return value;
    }
    [[nodiscard]] std::span<const std::byte> rest() const { return rest_; }

private:
    std::span<const std::byte> rest_;
};

} // namespace gaudi
