// SPDX-License-Identifier: BSD-3-Clause
// Buffers are parts of chunks, because Gaudi2 allocates in pages of 768 MB and has 127 of them (gotcha 3). A
// buffer is freed in this order: importers and UCX release it, the address map forgets it, peers' keys end;
// only then are its bytes allocated again.
#include "src/memory/heap_core.hpp"

#include "src/error/try.hpp"
#include "src/os/round_up.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <fmt/format.h>

namespace gaudi {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t max_alignment = 2ULL << 20;

} // namespace

// A NIC's cache identifies a chunk by this number: an address returns with the next chunk there.
std::uint64_t new_chunk_serial() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
}

heap_core::chunk::chunk(device_memory taken)
    : serial(new_chunk_serial()), memory(std::move(taken)), ranges(memory.size(), this) {}

heap_core::heap_core(std::shared_ptr<hl_device> device, editable_address_map& map)
    : device_(std::move(device)), map_(map) {}

heap_core::~heap_core() {
    if (!device_->valid_in_this_process())
        return;
    for (const auto& left : map_.allocations_of(device_->identity().index)) // released and never freed
        (void)map_.announce(left.base, left.length); // never reused: the heap ends here
    // Registrations end before the chunks' destructors unmap them: the driver refuses the other order (gotcha
    // 9).
    for (const auto& leaving : chunks_)
        announce(leaving);
    map_.remove_device(device_->identity().index);
}

void heap_core::observe(const std::shared_ptr<chunk_observer>& observer) {
    const std::lock_guard guard(mutex_);
    std::erase_if(observers_, [](const auto& entry) { return entry.expired(); });
    const bool registered = std::any_of(observers_.begin(), observers_.end(),
                                        [&](const auto& entry) { return entry.lock() == observer; });
    if (!registered)
        observers_.push_back(observer);
}

template <typename F>
void heap_core::for_each_observer(F&& call) const {
    for (const auto& entry : observers_)
        if (const auto observer = entry.lock())
            call(*observer);
}

void heap_core::announce(const chunk& leaving) {
    for_each_observer([&](chunk_observer& observer) { observer.chunk_goes(leaving.serial); });
}

result<heap_core::chunk*> heap_core::new_chunk(std::uint64_t at_least) {
    const auto wanted = std::max(at_least, chunk_ != 0 ? chunk_ : device_->traits().default_chunk);
    auto memory = device_->allocate(wanted);
    if (!memory && memory.error().kind() == error_kind::exhausted && trim_locked())
        memory = device_->allocate(wanted); // an empty chunk was returned to the driver: try again
    if (!memory && memory.error().kind() == error_kind::exhausted && wanted > at_least)
        memory = device_->allocate(at_least); // a nearly full device may still have a smaller piece
    if (!memory)
        return tl::unexpected(memory.error());
    // The driver may have ignored the hint (gotcha 26): then this chunk gets a window of its own.
    const auto begin = memory->address();
    const bool own_window = map_.device_of(begin) != device_->identity().index;
    if (own_window)
        GAUDI_CHECK(map_.add_window(begin, memory->size(), device_->identity().index));
    chunks_.emplace_front(std::move(*memory)).own_window = own_window;
    return &chunks_.front();
}

result<heap_core::allocated> heap_core::allocate(std::uint64_t size, std::uint64_t alignment,
                                                 bool whole_pages) {
    if (size == 0)
        return tl::unexpected(error(errc::size_zero, "buffer of 0 bytes"));
    if (!std::has_single_bit(alignment) || alignment > max_alignment)
        return tl::unexpected(
            error(errc::alignment_invalid, fmt::format("alignment of {} bytes", alignment)));
    if (size > device_->identity().hw.dram_size)
        return tl::unexpected(
            error(errc::size_beyond_memory,
                  fmt::format("buffer of {} bytes on {}, which has {}", size, device_->identity().bus_id,
                              device_->identity().hw.dram_size)));
    if (device_->lost())
        return tl::unexpected(device_->loss().describe("buffer allocation"));
    // Buffers of a page or more begin at a page: NICs and importers work on pages, and a key to a page opens
    // all of it (gotcha U3).
    alignment = std::max(
        {alignment, device_heap::granule, size >= page || whole_pages ? page : device_heap::granule});
    const auto taken = whole_pages ? round_up(size, page) : size;
    const std::lock_guard guard(mutex_);
    block* reserved = nullptr;
    for (auto& candidate : chunks_)
        if (reserved = candidate.ranges.allocate(taken, alignment); reserved != nullptr)
            break;
    if (reserved == nullptr) {
        GAUDI_TRY(auto fresh, new_chunk(round_up(taken, alignment)));
        reserved = fresh->ranges.allocate(taken, alignment);
    }
    auto* home = static_cast<chunk*>(reserved->owner);
    const auto address = home->memory.address() + reserved->offset;
    const auto generation = map_.insert(address, size, reinterpret_cast<std::uint64_t>(reserved));
    if (!generation) {
        home->ranges.free(reserved);
        return tl::unexpected(generation.error());
    }
    ++buffers_;
    return allocated{reserved, address, *generation};
}

