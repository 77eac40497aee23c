// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/gaudi/device.hpp"

#include <span>
#include <tl/expected.hpp>

namespace lab::gaudi {

// Errors are errno values, as the driver returns them.
template <typename T>
using answer = tl::expected<T, int>;

// Allocation. Handles start at 1. Without a DRAM MMU there is only accounting: the handle is 0, and the
// caller frees a number of bytes.
answer<std::uint64_t> allocate(virtual_device& device, std::uint64_t size, std::uint64_t page_size,
                               bool contiguous);
answer<void> release(virtual_device& device, std::uint64_t handle);

// Mapping.
answer<std::uint64_t> map_device(virtual_device& device, std::uint64_t handle, std::uint64_t hint,
                                 std::uint32_t flags);
answer<std::uint64_t> map_host(virtual_device& device, void* host, std::uint64_t size, std::uint64_t hint,
                               std::uint32_t flags);
answer<void> unmap(virtual_device& device, std::uint64_t address);

// DMA-BUF. The returned descriptor is new and belongs to the caller.
answer<int> export_mapped(virtual_device& device, std::uint64_t address, std::uint64_t size,
                          std::uint64_t offset);
answer<int> export_physical(virtual_device& device, std::uint64_t address, std::uint64_t size);
answer<std::uint64_t> import_dmabuf(virtual_device& device, int fd, std::uint64_t length);

// Command buffers. The handle is the offset for mmap on the device descriptor.
answer<std::uint64_t> create_buffer(virtual_device& device, std::uint64_t size, bool mapped);
answer<void> destroy_buffer(virtual_device& device, std::uint64_t handle);
// The live buffer of a handle, or nullptr. The caller holds the context lock.
[[nodiscard]] command_buffer* find_buffer(context& state, std::uint64_t handle);

// One contiguous piece of memory at a device address. `bytes` is nullptr for memory of another process, which
// is accessed through that process.
struct piece {
    unsigned char* bytes = nullptr;
    std::uint64_t length = 0;
    std::int32_t process = 0;
    std::uint64_t remote_address = 0;
};

// The piece at `address`, at most `length` bytes. errno EFAULT: no such memory, ENOSPC: no storage for it.
answer<piece> translate(virtual_device& device, std::uint64_t address, std::uint64_t length);

// Copies between device addresses and a local buffer through translate(); false with errno set.
bool read_memory(virtual_device& device, std::uint64_t address, std::span<unsigned char> out);
bool write_memory(virtual_device& device, std::uint64_t address, std::span<const unsigned char> data);
bool read_piece(const piece& from, unsigned char* out, std::uint64_t length);
bool write_piece(const piece& to, const unsigned char* data, std::uint64_t length);

// The caller holds the context lock.
[[nodiscard]] mapping* find_mapping(context& state, std::uint64_t address);
// A free range of `size` bytes in `range`: the smallest gap that fits, aligned; 0 if none.
[[nodiscard]] std::uint64_t find_room(const context& state, const address_range& range, std::uint64_t size,
                                      std::uint64_t alignment, const address_range& avoid = {});
[[nodiscard]] bool is_free(const context& state, std::uint64_t begin, std::uint64_t size);
bool insert_mapping(context& state, const mapping& added);
void erase_mapping(context& state, mapping* gone);

} // namespace lab::gaudi
