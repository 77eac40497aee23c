// SPDX-License-Identifier: BSD-3-Clause
// One mutex guards the cache and is taken by the heap's thread as well, with the heap's lock held: the cache
// never calls the heap while it holds its own.
#include "src/rdma/registration_cache.hpp"
#include "src/os/internals.hpp"

#include "src/error/try.hpp"
#include "src/memory/editable_address_map.hpp"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>

namespace gaudi {

registration::registration(std::weak_ptr<registration_cache> cache, std::shared_ptr<nic_core> nic,
                           std::shared_ptr<registration_usage> usage, mr_handle region, std::uint64_t serial,
                           std::uint64_t bytes, std::optional<descriptor> own)
    : cache_(std::move(cache)), nic_(std::move(nic)), usage_(std::move(usage)), own_(std::move(own)),
      region_(std::move(region)), local_key_(region_->lkey), remote_key_(region_->rkey), serial_(serial),
      bytes_(bytes) {
    ++usage_->regions;
    usage_->bytes += bytes_;
}

registration::~registration() {
    if (region_)
        count_ended();
    if (!nic_->valid_in_this_process())
        (void)region_.release();
}

void registration::count_ended() const {
    --usage_->regions;
    usage_->bytes -= bytes_;
}

// Peers' keys end here although a remote_key still refers to the object: it is told apart by ended().
void registration::end() const {
    const std::lock_guard guard(mutex_);
    if (!region_ || !nic_->valid_in_this_process())
        return;
    region_.reset();
    count_ended();
}

bool registration::ended() const {
    const std::lock_guard guard(mutex_);
    return region_ == nullptr;
}

namespace {

constexpr std::uint64_t page = 4096;

bool is_allocated(std::uint64_t address, std::uint64_t generation) {
    // SynapseAI's memory and foreign DMA-BUFs: this library does not learn when they are freed.
    if (generation == 0)
        return true;
    const auto known = known_memory().find(device_address(address));
    return known && known->generation == generation;
}

} // namespace

bool remote_key::valid() const {
    return registration_ != nullptr && !registration_->ended() && is_allocated(region_.address, generation_);
}

bool local_region::allocated() const {
    return is_allocated(address_, generation_);
}

local_region registration_cache::region_of(std::shared_ptr<const registration> what, std::uint64_t address,
                                           std::uint64_t length, memory_path path, std::uint64_t generation) {
    local_region region;
    region.address_ = address;
    region.length_ = length;
    region.local_key_ = what->local_key();
    region.generation_ = generation;
    region.path_ = path;
    region.registration_ = std::move(what);
    return region;
}

bool registration_cache::evict_one() {
    auto oldest = chunks_.end();
    for (auto each = chunks_.begin(); each != chunks_.end(); ++each)
        if (each->second.what.use_count() == 1 &&
            (oldest == chunks_.end() || each->second.last_use < oldest->second.last_use))
            oldest = each;
    if (oldest == chunks_.end())
        return false;
    forget_last_chunk();
    chunks_.erase(oldest);
    ++counts_.evictions;
    return true;
}

void registration_cache::forget_expired() {
    std::erase_if(host_, [](const auto& entry) { return entry.second.expired(); });
    // The last reference is gone, but its deleter has not run yet: it counts until it is ended here.
    std::erase_if(exposed_, [](const auto& entry) {
        const bool expired = entry.second.held.expired();
        if (expired)
            entry.second.what->end(); // its drop() is waiting for the mutex
        return expired;
    });
}

result<void> registration_cache::make_room(std::uint64_t bytes) {
    forget_expired();
    for (;;) {
        const std::uint64_t held = usage_->bytes, regions = usage_->regions;
        if (held + bytes <= limits_.bytes && regions + 1 <= limits_.regions)
            return {};
        if (!evict_one())
            return tl::unexpected(
                error(errc::registrations_exhausted,
                      fmt::format("{} bytes more on {}: {} regions of {} and {} bytes of {} are in use",
                                  bytes, nic_->info().name, regions, limits_.regions, held, limits_.bytes)));
    }
}

template <typename Register>
result<std::unique_ptr<const registration>>
registration_cache::add(std::uint64_t bytes, Register&& register_it,
                        std::optional<registration::descriptor> own) {
    ++counts_.misses;
    auto made = make_room(bytes).and_then(register_it);
    while (!made && made.error().system_error() == ENOMEM && evict_one())
        made = register_it();
    if (!made)
        return tl::unexpected(made.error());
    return std::make_unique<const registration>(weak_from_this(), nic_, usage_, std::move(*made), ++serials_,
                                                bytes, std::move(own));
}

result<local_region> registration_cache::find_or_register(const device_buffer& buffer) {
    if (!nic_->valid_in_this_process())
        return tl::unexpected(nic_->forked_error());
    if (!buffer)
        return tl::unexpected(error(errc::not_allocated, "registration of an empty buffer"));
    auto& heap = *buffer.range_->core;
    if (heap.device().lost())
        return tl::unexpected(heap.device().loss().describe("registration of a buffer"));
    GAUDI_TRY(const auto chunk, heap.chunk_of(static_cast<const heap_core::block*>(buffer.range_->block)));
    return find_or_register_chunk(heap, chunk, buffer.address().value(), buffer.size(), buffer.generation());
}

result<local_region> registration_cache::find_or_register(heap_core& heap, device_address address,
                                                          std::uint64_t length) {
    if (!nic_->valid_in_this_process())
        return tl::unexpected(nic_->forked_error());
    if (heap.device().lost())
        return tl::unexpected(heap.device().loss().describe("registration of memory"));
    if (auto known = find_in_last_chunk(heap, address, length))
        return std::move(*known);
    GAUDI_TRY(const auto chunk, heap.chunk_at(address, length));
    return find_or_register_chunk(heap, chunk, address.value(), length, chunk.generation);
}

std::optional<local_region> registration_cache::find_in_last_chunk(heap_core& heap, device_address address,
                                                                   std::uint64_t length) {
    const auto allocation = known_memory().find(address);
    if (!allocation || length > allocation->length - (address - allocation->base) ||
        allocation->device_index != heap.device().identity().index)
        return std::nullopt; // the heap reports what is wrong
    const std::lock_guard guard(mutex_);
    if (last_.what == nullptr || address.value() - last_.base >= last_.length)
        return std::nullopt;
    return reuse(*last_.what, address.value(), length, allocation->generation);
}

local_region registration_cache::reuse(kept& found, std::uint64_t address, std::uint64_t length,
                                       std::uint64_t generation) {
    ++counts_.hits;
    found.last_use = ++uses_;
    return region_of(found.what, address, length, memory_path::zero_copy, generation);
}

result<local_region> registration_cache::find_or_register_chunk(heap_core& heap, const chunk_view& chunk,
                                                                std::uint64_t address, std::uint64_t length,
                                                                std::uint64_t generation) {
    {
        const std::lock_guard guard(mutex_);
        if (const auto found = chunks_.find(chunk.serial); found != chunks_.end()) {
            // A pointer into an unordered_map: it stays valid until the entry is erased, which
            // forget_last_chunk() precedes.
            last_ = {chunk.whole.iova.value(), chunk.whole.length, &found->second};
            return reuse(found->second, address, length, generation);
        }
    }
    heap.observe(shared_from_this()); // without our lock: the heap calls us with its own lock held
    const std::lock_guard guard(mutex_);
    auto found = chunks_.find(chunk.serial);
    if (found == chunks_.end()) {
        auto what =
            add(chunk.whole.length, [&] { return nic_->register_dmabuf(chunk.whole, rights_, domain_); });
        if (!what)
            return tl::unexpected(what.error());
        // The chunk's descriptor was read without the heap's lock: it was the right one if the buffer is
        // still allocated now.
        if (!is_allocated(address, generation))
            return tl::unexpected(
                error(errc::not_allocated, fmt::format("registration of {} bytes at {:#x}: the "
                                                       "buffer was freed meanwhile",
                                                       length, address)));
        found = chunks_.emplace(chunk.serial, kept{std::move(*what), 0, chunk.whole}).first;
    }
    found->second.last_use = ++uses_;
    return region_of(found->second.what, address, length, memory_path::zero_copy, generation);
}

result<local_region> registration_cache::find_or_register_pool(device& owner, device_address address,
                                                               std::uint64_t length) {
    if (!nic_->valid_in_this_process())
        return tl::unexpected(nic_->forked_error());
    const auto& context = core_of(owner);
    const auto pool = known_memory().window_at(address, length);
    if (!pool || pool->device_index != context->identity().index)
        return tl::unexpected(no_allocation(address, length, " of SynapseAI's pool"));
    const std::lock_guard guard(mutex_);
    if (context->lost()) {
        forget_lost_pools();
        return tl::unexpected(context->loss().describe("registration of SynapseAI's pool"));
    }
    // Kept when the registration is evicted: keys made before it must still end with the device.
    auto& kept_serial = pools_[context];
    if (kept_serial == 0)
        kept_serial = new_chunk_serial();
    const auto serial = kept_serial; // forget_lost_pools() may erase the entry
    auto found = chunks_.find(serial);
    if (found == chunks_.end()) { // a new one, or one that was evicted
        forget_lost_pools();
        GAUDI_TRY(const auto whole, owner.export_foreign(pool->base, pool->size));
        GAUDI_TRY(auto what, add(
                                 pool->size, [&] { return nic_->register_dmabuf(whole, rights_, domain_); },
                                 registration::descriptor{unique_fd(whole.fd), whole}));
        found = chunks_.emplace(serial, kept{std::move(what), 0, whole}).first;
    }
    found->second.last_use = ++uses_;
    return region_of(found->second.what, address.value(), length, memory_path::zero_copy);
}

result<local_region> registration_cache::find_or_register(const dmabuf_export& window) {
    if (!nic_->valid_in_this_process())
        return tl::unexpected(nic_->forked_error());
    if (window.length == 0)
        return tl::unexpected(error(errc::size_zero, "registration of 0 bytes of a DMA-BUF"));
    // The driver would return EINVAL without saying which of the two is wrong (gotcha 15).
    if ((window.offset - window.iova.value()) % page != 0)
        return tl::unexpected(
            error(errc::alignment_invalid,
                  fmt::format("offset {:#x} and iova {:#x} of a DMA-BUF differ within a page of {}",
                              window.offset, window.iova.value(), page)));
    // The NIC needs no descriptor once it is registered, but keys for peers are registered from it later.
    unique_fd own(::fcntl(window.fd, F_DUPFD_CLOEXEC, 0));
    if (!own)
        return tl::unexpected(error(errno == EBADF ? errc::registration_refused : errc::descriptors_exhausted,
                                    fmt::format("dup of descriptor {}", window.fd), errno));
    auto whole = window;
    whole.fd = own.get();
    const std::lock_guard guard(mutex_);
    GAUDI_TRY(std::shared_ptr<const registration> what,
              add(
                  window.length, [&] { return nic_->register_dmabuf(whole, rights_, domain_); },
                  registration::descriptor{std::move(own), whole}));
    return region_of(std::move(what), window.iova.value(), window.length, memory_path::zero_copy);
}

result<local_region> registration_cache::find_or_register(std::span<std::byte> memory) {
    if (!nic_->valid_in_this_process())
        return tl::unexpected(nic_->forked_error());
    if (memory.empty())
        return tl::unexpected(error(errc::size_zero, "registration of 0 bytes of host memory"));
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    // Only while a region of it lives: nothing tells the library that host memory was unmapped, and an
    // address may be mapped anew.
    const host_range range{memory.data(), memory.size()};
    const std::lock_guard guard(mutex_);
    if (const auto found = host_.find(range); found != host_.end())
        if (auto alive = found->second.lock()) {
            ++counts_.hits;
            return region_of(std::move(alive), address, memory.size(), memory_path::host);
        }
    GAUDI_TRY(const std::shared_ptr<const registration> what,
              add(memory.size(), [&] { return nic_->register_host(memory, rights_, domain_); }));
    host_[range] = what;
    return region_of(what, address, memory.size(), memory_path::host);
}

std::optional<registration_cache::chunk_window>
registration_cache::window_of(const local_region& region) const {
    const auto within = [&](const dmabuf_export& whole, std::uint64_t chunk) {
        const auto offset = region.address() - whole.iova.value();
        return chunk_window{
            {whole.fd, whole.offset + offset, device_address(region.address()), region.length()}, chunk};
    };
    for (const auto& [serial, entry] : chunks_)
        if (entry.what == internals::registration(region))
            return within(entry.whole, serial);
    if (const auto& shared = internals::registration(region); shared && shared->own())
        return within(shared->own()->whole, 0);
    return std::nullopt;
}

result<remote_key> registration_cache::expose(const local_region& region, remote_access rights,
                                              std::uint64_t holder) {
    if (!nic_->valid_in_this_process())
        return tl::unexpected(nic_->forked_error());
    if (rights == remote_access::none || !allows(remote_access::all, rights))
        return tl::unexpected(error(errc::rights_invalid,
                                    fmt::format("a key to {} bytes at {:#x} with rights {}", region.length(),
                                                region.address(), static_cast<unsigned>(rights))));
    if (allows(rights, remote_access::atomic) && !nic_->atomics())
        return tl::unexpected(error(errc::atomics_absent, fmt::format("a key on {}", nic_->info().name)));
    const auto freed = [&] {
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("a key to {} bytes at {:#x}: the buffer was freed",
                                                   region.length(), region.address())));
    };
    const auto& local = internals::registration(region);
    // With the serial: the same address may by now be another registration's.
    const exposed_range range{
        region.address(), region.length(), region.generation_, local ? local->serial() : 0, holder, rights};
    remote_key key; // before the guard: its destructor locks the mutex
    key.generation_ = region.generation_;
    key.region_ = {region.address(), region.length(), 0, region.path(), rights};
    const std::lock_guard guard(mutex_);
    if (const auto found = exposed_.find(range); found != exposed_.end()) {
        key.registration_ = found->second.held.lock();
        if (!key.registration_)
            found->second.what->end(); // its drop() is waiting for the mutex
    }
    if (key.registration_) {
        ++counts_.hits;
    } else {
        const auto window = window_of(region);
        if (region.path() == memory_path::zero_copy && !window)
            return freed();
        // A second registration of the same memory, with the rights that were asked for: NICs allow them to
        // overlap.
        GAUDI_TRY(auto made, add(region.length(), [&] {
                      return window ? nic_->register_dmabuf(window->range, rights)
                                    : nic_->register_host(
                                          {reinterpret_cast<std::byte*>(region.address()), // NOLINT
                                           region.length()},
                                          rights);
                  }));
        key.registration_ = {made.release(), [cache = weak_from_this(), range](const registration* last) {
                                 if (const auto home = cache.lock())
                                     home->drop(range, last);
                                 delete last;
                             }};
        exposed_[range] = {key.registration_.get(), key.registration_, window ? window->chunk : 0};
    }
    // The heap removes a buffer from the address map before it calls buffer_freed(), which waits for this
    // mutex: where a buffer is freed concurrently, either this check sees it or buffer_freed() ends the key.
    if (!region.allocated()) {
        key.registration_->end();
        return freed();
    }
    key.region_.key = key.registration_->remote_key();
    return key;
}

