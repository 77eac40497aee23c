// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/dmabuf.hpp>
#include <gaudi/error.hpp>
#include <gaudi/statistics.hpp>
#include <gaudi/unique_handle.hpp>

#include <cstdint>
#include <memory>

namespace gaudi {

class device;
class heap_core;
class registration_cache;
struct internals;

/// A range of device memory with one owner; the destructor frees it. It keeps its device open. Copies from
/// and to it must have completed before it is destroyed.
class device_buffer {
public:
    device_buffer() = default;

    /// The address of the first byte.
    [[nodiscard]] device_address address() const { return range_->address; }
    /// The length in bytes, as it was asked for.
    [[nodiscard]] std::uint64_t size() const { return range_->size; }
    /// The generation of the allocation, see allocation_view.
    [[nodiscard]] std::uint64_t generation() const { return range_->generation; }
    /// False: default-constructed, moved from or released.
    explicit operator bool() const { return static_cast<bool>(range_); }

    /// Exports the buffer as a part of its chunk's DMA-BUF. The chunk owns the descriptor, see dmabuf_export.
    /// The first call for a chunk calls the driver, later ones make no system call.
    [[nodiscard]] result<dmabuf_export> dmabuf() const;
    /// Releases ownership: the caller frees the memory with device_heap::free(address).
    device_address release();

private:
    friend class device_heap;
    friend class registration_cache;
    struct range {
        std::shared_ptr<heap_core> core;
        void* block = nullptr;
        device_address address;
        std::uint64_t size = 0;
        std::uint64_t generation = 0;
        explicit operator bool() const { return core != nullptr; }
        void close() noexcept;
    };
    explicit device_buffer(range allocated) : range_(std::move(allocated)) {}

    unique_handle<range> range_;
};

/// Allocates buffers from large chunks, because the driver's own allocations are few and large (768 MB each
/// on Gaudi2). A buffer from a chunk with room costs no system call. Thread-safe.
class device_heap {
public:
    static constexpr std::uint64_t granule = 64; ///< bytes; the smallest alignment

    /// Allocates a buffer, which the caller owns. The alignment must be a power of two of at most 2 MiB; less
    /// than `granule` counts as `granule`. Buffers of a page or more are page-aligned. errc::size_zero,
    /// size_beyond_memory, alignment_invalid, memory_exhausted, device_lost.
    [[nodiscard]] result<device_buffer> allocate(std::uint64_t size, std::uint64_t alignment = granule);
    /// Allocates whole pages of 4 KiB that no other buffer shares, for memory that is registered by pages:
    /// UCX and other programs do that, and a key to a page opens all of it. Errors as allocate().
    [[nodiscard]] result<device_buffer> allocate_pages(std::uint64_t size);
    /// Frees memory that was released with device_buffer::release(). errc::not_allocated for anything else,
    /// also for a second call.
    result<void> free(device_address address);
    /// Exports any range within the pages of one live buffer, by its address. The chunk owns the descriptor,
    /// as for device_buffer::dmabuf().
    [[nodiscard]] result<dmabuf_export> dmabuf(device_address address, std::uint64_t length);
    /// Sets how much is allocated from the driver at a time from now on, unless a buffer needs more; rounded
    /// up to the driver's page. 0: the generation's default.
    void set_chunk(std::uint64_t bytes);
    /// Returns empty chunks to the driver.
    void trim();
    /// What the heap holds now.
    [[nodiscard]] heap_statistics statistics() const;

private:
    friend class device;
    friend struct internals;
    explicit device_heap(std::shared_ptr<heap_core> core) : core_(std::move(core)) {}
    [[nodiscard]] const std::shared_ptr<heap_core>& core() const { return core_; }
    result<device_buffer> allocate(std::uint64_t size, std::uint64_t alignment, bool whole_pages);

    std::shared_ptr<heap_core> core_;
};

} // namespace gaudi
