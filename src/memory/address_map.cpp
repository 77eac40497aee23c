// SPDX-License-Identifier: BSD-3-Clause
// Which memory is where: read without a lock before every copy, by UCX for every buffer. Readers may see a
// record while it is reused, and find out by its generation; windows, nodes and records are never freed while
// the map lives, so that no reader touches freed memory.
#include "src/memory/editable_address_map.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <fmt/format.h>
#include <mutex>
#include <vector>

namespace gaudi {
namespace {

// A window is a tree of slots. A slot is empty, covered by one allocation, or divided into 64 smaller ones:
// 16 MiB, 256 KiB, 4 KiB, 64 bytes. Depth depends on how an allocation lies, never on how many there are.
constexpr unsigned fan_bits = 6, fan = 1U << fan_bits, levels = 4;
constexpr unsigned unit_bits = 6; // 64 bytes
constexpr unsigned top_shift = unit_bits + fan_bits * (levels - 1);
constexpr std::uint64_t one = 1, unit = one << unit_bits;

struct record {
    std::atomic<std::uint64_t> generation{
        0}; // 0: freed. Records are reused but never deleted while the map lives
    std::atomic<std::uint64_t> base{0}, length{0}, tag{0};
    std::atomic<unsigned> device{0};
    record* next_spare = nullptr;
};

struct node;

// A tagged pointer: 0 empty, ...01 a record, ...10 a node.
using slot = std::atomic<std::uintptr_t>;
enum : std::uintptr_t { is_record = 1, is_node = 2, tag_mask = 3 };

struct alignas(64) node {
    std::array<slot, fan> slots{};
};

struct window {
    std::uint64_t base = 0, size = 0;
    unsigned device = 0;
    std::vector<slot> top;

    window(std::uint64_t begin, std::uint64_t length, unsigned owner)
        : base(begin), size(length), device(owner), top(((length - 1) >> top_shift) + 1) {}
};

constexpr std::size_t max_windows = 128;

// An allocation has the length that was requested but occupies whole units.
std::uint64_t covered_end(std::uint64_t offset, std::uint64_t length) {
    return (offset + length + unit - 1) / unit * unit;
}

} // namespace

struct address_map::impl {
    // Lookups take no lock, so windows are never deleted while the map lives: a removed one stays in
    // all_windows, and its entry here becomes null.
    std::array<std::atomic<window*>, max_windows> windows{};
    std::atomic<std::size_t> window_count{0};
    std::atomic<std::size_t> live{0};

    std::mutex mutex; // writers
    std::deque<window> all_windows;
    std::deque<node> nodes;
    std::deque<record> records;
    record* spare = nullptr;
    std::atomic<std::uint64_t> next_generation = 1; // changed with the mutex held

    mutable std::mutex observers_mutex;
    std::vector<std::weak_ptr<memory_observer>> observers;
    std::atomic<bool> observed{false}; // a free must cost nothing where there is no observer

    // The live observers, so that they can be called without holding the lock.
    std::vector<std::shared_ptr<memory_observer>> listeners() const {
        std::vector<std::shared_ptr<memory_observer>> alive;
        if (!observed.load(std::memory_order_acquire))
            return alive;
        const std::lock_guard guard(observers_mutex);
        for (const auto& observer : observers)
            if (auto listener = observer.lock())
                alive.push_back(std::move(listener));
        return alive;
    }

    template <typename F>
    void close_windows(F&& which) {
        const auto count = window_count.load(std::memory_order_relaxed);
        for (std::size_t i = 0; i < count; ++i)
            if (const auto* shown = windows[i].load(std::memory_order_relaxed);
                shown != nullptr && which(*shown)) {
                windows[i].store(nullptr, std::memory_order_release);
                for (const auto& listener : listeners())
                    listener->window_closes({device_address(shown->base), shown->size, shown->device});
            }
    }

    const window* window_of(std::uint64_t address) const noexcept {
        // A process has few windows, one for each device: a search is faster than a tree.
        const auto count = window_count.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < count; ++i) {
            const window* candidate = windows[i].load(std::memory_order_acquire);
            if (candidate != nullptr && address - candidate->base < candidate->size)
                return candidate;
        }
        return nullptr;
    }

    static record* lookup(const window& where, std::uint64_t offset) noexcept {
        auto entry = where.top[offset >> top_shift].load(std::memory_order_acquire);
        for (unsigned shift = top_shift - fan_bits; (entry & tag_mask) == is_node; shift -= fan_bits)
            entry = reinterpret_cast<node*>(entry & ~tag_mask)
                        ->slots[offset >> shift & (fan - 1)]
                        .load(std::memory_order_acquire);
        return (entry & tag_mask) == is_record ? reinterpret_cast<record*>(entry & ~tag_mask) : nullptr;
    }

