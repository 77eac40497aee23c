// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>

namespace gaudi {

/// A range of device memory with the arguments of ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access):
/// `offset` counts from the beginning of the DMA-BUF, and offset and iova are congruent modulo 4096.
///
/// Unless the function that returns it says otherwise, the descriptor is borrowed: it belongs to the chunk
/// that the range lies in and stays open as long as a buffer of that chunk lives. Duplicate it to keep it
/// longer, and close the duplicate before the device: a DMA-BUF keeps a device busy.
struct dmabuf_export {
    int fd = -1;
    std::uint64_t offset = 0;
    device_address iova;
    std::uint64_t length = 0;
};

} // namespace gaudi
