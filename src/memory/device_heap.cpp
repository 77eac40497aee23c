// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device_heap.hpp>

#include "src/memory/heap_core.hpp"

#include <utility>

namespace gaudi {

device_buffer::device_buffer(device_buffer&& other) noexcept
    : core_(std::move(other.core_)), block_(other.block_), address_(other.address_), size_(other.size_),
      generation_(other.generation_) {}

device_buffer& device_buffer::operator=(device_buffer&& other) noexcept {
    std::swap(core_, other.core_);
    std::swap(block_, other.block_);
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    std::swap(generation_, other.generation_);
    return *this;
}

device_buffer::~device_buffer() {
    if (core_)
        core_->free(static_cast<heap_core::block*>(block_), address_, generation_);
}

result<dmabuf_export> device_buffer::dmabuf() const {
    if (!core_)
        return tl::unexpected(error(errc::not_allocated, "DMA-BUF of an empty buffer"));
    return core_->dmabuf(static_cast<heap_core::block*>(block_), address_, size_);
}

device_address device_buffer::release() {
    if (core_)
        core_->give_up(static_cast<heap_core::block*>(block_));
    core_.reset();
    return address_;
}

result<device_buffer> device_heap::allocate(std::uint64_t size, std::uint64_t alignment) {
    return allocate(size, alignment, false);
}

result<device_buffer> device_heap::allocate_pages(std::uint64_t size) {
    return allocate(size, granule, true);
}

result<device_buffer> device_heap::allocate(std::uint64_t size, std::uint64_t alignment, bool whole_pages) {
    const auto made = core_->allocate(size, alignment, whole_pages);
    if (!made)
        return tl::unexpected(made.error());
    device_buffer buffer;
    buffer.core_ = core_;
    buffer.block_ = made->where;
    buffer.address_ = made->address;
    buffer.size_ = size;
    buffer.generation_ = made->generation;
    return buffer;
}

result<void> device_heap::free(device_address address) {
    return core_->free(address);
}

result<dmabuf_export> device_heap::dmabuf(device_address address, std::uint64_t length) {
    return core_->dmabuf(address, length);
}

void device_heap::set_chunk(std::uint64_t bytes) {
    core_->set_chunk(bytes);
}

void device_heap::trim() {
    core_->trim();
}

heap_statistics device_heap::statistics() const {
    return core_->statistics();
}

} // namespace gaudi