    // Sets every slot of [begin, end) to `value`, dividing slots that are covered only in part.
    void cover(slot* table, std::uint64_t table_base, unsigned shift, std::uint64_t begin, std::uint64_t end,
               std::uintptr_t value) {
        for (auto index = (begin - table_base) >> shift; begin < end; ++index) {
            const auto slot_begin = table_base + (index << shift), slot_end = slot_begin + (one << shift);
            const auto piece_end = std::min(end, slot_end);
            auto& target = table[index];
            const auto present = target.load(std::memory_order_relaxed);
            if (begin == slot_begin && piece_end == slot_end && (present & tag_mask) != is_node)
                target.store(value, std::memory_order_release);
            else {
                auto* child = reinterpret_cast<node*>(present & ~tag_mask);
                // Never divided back: the node is used again by the next allocation that needs it, and
                // readers may be in it.
                if ((present & tag_mask) != is_node) {
                    child = &nodes.emplace_back();
                    target.store(reinterpret_cast<std::uintptr_t>(child) | is_node,
                                 std::memory_order_release);
                }
                cover(child->slots.data(), slot_begin, shift - fan_bits, begin, piece_end, value);
            }
            begin = piece_end;
        }
    }

    static bool touches(const slot* table, std::uint64_t table_base, unsigned shift, std::uint64_t begin,
                        std::uint64_t end) {
        for (auto index = (begin - table_base) >> shift; begin < end; ++index) {
            const auto slot_begin = table_base + (index << shift);
            const auto piece_end = std::min(end, slot_begin + (one << shift));
            const auto present = table[index].load(std::memory_order_relaxed);
            if ((present & tag_mask) == is_record)
                return true;
            if ((present & tag_mask) == is_node &&
                touches(reinterpret_cast<node*>(present & ~tag_mask)->slots.data(), slot_begin,
                        shift - fan_bits, begin, piece_end))
                return true;
            begin = piece_end;
        }
        return false;
    }

    void retire(record& gone) {
        // After the slots were cleared: a reader that still has the record sees 0 and looks again.
        gone.generation.store(0, std::memory_order_release);
        gone.next_spare = spare;
        spare = &gone;
        live.fetch_sub(1, std::memory_order_relaxed);
    }
};

address_map::address_map() : impl_(std::make_unique<impl>()) {}
address_map::~address_map() = default;

result<void> editable_address_map::add_window(device_address base, std::uint64_t size,
                                              unsigned device_index) {
    const std::lock_guard guard(impl_->mutex);
    const auto begin = base.value();
    const auto count = impl_->window_count.load(std::memory_order_relaxed);
    std::size_t place = count;
    for (std::size_t i = 0; i < count; ++i) {
        const auto* other = impl_->windows[i].load(std::memory_order_relaxed);
        if (other == nullptr)
            place = i;
        else if (begin < other->base + other->size && other->base < begin + size)
            return tl::unexpected(error(
                errc::address_collision,
                fmt::format("window of {} bytes at {:#x} of device {} overlaps one of device {} at {:#x}",
                            size, begin, device_index, other->device, other->base)));
    }
    if (place == max_windows)
        return tl::unexpected(error(errc::address_collision,
                                    fmt::format("more than {} windows of device memory", max_windows)));
    // The window of an earlier opening of the same device is reused: its nodes exist already and are empty.
    window* reused = nullptr;
    for (auto& candidate : impl_->all_windows) {
        bool shown = false;
        for (std::size_t i = 0; i < count; ++i)
            shown = shown || impl_->windows[i].load(std::memory_order_relaxed) == &candidate;
        if (!shown && candidate.base == begin && candidate.size == size && candidate.device == device_index)
            reused = &candidate;
    }
    auto* added = reused != nullptr ? reused : &impl_->all_windows.emplace_back(begin, size, device_index);
    // Before the count, so that a reader that sees the new count sees the window.
    impl_->windows[place].store(added, std::memory_order_release);
    if (place == count)
        impl_->window_count.store(count + 1, std::memory_order_release);
    for (const auto& listener : impl_->listeners())
        listener->window_opens({base, size, device_index});
    return {};
}

