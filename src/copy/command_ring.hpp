// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hl_device.hpp"
#include "src/os/mapping.hpp"

#include <cstdint>
#include <vector>

namespace gaudi {

// Memory for command buffers: one slot for each submission that may be in flight. On Gaudi2 and later it is
// host memory mapped for the device; on gen1 each slot is a buffer of the driver's.
class command_ring {
public:
    static result<command_ring> make(const std::shared_ptr<hl_device>& device, unsigned slots,
                                     std::uint32_t slot_bytes);
    command_ring(command_ring&& other) noexcept;
    command_ring& operator=(command_ring&&) = delete;
    ~command_ring();

    [[nodiscard]] std::byte* bytes(unsigned slot) const;
    // The chunk of a submission: `size` bytes from `offset` in the slot.
    [[nodiscard]] hl_cs_chunk chunk(unsigned slot, std::uint32_t offset, std::uint32_t size,
                                    std::uint32_t queue) const;

private:
    explicit command_ring(std::shared_ptr<hl_device> device, std::uint32_t slot_bytes)
        : device_(std::move(device)), slot_bytes_(slot_bytes) {}

    struct driver_buffer {
        std::uint64_t handle;
        mapping view;
    };

    std::shared_ptr<hl_device> device_;
    std::uint32_t slot_bytes_;
    mapping memory_;      // user buffers
    host_mapping mapped_; // after memory_: unmapped first
    std::vector<driver_buffer> buffers_;
};

} // namespace gaudi