void registration_cache::drop(const exposed_range& range, const registration* last) {
    const std::lock_guard guard(mutex_);
    last->end();
    if (const auto found = exposed_.find(range); found != exposed_.end() && found->second.what == last)
        exposed_.erase(found);
}

void registration_cache::chunk_goes(std::uint64_t serial) {
    const std::lock_guard guard(mutex_);
    forget_chunk(serial);
}

void registration_cache::forget_chunk(std::uint64_t serial) {
    forget_last_chunk();
    chunks_.erase(serial);
    // Keys to memory whose chunk is released although the buffer was never freed.
    for (const auto& [range, entry] : exposed_)
        if (entry.chunk == serial)
            entry.what->end();
}

void registration_cache::forget_lost_pools() {
    std::erase_if(pools_, [&](const auto& entry) {
        const auto context = entry.first.lock();
        const bool gone = context == nullptr || context->lost();
        if (gone)
            forget_chunk(entry.second);
        return gone;
    });
}

void registration_cache::buffer_freed(device_address base, std::uint64_t length) {
    const std::lock_guard guard(mutex_);
    // Local registrations stay: they are of the whole chunk, and no peer can use them.
    for (auto each = exposed_.lower_bound({base.value()});
         each != exposed_.end() && each->first.address - base.value() < length; ++each)
        if (each->first.generation != 0)
            each->second.what->end();
}

void registration_cache::trim() {
    if (!nic_->valid_in_this_process())
        return;
    const std::lock_guard guard(mutex_);
    forget_lost_pools();
    while (evict_one()) {
    }
}

registration_statistics registration_cache::statistics() {
    const std::lock_guard guard(mutex_);
    forget_expired();
    auto counts = counts_;
    counts.regions = usage_->regions;
    counts.bytes = usage_->bytes;
    return counts;
}

} // namespace gaudi