void editable_address_map::remove_device(unsigned device_index) {
    const std::lock_guard guard(impl_->mutex);
    for (auto& entry : impl_->records)
        if (entry.generation.load(std::memory_order_relaxed) != 0 &&
            entry.device.load(std::memory_order_relaxed) == device_index) {
            const auto base = entry.base.load(std::memory_order_relaxed);
            const auto* where = impl_->window_of(base);
            if (where != nullptr)
                impl_->cover(const_cast<slot*>(where->top.data()), 0, top_shift, base - where->base,
                             covered_end(base - where->base, entry.length.load(std::memory_order_relaxed)),
                             0);
            impl_->retire(entry);
        }
    impl_->close_windows([&](const window& shown) { return shown.device == device_index; });
}

void editable_address_map::remove_window(device_address base) {
    const std::lock_guard guard(impl_->mutex);
    impl_->close_windows([&](const window& shown) { return shown.base == base.value(); });
}

result<std::uint64_t> editable_address_map::insert(device_address base, std::uint64_t length,
                                                   std::uint64_t tag) {
    const auto begin = base.value();
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, fmt::format("allocation of 0 bytes at {:#x}", begin)));
    if (begin % unit != 0)
        return tl::unexpected(
            error(errc::alignment_invalid, fmt::format("allocation of {} bytes at {:#x}", length, begin)));
    const std::lock_guard guard(impl_->mutex);
    const auto* where = impl_->window_of(begin);
    if (where == nullptr || length > where->base + where->size - begin)
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("{} bytes at {:#x} lie in no device's window", length, begin)));
    const auto offset = begin - where->base;
    const auto end = covered_end(offset, length);
    if (impl::touches(where->top.data(), 0, top_shift, offset, end))
        return tl::unexpected(error(
            errc::ranges_overlap, fmt::format("{} bytes at {:#x} overlap a live allocation", length, begin)));
    record* entry = impl_->spare;
    if (entry != nullptr)
        impl_->spare = entry->next_spare;
    else
        entry = &impl_->records.emplace_back();
    const auto generation = impl_->next_generation++;
    // A reader may still hold this record as that of freed memory: the generation is 0 until all fields are
    // new.
    entry->base.store(begin, std::memory_order_release);
    entry->length.store(length, std::memory_order_release);
    entry->tag.store(tag, std::memory_order_release);
    entry->device.store(where->device, std::memory_order_release);
    entry->generation.store(generation, std::memory_order_release);
    // Last: only now can a reader find the record by its address.
    impl_->cover(const_cast<slot*>(where->top.data()), 0, top_shift, offset, end,
                 reinterpret_cast<std::uintptr_t>(entry) | is_record);
    impl_->live.fetch_add(1, std::memory_order_relaxed);
    return generation;
}

result<void> editable_address_map::erase(device_address base) {
    const std::lock_guard guard(impl_->mutex);
    const auto begin = base.value();
    const auto* where = impl_->window_of(begin);
    auto* entry = where != nullptr ? impl::lookup(*where, begin - where->base) : nullptr;
    if (entry == nullptr || entry->base.load(std::memory_order_relaxed) != begin)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("no allocation begins at {:#x}", begin)));
    const auto offset = begin - where->base;
    impl_->cover(const_cast<slot*>(where->top.data()), 0, top_shift, offset,
                 covered_end(offset, entry->length.load(std::memory_order_relaxed)), 0);
    impl_->retire(*entry);
    return {};
}

std::optional<unsigned> address_map::device_of(device_address address) const noexcept {
    const auto* where = impl_->window_of(address.value());
    if (where == nullptr)
        return std::nullopt;
    return where->device;
}

std::optional<allocation_view> address_map::find(device_address address) const noexcept {
    const auto wanted = address.value();
    const auto* where = impl_->window_of(wanted);
    if (where == nullptr)
        return std::nullopt;
    for (;;) {
        const auto* entry = impl::lookup(*where, wanted - where->base);
        if (entry == nullptr)
            return std::nullopt;
        // Acquire for each field: a reader that sees a field of a later allocation also sees that the
        // generation changed.
        const auto before = entry->generation.load(std::memory_order_acquire);
        const allocation_view seen{device_address(entry->base.load(std::memory_order_acquire)),
                                   entry->length.load(std::memory_order_acquire), before,
                                   entry->device.load(std::memory_order_acquire),
                                   entry->tag.load(std::memory_order_acquire)};
        if (before == 0 || entry->generation.load(std::memory_order_acquire) != before)
            continue; // freed, or freed and reused, during the lookup
        if (wanted - seen.base.value() >= seen.length)
            return std::nullopt; // after the end, in the last unit
        return seen;
    }
}

