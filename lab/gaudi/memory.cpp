// SPDX-License-Identifier: BSD-3-Clause
// Allocation and mapping, by the driver's rules.
#include "lab/gaudi/memory.hpp"

#include "abi/hlthunk.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <thread>
#include <unistd.h>

namespace lab::gaudi {
namespace {

std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) {
    return (size + unit - 1) / unit * unit;
}

// Page size of an allocation: the caller's where the device supports a choice, else the default.
answer<std::uint64_t> choose_page(const personality& type, std::uint64_t wanted) {
    if (wanted == 0 || type.page_orders == 0)
        return type.dram_page;
    if (!std::has_single_bit(wanted) || (wanted & type.page_orders) == 0)
        return tl::unexpected(EINVAL);
    return wanted;
}

// Takes `count` runs of `run` adjacent pages each and chains them. Returns the first page or max_pages.
std::uint32_t take_pages(context& state, std::uint32_t total, std::uint32_t count, std::uint32_t run) {
    std::uint32_t first = context::max_pages, last = context::max_pages, found = 0;
    const auto fits = [&](std::uint32_t page) {
        return page + run <= total && std::all_of(state.page_taken + page, state.page_taken + page + run,
                                                  [](std::uint8_t taken) { return taken == 0; });
    };
    for (std::uint32_t page = 0; page < total && found < count;) {
        if (!fits(page)) {
            ++page;
            continue;
        }
        for (std::uint32_t i = 0; i < run; ++i, ++page) {
            state.page_taken[page] = 1;
            state.page_next[page] = context::max_pages;
            if (last == context::max_pages)
                first = page;
            else
                state.page_next[last] = page;
            last = page;
        }
        ++found;
    }
    if (found == count)
        return first;
    for (auto page = first; page != context::max_pages; page = state.page_next[page])
        state.page_taken[page] = 0;
    return context::max_pages;
}

allocation* find_allocation(context& state, std::uint64_t handle) {
    if (handle != 0)
        for (auto& entry : state.allocations)
            if (entry.handle == handle)
                return &entry;
    return nullptr;
}

// The end of the mapping that begins at the address.
std::uint64_t end_of(context& state, std::uint64_t address) {
    const context_lock lock(state);
    const auto* found = find_mapping(state, address);
    return found != nullptr ? found->page_end() : address;
}

struct listed_mapping {
    std::uint64_t begin, end;
    bool writable;
    struct stat file; // only device and inode are set
    std::string_view path;
};

// Calls `visit` for each mapping in /proc/self/maps until it returns false.
template <typename Visitor>
void each_mapping(Visitor&& visit) {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    char line[4352];
    while (maps != nullptr && std::fgets(line, sizeof(line), maps) != nullptr) {
        unsigned long low = 0, high = 0, inode = 0;
        unsigned major = 0, minor = 0;
        char access[8] = {};
        int path_at = 0;
        if (std::sscanf(line, "%lx-%lx %7s %*s %x:%x %lu %n", &low, &high, access, &major, &minor, &inode,
                        &path_at) != 6)
            continue;
        listed_mapping next{low, high, access[1] == 'w', {}, path_at > 0 ? line + path_at : ""};
        next.file.st_dev = makedev(major, minor);
        next.file.st_ino = inode;
        if (!visit(next))
            break;
    }
    if (maps != nullptr)
        std::fclose(maps);
}

// Whether every page is mapped, writable, and not device memory.
bool listed_as_pinnable(std::uint64_t begin, std::uint64_t end) {
    auto cursor = begin;
    each_mapping([&](const listed_mapping& next) {
        if (next.end <= cursor)
            return true;
        const auto& path = next.path;
        const bool device_memory = path.starts_with("/sys/") ||
                                   (path.starts_with("/dev/") && !path.starts_with("/dev/shm/") &&
                                    !path.starts_with("/dev/zero") && !path.starts_with("/dev/hugepages"));
        if (next.begin > cursor || !next.writable || device_memory)
            return false;
        cursor = next.end;
        return cursor < end;
    });
    return cursor >= end;
}

// To the kernel, a command buffer that the program has mapped is device memory; here it is file memory.
bool shows_command_buffer(virtual_device& device, std::uint64_t begin, std::uint64_t end) {
    {
        const context_lock lock(device.state());
        if (device.state().buffer_count == 0)
            return false;
    }
    bool shown = false;
    each_mapping([&](const listed_mapping& next) {
        shown = next.begin < end && next.end > begin && device.is_compute(next.file);
        return !shown && next.begin < end;
    });
    return shown;
}

// Whether long-term pinning with write access would succeed. Like pinning, it faults every page in.
bool can_pin(virtual_device& device, std::uint64_t begin, std::uint64_t end) {
    constexpr int populate_write = 23; // MADV_POPULATE_WRITE, since Linux 5.14
    if (shows_command_buffer(device, begin, end))
        return false;
    if (::madvise(reinterpret_cast<void*>(begin), end - begin, populate_write) == 0)
        return true;
    // EINVAL: a read-only mapping, device memory, or a kernel without the call; then /proc decides.
    return errno == EINVAL && !populate_write_is_known() && listed_as_pinnable(begin, end);
}

} // namespace

