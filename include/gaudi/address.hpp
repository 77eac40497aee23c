// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#if __cplusplus < 201709L
#error "gaudi-direct needs C++20: compile with -std=c++20"
#endif

#include <compare>
#include <cstdint>

namespace gaudi {

/// An address in a device's memory. It is not a pointer and never converts to one: the CPU cannot access HBM,
/// and on Gaudi2 and later the number is not a valid x86-64 address. A copy engine or a NIC moves the bytes.
class device_address {
public:
    constexpr device_address() = default;
    explicit constexpr device_address(std::uint64_t value) : value_(value) {} ///< as value() returns it

    /// The number as the driver and the NIC expect it, as an iova and in packets.
    [[nodiscard]] constexpr std::uint64_t value() const { return value_; }

    friend constexpr auto operator<=>(device_address, device_address) = default;
    /// The address `bytes` after `base`.
    friend constexpr device_address operator+(device_address base, std::uint64_t bytes) {
        return device_address(base.value_ + bytes);
    }
    /// Bytes from `base` to `address`.
    friend constexpr std::uint64_t operator-(device_address address, device_address base) {
        return address.value_ - base.value_;
    }

private:
    std::uint64_t value_ = 0;
};

/// Whether the number is what torch.Tensor.data_ptr() returns for a tensor on a Gaudi: a handle of PyTorch's
/// allocator, and no address. Handles of small tensors look like other numbers and are not recognised.
[[nodiscard]] constexpr bool is_pytorch_handle(device_address address) {
    const auto bucket = address.value() >> 62; // 1: medium, 2: big
    return bucket == 1 || bucket == 2;
}

} // namespace gaudi