error no_allocation(device_address address, std::uint64_t length, std::string_view what) {
    return {is_pytorch_handle(address) ? errc::pytorch_handle : errc::not_allocated,
            fmt::format("{} bytes at {:#x}{}", length, address.value(), what)};
}

result<allocation_view> address_map::find(device_address address, std::uint64_t length) const {
    auto allocation = find(address);
    if (!allocation)
        return tl::unexpected(no_allocation(address, length));
    if (length > allocation->length - (address - allocation->base))
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("{} bytes at {:#x}, in an allocation of {} bytes at {:#x}", length,
                              address.value(), allocation->length, allocation->base.value())));
    return *allocation;
}

std::uint64_t address_map::newest_generation() const noexcept {
    return impl_->next_generation - 1;
}

result<allocation_view> address_map::find_pages(device_address address, std::uint64_t length) const {
    constexpr std::uint64_t page = 4096;
    const auto begin = address.value(), end = begin + length;
    if (end < begin)
        return tl::unexpected(
            error(errc::range_leaves_allocation, fmt::format("{} bytes at {:#x}", length, begin)));
    const auto fits = [&](const allocation_view& candidate) {
        const auto first = candidate.base.value() / page * page;
        const auto last = (candidate.base.value() + candidate.length + page - 1) / page * page;
        return begin >= first && end <= last;
    };
    auto allocation = find(address);
    if (allocation && fits(*allocation))
        return *allocation;
    // UCX asks for whole pages: a page may begin with free memory or with a neighbour, and the allocation
    // that is meant begins later in it.
    std::optional<allocation_view> nearest = allocation;
    for (auto probe = begin / unit * unit; begin % page == 0 && probe < begin + page;) {
        const auto candidate = find(device_address(probe));
        if (candidate && fits(*candidate))
            return *candidate;
        if (candidate && !nearest)
            nearest = candidate;
        probe = candidate ? covered_end(candidate->base.value(), candidate->length) : probe + unit;
    }
    if (!nearest)
        return tl::unexpected(no_allocation(address, length));
    return tl::unexpected(error(errc::range_leaves_allocation,
                                fmt::format("{} bytes at {:#x}, outside an allocation of {} bytes at {:#x}",
                                            length, begin, nearest->length, nearest->base.value())));
}

std::vector<allocation_view> address_map::allocations_of(unsigned device_index) const {
    const std::lock_guard guard(impl_->mutex);
    std::vector<allocation_view> all;
    for (const auto& entry : impl_->records)
        if (const auto generation = entry.generation.load(std::memory_order_relaxed);
            generation != 0 && entry.device.load(std::memory_order_relaxed) == device_index)
            all.push_back({device_address(entry.base.load()), entry.length.load(), generation, device_index,
                           entry.tag.load()});
    return all;
}

std::optional<memory_window> address_map::window_at(device_address address) const noexcept {
    const auto* where = impl_->window_of(address.value());
    if (where == nullptr)
        return std::nullopt;
    return memory_window{device_address(where->base), where->size, where->device};
}

std::optional<memory_window> address_map::window_at(device_address address,
                                                    std::uint64_t length) const noexcept {
    const auto window = window_at(address);
    return window && length <= window->size - (address - window->base) ? window : std::nullopt;
}

void editable_address_map::observe(const std::shared_ptr<memory_observer>& observer) {
    const std::lock_guard guard(impl_->mutex); // no window is added or removed meanwhile
    {
        // A mutex of its own: listeners() is called by threads that free memory, with and without the map's
        // mutex.
        const std::lock_guard observers_guard(impl_->observers_mutex);
        std::erase_if(impl_->observers, [](const auto& each) { return each.expired(); });
        impl_->observers.push_back(observer);
        impl_->observed.store(true, std::memory_order_release);
    }
    const auto count = impl_->window_count.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < count; ++i)
        if (const auto* shown = impl_->windows[i].load(std::memory_order_relaxed); shown != nullptr)
            observer->window_opens({device_address(shown->base), shown->size, shown->device});
}

bool editable_address_map::announce(device_address base, std::uint64_t length) const {
    bool free = true;
    // Every listener is asked, also after one has objected: each must drop what it keeps.
    for (const auto& listener : impl_->listeners())
        free = listener->memory_goes(base, length) && free;
    return free;
}

std::size_t address_map::size() const noexcept {
    return impl_->live.load(std::memory_order_relaxed);
}

} // namespace gaudi
