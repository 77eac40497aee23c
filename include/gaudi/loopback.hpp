// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/error.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace gaudi {

class device;
class nic;
class loopback_core;

// Small copies between host and device memory by a NIC that sends to itself. No engine of the device and no
// system call is involved, so a few bytes take a few microseconds where an engine takes ten times that; large
// copies belong to the copy engine. For one thread at a time.
class loopback {
public:
    // The longest piece; longer copies are cut.
    static constexpr std::size_t piece = 16 * 1024;

    // errc::dmabuf_unsupported where the NIC cannot reach device memory, connection_broken where it cannot
    // talk to itself.
    [[nodiscard]] static result<loopback> make(const std::shared_ptr<nic>& card);
    // The same with the nearest NIC that registers DMA-BUFs; also what open_nic() says.
    [[nodiscard]] static result<loopback> near(const device& owner);
    explicit loopback(std::unique_ptr<loopback_core> core);
    loopback(loopback&&) noexcept;
    loopback& operator=(loopback&&) noexcept;
    ~loopback();

    // The bytes are in the device's memory when it returns: a read behind the write has pushed them there.
    result<void> write(device& owner, device_address to, std::span<const std::byte> from);
    result<void> read(device& owner, std::span<std::byte> to, device_address from);

private:
    std::unique_ptr<loopback_core> core_;
};

} // namespace gaudi
