// SPDX-License-Identifier: BSD-3-Clause
// Both kinds of command buffers have one slot per submission, so that a slot is written again only after its
// submission has completed.
#include "src/copy/command_ring.hpp"

#include "src/error/try.hpp"

#include <fmt/format.h>

namespace gaudi {

result<command_ring> command_ring::make(const std::shared_ptr<hl_device>& device, unsigned slots,
                                        std::uint32_t slot_bytes) {
    command_ring ring(slot_bytes);
    if (device->traits().user_command_buffers) {
        GAUDI_TRY(ring.memory_, mapping::anonymous(std::size_t{slots} * slot_bytes));
        // One mapping for all slots: host mappings cost a driver call and page-table entries each. Private
        // memory that a child of fork does not inherit (gotcha 29).
        GAUDI_TRY(ring.mapped_, device->map_host(ring.memory_.bytes()));
        return ring;
    }
    const auto& api = device->api();
    // Gen1's driver parses and patches packets, and therefore insists on buffers of its own (gotcha 21).
    if (api.request_command_buffer == nullptr || api.destroy_command_buffer == nullptr)
        return tl::unexpected(
            error(errc::symbol_missing, fmt::format("{} has no hlthunk_request_command_buffer", api.path())));
    for (unsigned i = 0; i < slots; ++i) {
        std::uint64_t handle = 0;
        if (const int rc = api.request_command_buffer(device->fd(), slot_bytes, &handle); rc != 0)
            return tl::unexpected(
                device->failed(errc::memory_exhausted,
                               fmt::format("hlthunk_request_command_buffer of {} bytes", slot_bytes), -rc));
        ring.buffers_.push_back({unique_handle(driver_buffer{device, handle}), {}});
        // The handle is the offset in the descriptor. The driver accepts one mapping at a time, of the whole
        // length.
        GAUDI_TRY(ring.buffers_.back().view, mapping::of_file(device->fd(), handle, slot_bytes));
    }
    return ring;
}

void command_ring::driver_buffer::close() noexcept {
    // A child of fork inherits the descriptor: the call would destroy the parent's buffer.
    if (device->valid_in_this_process())
        device->api().destroy_command_buffer(device->fd(), handle);
}

std::byte* command_ring::bytes(unsigned slot) const {
    return buffers_.empty() ? memory_.bytes().data() + std::size_t{slot} * slot_bytes_
                            : buffers_[slot].view.bytes().data();
}

hl_cs_chunk command_ring::chunk(unsigned slot, std::uint32_t offset, std::uint32_t size,
                                std::uint32_t queue) const {
    hl_cs_chunk entry{};
    entry.queue_index = queue;
    entry.cb_size = size;
    if (buffers_.empty()) {
        entry.cb_handle = mapped_.address().value() + std::uint64_t{slot} * slot_bytes_ + offset;
        entry.cs_chunk_flags = HL_CS_CHUNK_FLAGS_USER_ALLOC_CB;
    } else
        entry.cb_handle = buffers_[slot].buffer->handle; // the driver accepts whole buffers only: offset is 0
    return entry;
}

} // namespace gaudi
