// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hl_device.hpp"
#include "src/os/mapping.hpp"

#include <cstdint>
#include <vector>

namespace gaudi {

// Memory for command buffers: one slot for each submission that may be in flight. Gaudi2 and later take
// command buffers only from host memory that is mapped for the device, gen1 only from buffers that the driver
// allocated.
class command_ring {
public:
    static result<command_ring> make(const std::shared_ptr<hl_device>& device, unsigned slots,
                                     std::uint32_t slot_bytes);

    [[nodiscard]] std::byte* bytes(unsigned slot) const;
    // The chunk of a submission: `size` bytes from `offset` in the slot.
    [[nodiscard]] hl_cs_chunk chunk(unsigned slot, std::uint32_t offset, std::uint32_t size,
                                    std::uint32_t queue) const;

private:
    explicit command_ring(std::uint32_t slot_bytes) : slot_bytes_(slot_bytes) {}

    struct driver_buffer {
        std::shared_ptr<hl_device> device;
        std::uint64_t handle = 0;
        explicit operator bool() const { return device != nullptr; }
        void close() noexcept;
    };
    struct mapped_buffer {
        unique_handle<driver_buffer> buffer;
        mapping view; // after buffer: unmapped first
    };

    std::uint32_t slot_bytes_;
    mapping memory_;      // user buffers
    host_mapping mapped_; // after memory_: unmapped first
    std::vector<mapped_buffer> buffers_;
};

} // namespace gaudi
