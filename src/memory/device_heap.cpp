// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device_heap.hpp>

#include "src/memory/heap_core.hpp"

#include "src/error/try.hpp"

#include <utility>

namespace gaudi {

void device_buffer::range::close() noexcept {
    // The generation makes this harmless where the memory was freed by its address, or is another buffer's by
    // now.
    core->free(static_cast<heap_core::block*>(block), address, generation);
}

result<dmabuf_export> device_buffer::dmabuf() const {
    if (!range_)
        return tl::unexpected(error(errc::not_allocated, "DMA-BUF of an empty buffer"));
    return range_->core->dmabuf(static_cast<heap_core::block*>(range_->block), range_->address, range_->size);
}

device_address device_buffer::release() {
    if (range_)
        range_->core->release_buffer(static_cast<heap_core::block*>(range_->block));
    return range_.release().address;
}

result<device_buffer> device_heap::allocate(std::uint64_t size, std::uint64_t alignment) {
    return allocate(size, alignment, false);
}

result<device_buffer> device_heap::allocate_pages(std::uint64_t size) {
    return allocate(size, granule, true);
}

result<device_buffer> device_heap::allocate(std::uint64_t size, std::uint64_t alignment, bool whole_pages) {
    GAUDI_TRY(const auto allocation, core_->allocate(size, alignment, whole_pages));
    return device_buffer(
        device_buffer::range{core_, allocation.where, allocation.address, size, allocation.generation});
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
