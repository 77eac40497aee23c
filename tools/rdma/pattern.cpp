// SPDX-License-Identifier: BSD-3-Clause
#include "tools/rdma/pattern.hpp"

#include <cstring>
#include <fmt/format.h>

namespace tools::rdma {
namespace {

constexpr std::size_t element_bytes = 4;

} // namespace

std::string difference::text() const {
    return fmt::format("wrong {} at offset {}: expected {}, found {}", whole_element ? "element" : "byte",
                       offset, expected, found);
}

void pattern::fill(std::span<std::byte> piece, std::uint64_t offset) const {
    auto index = offset / element_bytes;
    for (; piece.size() >= element_bytes; piece = piece.subspan(element_bytes)) {
        const auto value = element(index++);
        std::memcpy(piece.data(), &value, element_bytes);
    }
    for (auto& byte : piece)
        byte = static_cast<std::byte>(element(index++));
}

std::optional<difference> pattern::check(std::span<const std::byte> piece, std::uint64_t offset) const {
    auto index = offset / element_bytes;
    for (; piece.size() >= element_bytes; piece = piece.subspan(element_bytes), offset += element_bytes) {
        std::uint32_t found = 0;
        std::memcpy(&found, piece.data(), element_bytes);
        if (const auto expected = element(index++); found != expected)
            return difference{offset, expected, found, true};
    }
    for (const auto byte : piece) {
        if (const auto expected = element(index++) & 0xff; std::to_integer<std::uint32_t>(byte) != expected)
            return difference{offset, expected, std::to_integer<std::uint32_t>(byte), false};
        ++offset;
    }
    return {};
}

void double_elements(std::span<std::byte> piece) {
    for (; piece.size() >= element_bytes; piece = piece.subspan(element_bytes)) {
        std::uint32_t value = 0;
        std::memcpy(&value, piece.data(), element_bytes);
        value *= 2;
        std::memcpy(piece.data(), &value, element_bytes);
    }
    for (auto& byte : piece)
        byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) * 2);
}

} // namespace tools::rdma