void heap_core::free_locked(block* returned, bool reusable) {
    auto* home = static_cast<chunk*>(returned->owner);
    const auto address = home->memory.address() + returned->offset;
    const auto freed = map_.find(address);
    const auto length = freed ? freed->length : 0;
    if (!reusable) // the block stays allocated, and with it the chunk
        abandoned_ += length;
    // Before the observers: a registration that another thread makes meanwhile finds the buffer gone and
    // undoes itself.
    (void)map_.erase(address);
    --buffers_;
    for_each_observer([&](chunk_observer& observer) { observer.buffer_freed(address, length); });
    if (!reusable)
        return;
    home->ranges.free(returned);
    if (!home->ranges.empty())
        return;
    // One empty chunk is kept: a program that frees and allocates in turn must not call the driver each time.
    const auto empties = std::count_if(chunks_.begin(), chunks_.end(),
                                       [](const chunk& entry) { return entry.ranges.empty(); });
    if (empties > 1)
        release_chunk(std::find_if(chunks_.begin(), chunks_.end(),
                                   [home](const chunk& entry) { return &entry == home; }));
}

bool heap_core::release_chunk(std::list<chunk>::iterator position) {
    announce(*position);
    // The heap's own descriptor would keep the mapping alive, as any other does (gotcha 9).
    position->dmabuf.reset();
    // The driver refuses while a memory region of it exists elsewhere: then the chunk stays and is used
    // again.
    const auto base = position->memory.address();
    if (!position->memory.release())
        return false;
    if (position->own_window)
        map_.remove_window(base);
    chunks_.erase(position);
    return true;
}

void heap_core::free(block* returned, device_address address, std::uint64_t generation) {
    if (!device_->valid_in_this_process())
        return;
    const auto allocation = map_.find(address);
    if (!allocation || allocation->generation != generation)
        return;
    const bool reusable = map_.announce(address, allocation->length);
    const std::lock_guard guard(mutex_);
    // The lock was not held during the announcement: the buffer may have been freed by its address meanwhile.
    if (const auto still = map_.find(address); still && still->generation == generation)
        free_locked(returned, reusable);
}

void heap_core::release_buffer(block* buffer) {
    const std::lock_guard guard(mutex_);
    buffer->released = true;
}

error heap_core::wrong_device(device_address address, std::uint64_t length) const {
    return {errc::wrong_device, fmt::format("{} bytes at {:#x} are not memory of {}", length, address.value(),
                                            device_->identity().bus_id)};
}

result<heap_core::block*> heap_core::find_released(device_address address) {
    const auto allocation = map_.find(address);
    if (!allocation || allocation->base != address || allocation->device_index != device_->identity().index)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("no buffer of {} begins at {:#x}",
                                                   device_->identity().bus_id, address.value())));
    auto* where = reinterpret_cast<block*>(allocation->tag);
    if (!where->released)
        return tl::unexpected(
            error(errc::not_allocated,
                  fmt::format("the buffer at {:#x} belongs to a device_buffer, which frees it itself",
                              address.value())));
    return where;
}

result<void> heap_core::free(device_address address) {
    std::uint64_t length = 0;
    {
        const std::lock_guard guard(mutex_);
        GAUDI_CHECK(find_released(address));
        length = map_.find(address)->length;
    }
    // Without the lock: an observer may query memory.
    const bool reusable = map_.announce(address, length);
    const std::lock_guard guard(mutex_);
    GAUDI_TRY(const auto still, find_released(address)); // another thread may have freed it meanwhile
    free_locked(still, reusable);
    return {};
}

