// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/memory/editable_address_map.hpp"
#include <gaudi/device_heap.hpp>

#include "src/hl/hl_device.hpp"
#include "src/memory/range_allocator.hpp"

#include <list>
#include <mutex>

namespace gaudi {

// A chunk as a NIC registers it: whole, once.
struct chunk_view {
    std::uint64_t serial = 0; // of new_chunk_serial()
    dmabuf_export whole;
    std::uint64_t generation = 0; // of the buffer that was looked up by its address
};

// Identifies a chunk, or a pool of SynapseAI's, to those who register it: never 0, never repeated in a
// process.
[[nodiscard]] std::uint64_t new_chunk_serial();

// Is notified by a heap whose memory it has registered. Called with the heap locked.
class chunk_observer {
public:
    virtual ~chunk_observer() = default;
    // The chunk returns to the driver: all registrations of it must end before this returns.
    virtual void chunk_goes(std::uint64_t serial) = 0;
    // A buffer was freed, and its address is no longer in the address map. Its bytes are allocated again
    // after this returns: keys of peers to it must have ended by then.
    virtual void buffer_freed(device_address base, std::uint64_t length) = 0;
};

// A heap's state. Shared by the heap and by every buffer from it: a buffer may outlive the heap object.
class heap_core {
public:
    using block = range_allocator::block;

    heap_core(std::shared_ptr<hl_device> device, editable_address_map& map);
    ~heap_core();
    heap_core(const heap_core&) = delete;
    heap_core& operator=(const heap_core&) = delete;

    struct allocated {
        block* where;
        device_address address;
        std::uint64_t generation;
    };
    // `whole_pages`: no other buffer shares its pages.
    result<allocated> allocate(std::uint64_t size, std::uint64_t alignment, bool whole_pages = false);
    // Frees a buffer; does nothing if the memory at the address has another generation by now.
    void free(block* returned, device_address address, std::uint64_t generation);
    // The owner releases the buffer: from now on free(address) may free it.
    void release_buffer(block* buffer);
    // Frees memory that its owner released. errc::not_allocated.
    result<void> free(device_address address);
    result<dmabuf_export> dmabuf(const block* of, device_address address, std::uint64_t length);
    // Any range within the pages of one buffer, by its address.
    result<dmabuf_export> dmabuf(device_address address, std::uint64_t length);
    // A DMA-BUF of only the pages around the range; the caller owns the descriptor.
    result<dmabuf_export> window(device_address address, std::uint64_t length);
    // The chunk that contains a buffer, exported.
    result<chunk_view> chunk_of(const block* of);
    // As above, by address: a range of one live buffer.
    result<chunk_view> chunk_at(device_address address, std::uint64_t length);
    void observe(const std::shared_ptr<chunk_observer>& observer);
    void set_chunk(std::uint64_t bytes);
    void trim();
    [[nodiscard]] heap_statistics statistics();
    [[nodiscard]] hl_device& device() { return *device_; }

private:
    // Members are destroyed in reverse order: the DMA-BUF before mapping and allocation, as the driver
    // demands.
    struct chunk {
        const std::uint64_t serial;
        device_memory memory;
        unique_fd dmabuf;
        range_allocator ranges;
        bool own_window = false; // it lies outside the window that was added when the device opened

        explicit chunk(device_memory taken);
    };

    result<chunk*> new_chunk(std::uint64_t at_least);
    result<void> export_chunk(chunk& which);
    result<chunk_view> view_of(chunk& which);
    template <typename F>
    void for_each_observer(F&& call) const;
    void announce(const chunk& leaving);
    bool release_chunk(std::list<chunk>::iterator position);
    void free_locked(block* returned, bool reusable);
    // The buffer that begins there and that its owner released; with the mutex held.
    result<block*> find_released(device_address address);
    [[nodiscard]] error wrong_device(device_address address, std::uint64_t length) const;
    bool trim_locked();

    std::shared_ptr<hl_device> device_;
    editable_address_map& map_;
    std::mutex mutex_;
    std::uint64_t chunk_ = 0; // 0: the default
    std::list<chunk> chunks_;
    std::vector<std::weak_ptr<chunk_observer>> observers_;
    std::uint64_t buffers_ = 0;
    std::uint64_t abandoned_ = 0;
};

} // namespace gaudi