answer<std::uint64_t> allocate(virtual_device& device, std::uint64_t size, std::uint64_t page_size,
                               bool contiguous) {
    const auto& type = device.type;
    if (size == 0)
        return tl::unexpected(EINVAL);
    if (!type.dram_mmu) {
        const context_lock lock(device.state());
        auto& accounted = device.state().bytes_accounted;
        if (size > type.dram_size - accounted)
            return tl::unexpected(ENOMEM);
        accounted += size;
        return std::uint64_t{0};
    }
    const auto page = choose_page(type, page_size);
    if (!page)
        return tl::unexpected(page.error());
    if (size > type.hbm_size)
        return tl::unexpected(ENOMEM);
    const auto rounded = round_up(size, *page);
    const auto total = static_cast<std::uint32_t>(type.hbm_size / type.dram_page);
    const auto pages = static_cast<std::uint32_t>(rounded / type.dram_page);
    const auto run = contiguous ? pages : static_cast<std::uint32_t>(*page / type.dram_page);
    auto& state = device.state();
    const context_lock lock(state);
    if (pages > total - state.pages_used)
        return tl::unexpected(ENOMEM);
    auto* slot = std::find_if(state.allocations, state.allocations + context::max_pages,
                              [](const allocation& entry) { return entry.handle == 0; });
    const mutation guard(state);
    const auto first = take_pages(state, total, pages / run, run);
    if (first == context::max_pages)
        return tl::unexpected(ENOMEM);
    state.pages_used += pages;
    *slot = allocation{state.next_handle++, rounded, first, 0};
    ++state.allocation_count;
    return slot->handle;
}

answer<void> release(virtual_device& device, std::uint64_t handle) {
    auto& state = device.state();
    const context_lock lock(state);
    if (!device.type.dram_mmu) {
        state.bytes_accounted -= std::min(handle, state.bytes_accounted);
        return {};
    }
    auto* entry = find_allocation(state, handle);
    if (entry == nullptr || entry->mappings != 0)
        return tl::unexpected(EINVAL);
    const auto page_size = device.type.dram_page;
    const mutation guard(state);
    for (auto page = entry->first_page; page != context::max_pages; page = state.page_next[page]) {
        device.hbm().discard(page * page_size, page_size);
        state.page_taken[page] = 0;
        --state.pages_used;
    }
    *entry = {};
    --state.allocation_count;
    return {};
}

