// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>
#include <gaudi/device_heap.hpp>

#include "src/hl/hl_device.hpp"
#include "src/memory/range_allocator.hpp"

#include <list>
#include <mutex>

namespace gaudi {

// A heap's state. Shared by the heap and by every buffer from it: a buffer may outlive the heap object.
class heap_core {
public:
    using block = range_allocator::block;

    heap_core(std::shared_ptr<hl_device> device, address_map& map);
    ~heap_core();
    heap_core(const heap_core&) = delete;
    heap_core& operator=(const heap_core&) = delete;

    struct allocated {
        block* where;
        device_address address;
        std::uint64_t generation;
    };
    result<allocated> allocate(std::uint64_t size, std::uint64_t alignment);
    // A buffer's own memory; nothing happens if the generation there is another by now.
    void free(block* returned, device_address address, std::uint64_t generation);
    void give_up(block* released);
    // Memory that was given up.
    result<void> free(device_address address);
    result<dmabuf_export> dmabuf(const block* of, device_address address, std::uint64_t length);
    void trim();
    [[nodiscard]] heap_statistics statistics();
    [[nodiscard]] hl_device& device() { return *device_; }

private:
    // Order of members is order of tear-down: first the DMA-BUF goes, then mapping and allocation.
    struct chunk {
        device_memory memory;
        unique_fd dmabuf;
        range_allocator ranges;

        explicit chunk(device_memory taken) : memory(std::move(taken)), ranges(memory.size(), this) {}
    };

    result<chunk*> new_chunk(std::uint64_t at_least);
    bool give_back(std::list<chunk>::iterator position);
    void free_locked(block* returned);
    bool trim_locked();

    std::shared_ptr<hl_device> device_;
    address_map& map_;
    std::mutex mutex_;
    std::list<chunk> chunks_;
    std::uint64_t buffers_ = 0;
};

} // namespace gaudi