result<void> heap_core::export_chunk(chunk& which) {
    if (which.dmabuf)
        return {};
    // The whole chunk, once: drivers before Linux 6.7 ignore the offset of an export.
    GAUDI_TRY(const auto plan,
              plan_export({device_->identity().generation, memory_origin::own, which.memory.address(),
                           which.memory.size(), which.memory.address(), which.memory.size()}));
    GAUDI_TRY(which.dmabuf, device_->export_dmabuf(plan));
    return {};
}

result<dmabuf_export> heap_core::dmabuf(const block* of, device_address address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    auto* home = static_cast<chunk*>(of->owner);
    GAUDI_CHECK(export_chunk(*home));
    return dmabuf_export{home->dmabuf.get(), address - home->memory.address(), address, length};
}

result<dmabuf_export> heap_core::dmabuf(device_address address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    // UCX rounds what it exports to pages: the range may begin in a neighbour (gotcha U3).
    GAUDI_TRY(const auto allocation, map_.find_pages(address, length));
    if (allocation.device_index != device_->identity().index)
        return tl::unexpected(wrong_device(address, length));
    auto* home = static_cast<chunk*>(reinterpret_cast<block*>(allocation.tag)->owner);
    const auto offset = address - home->memory.address(); // chunks begin and end at a page
    GAUDI_CHECK(export_chunk(*home));
    return dmabuf_export{home->dmabuf.get(), offset, address, length};
}

result<dmabuf_export> heap_core::window(device_address address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    GAUDI_TRY(const auto allocation, map_.find(address, length));
    if (allocation.device_index != device_->identity().index)
        return tl::unexpected(wrong_device(address, length));
    const auto& home = static_cast<chunk*>(reinterpret_cast<block*>(allocation.tag)->owner)->memory;
    GAUDI_TRY(const auto plan, plan_export({device_->identity().generation, memory_origin::own,
                                            home.address(), home.size(), address, length}));
    // Not the chunk's export: who gets this descriptor must not reach other buffers of the chunk.
    GAUDI_TRY(auto fd, device_->export_dmabuf(plan));
    return dmabuf_export{fd.release(), plan.dmabuf_offset, address, length};
}

result<chunk_view> heap_core::view_of(chunk& which) {
    GAUDI_CHECK(export_chunk(which));
    return chunk_view{which.serial, {which.dmabuf.get(), 0, which.memory.address(), which.memory.size()}, 0};
}

result<chunk_view> heap_core::chunk_of(const block* of) {
    const std::lock_guard guard(mutex_);
    return view_of(*static_cast<chunk*>(of->owner));
}

result<chunk_view> heap_core::chunk_at(device_address address, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    GAUDI_TRY(const auto allocation, map_.find(address, length));
    if (allocation.device_index != device_->identity().index)
        return tl::unexpected(wrong_device(address, length));
    auto view = view_of(*static_cast<chunk*>(reinterpret_cast<block*>(allocation.tag)->owner));
    if (view)
        view->generation = allocation.generation;
    return view;
}

void heap_core::set_chunk(std::uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    chunk_ = bytes;
}

void heap_core::trim() {
    const std::lock_guard guard(mutex_);
    trim_locked();
}

bool heap_core::trim_locked() {
    bool released = false;
    for (auto position = chunks_.begin(); position != chunks_.end();) {
        const auto next = std::next(position);
        if (position->ranges.empty())
            released = release_chunk(position) || released;
        position = next;
    }
    return released;
}

heap_statistics heap_core::statistics() {
    const std::lock_guard guard(mutex_);
    heap_statistics sum;
    sum.buffers = buffers_;
    sum.abandoned = abandoned_;
    for (const auto& entry : chunks_) {
        ++sum.chunks;
        sum.chunk_bytes += entry.memory.size();
        sum.buffer_bytes += entry.ranges.used();
        sum.largest_free = std::max(sum.largest_free, entry.ranges.largest_free());
        if (entry.dmabuf)
            ++sum.exports;
    }
    return sum;
}

} // namespace gaudi