answer<std::uint64_t> map_device(virtual_device& device, std::uint64_t handle, std::uint64_t hint,
                                 std::uint32_t flags) {
    const auto& type = device.type;
    auto& state = device.state();
    const context_lock lock(state);
    auto* entry = find_allocation(state, handle);
    if (!type.dram_mmu || entry == nullptr)
        return tl::unexpected(EINVAL);
    constexpr std::uint64_t low_bits = (1ULL << 48) - 1;
    const bool usable = hint != 0 && (hint & low_bits) % type.dram_page == 0 &&
                        type.dram_va.contains(hint, entry->size) && is_free(state, hint, entry->size);
    if (!usable && hint != 0 && (flags & HL_MEM_FORCE_HINT) != 0)
        return tl::unexpected(EINVAL);
    const auto address =
        usable ? hint : find_room(state, type.dram_va, entry->size, type.dram_page, type.dram_hint_va);
    if (address == 0 || !insert_mapping(state, {address, entry->size, handle, 0, 0, 0, mapping_kind::device}))
        return tl::unexpected(ENOMEM);
    ++entry->mappings;
    return address;
}

answer<std::uint64_t> map_host(virtual_device& device, void* host, std::uint64_t size, std::uint64_t hint,
                               std::uint32_t flags) {
    const auto& type = device.type;
    const auto pointer = reinterpret_cast<std::uint64_t>(host);
    const auto in_page = pointer & (host_page - 1);
    if (size == 0 || pointer + size < pointer || pointer + size + host_page < pointer)
        return tl::unexpected(EINVAL);
    if ((flags & HL_MEM_FORCE_HINT) != 0 && in_page != 0)
        return tl::unexpected(EINVAL);
    if (!can_pin(device, pointer - in_page, round_up(pointer + size, host_page)))
        return tl::unexpected(EFAULT);
    const bool huge =
        type.host_huge_va.end != 0 && pointer % host_huge_page == 0 && size % host_huge_page == 0;
    const auto& range = huge ? type.host_huge_va : type.host_va;
    const auto span = round_up(in_page + size, host_page);
    auto& state = device.state();
    const context_lock lock(state);
    const bool usable =
        hint != 0 && hint % host_page == 0 && range.contains(hint, span) && is_free(state, hint, span);
    if (!usable && hint != 0 && (flags & HL_MEM_FORCE_HINT) != 0)
        return tl::unexpected(EINVAL);
    const auto avoid = huge ? address_range{} : type.host_hint_va;
    const auto base = usable ? hint : find_room(state, range, span, huge ? host_huge_page : host_page, avoid);
    const auto self = ::getpid();
    if (base == 0 || !insert_mapping(state, {base + in_page, size, 0, pointer, process_start_time(self), self,
                                             mapping_kind::host}))
        return tl::unexpected(ENOMEM);
    return base + in_page;
}

answer<void> unmap(virtual_device& device, std::uint64_t address) {
    auto& state = device.state();
    // Hardware fetches a command buffer within microseconds of its submission; a thread of the lab may be
    // late.
    if (state.in_flight.load() != 0)
        for (const auto limit = now_ns() + 2000000;
             now_ns() < limit && device.buffer_awaited(address, end_of(state, address));)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    const context_lock lock(state);
    auto* entry = find_mapping(state, address);
    if (entry == nullptr || entry->address != address || entry->kind == mapping_kind::command_buffer)
        return tl::unexpected(EINVAL);
    if (entry->kind == mapping_kind::device) {
        for (std::uint32_t i = 0; i < state.export_count;) {
            auto& record = state.exports[i];
            if (record.mapping_address == address && device.export_alive(record.id))
                return tl::unexpected(EINVAL);
            if (record.mapping_address != address) {
                ++i;
                continue;
            }
            device.forget_export(record.id);
            record = state.exports[--state.export_count];
        }
        if (auto* from = find_allocation(state, entry->handle); from != nullptr)
            --from->mappings;
    }
    if (entry->kind == mapping_kind::imported)
        for (auto& record : state.imports)
            if (record.id == entry->handle) {
                if (record.process == ::getpid())
                    ::close(record.dup_fd);
                record.id = 0;
            }
    erase_mapping(state, entry);
    return {};
}

} // namespace lab::gaudi
