// SPDX-License-Identifier: BSD-3-Clause
// The device's virtual address space: sorted mappings, free ranges for new ones, translation.
#include "lab/dmabuf.h"
#include "lab/gaudi/memory.hpp"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

namespace lab::gaudi {
namespace {

// The first mapping whose pages end after the address: the one that contains it, if any does.
mapping* first_ending_after(context& state, std::uint64_t address) {
    auto* const end = state.mappings + state.mapping_count;
    return std::upper_bound(state.mappings, end, address, [](std::uint64_t value, const mapping& entry) {
        return value < entry.page_end();
    });
}

// Alignment applies to the low 48 bits: a Gaudi2 page is no power of two and the upper bits are a tag.
std::uint64_t align_up(std::uint64_t address, std::uint64_t alignment) {
    constexpr std::uint64_t low_bits = (1ULL << 48) - 1;
    const auto remainder = (address & low_bits) % alignment;
    return remainder == 0 ? address : address + (alignment - remainder);
}

// The piece of an imported buffer at `offset`.
answer<piece> imported_piece(const import_record& record, std::uint64_t offset, std::uint64_t length) {
    for (std::uint32_t i = 0; i < record.range_count; ++i) {
        const auto& range = record.ranges[i];
        if (offset >= range.length) {
            offset -= range.length;
            continue;
        }
        piece memory;
        memory.length = std::min(length, range.length - offset);
        memory.bytes = process::self()
                           .foreign_memory(record.hbm_path, record.hbm_size)
                           .bytes(range.hbm_offset + offset, memory.length);
        if (memory.bytes == nullptr)
            return tl::unexpected(errno);
        return memory;
    }
    return tl::unexpected(EFAULT);
}

answer<piece> allocated_piece(virtual_device& device, const allocation& from, std::uint64_t offset,
                              std::uint64_t length) {
    const auto& state = device.state();
    const auto page_size = device.type.dram_page;
    auto page = from.first_page;
    auto skip = offset / page_size;
    for (; skip > 0 && page < context::max_pages; --skip)
        page = state.page_next[page];
    if (page >= context::max_pages)
        return tl::unexpected(EFAULT);
    piece memory;
    memory.length = std::min(length, page_size - offset % page_size);
    // Adjacent pages make one piece.
    for (auto next = page; memory.length < length && state.page_next[next] == next + 1; ++next)
        memory.length = std::min(length, memory.length + page_size);
    memory.bytes = device.hbm().bytes(page * page_size + offset % page_size, memory.length);
    if (memory.bytes == nullptr)
        return tl::unexpected(errno);
    return memory;
}

bool still_mapped(std::uint64_t host, std::uint64_t length) {
    const auto begin = host & ~(host_page - 1);
    unsigned char residency[1024];
    for (auto at = begin; at < host + length; at += sizeof(residency) * host_page) {
        const auto size = std::min<std::uint64_t>(host + length - at, sizeof(residency) * host_page);
        if (::mincore(reinterpret_cast<void*>(at), size, residency) != 0)
            return false;
    }
    return true;
}

answer<piece> mapped_piece(virtual_device& device, const mapping& entry, std::uint64_t address,
                           std::uint64_t length) {
    auto& state = device.state();
    length = std::min(length, entry.page_end() - address);
    const auto offset = address - entry.page_begin();
    switch (entry.kind) {
    case mapping_kind::device:
        for (std::uint32_t i = 0; i < context::max_pages; ++i)
            if (state.allocations[i].handle == entry.handle)
                return allocated_piece(device, state.allocations[i], offset, length);
        return tl::unexpected(EFAULT);
    case mapping_kind::imported:
        for (const auto& record : state.imports)
            if (record.id == entry.handle)
                return imported_piece(record, offset, length);
        return tl::unexpected(EFAULT);
    case mapping_kind::host:
    case mapping_kind::command_buffer:
        break;
    }
    piece memory;
    memory.length = length;
    const auto host = (entry.host_address & ~(host_page - 1)) + offset;
    if (entry.process == ::getpid()) {
        // With a real driver, pinned pages outlive a program's munmap; here they do not, and accessing them
        // must not crash the program.
        if (!still_mapped(host, length))
            return tl::unexpected(EFAULT);
        memory.bytes = reinterpret_cast<unsigned char*>(host);
    } else if (process_start_time(entry.process) != entry.process_start)
        return tl::unexpected(EFAULT);
    memory.process = entry.process;
    memory.remote_address = host;
    return memory;
}

} // namespace

mapping* find_mapping(context& state, std::uint64_t address) {
    auto* candidate = first_ending_after(state, address);
    if (candidate == state.mappings + state.mapping_count || candidate->page_begin() > address)
        return nullptr;
    return candidate;
}

bool is_free(const context& state, std::uint64_t begin, std::uint64_t size) {
    auto& writable = const_cast<context&>(state);
    const auto* next = first_ending_after(writable, begin);
    return next == state.mappings + state.mapping_count || next->page_begin() >= begin + size;
}

std::uint64_t find_room(const context& state, const address_range& range, std::uint64_t size,
                        std::uint64_t alignment, const address_range& avoid) {
    std::uint64_t best = 0, best_gap = ~0ULL;
    const auto consider = [&](std::uint64_t begin, std::uint64_t end) {
        const auto start = align_up(begin, alignment);
        if (start >= begin && start < end && end - start >= size && end - begin < best_gap) {
            best = start;
            best_gap = end - begin;
        }
    };
    const auto consider_gap = [&](std::uint64_t begin, std::uint64_t end) {
        if (begin >= end)
            return;
        if (avoid.begin < end && begin < avoid.end) {
            if (begin < avoid.begin)
                consider(begin, avoid.begin);
            if (avoid.end < end)
                consider(avoid.end, end);
        } else
            consider(begin, end);
    };
    auto cursor = range.begin;
    for (std::uint32_t i = 0; i < state.mapping_count; ++i) {
        const auto& entry = state.mappings[i];
        if (entry.page_end() <= range.begin)
            continue;
        if (entry.page_begin() >= range.end)
            break;
        consider_gap(cursor, entry.page_begin());
        cursor = entry.page_end();
    }
    consider_gap(cursor, range.end);
    return best;
}

bool insert_mapping(context& state, const mapping& added) {
    if (state.mapping_count == context::max_mappings)
        return false;
    const mutation guard(state);
    auto* const end = state.mappings + state.mapping_count;
    auto* place = first_ending_after(state, added.page_begin());
    std::memmove(place + 1, place, static_cast<std::size_t>(end - place) * sizeof(mapping));
    *place = added;
    ++state.mapping_count;
    return true;
}

void erase_mapping(context& state, mapping* gone) {
    const mutation guard(state);
    auto* const end = state.mappings + state.mapping_count;
    std::memmove(gone, gone + 1, static_cast<std::size_t>(end - gone - 1) * sizeof(mapping));
    --state.mapping_count;
}

answer<piece> translate(virtual_device& device, std::uint64_t address, std::uint64_t length) {
    const auto& type = device.type;
    const address_range sram{type.sram_base, type.sram_base + type.sram_size};
    if (sram.contains(address)) {
        piece memory;
        memory.length = std::min(length, sram.end - address);
        memory.bytes = device.sram().bytes(address - sram.begin, memory.length);
        if (memory.bytes == nullptr)
            return tl::unexpected(errno);
        return memory;
    }
    if (!type.dram_mmu) {
        const address_range dram{type.dram_base, type.hbm_size};
        if (dram.contains(address)) {
            piece memory;
            memory.length = std::min(length, dram.end - address);
            memory.bytes = device.hbm().bytes(address, memory.length);
            if (memory.bytes == nullptr)
                return tl::unexpected(errno);
            return memory;
        }
    }
    const context_lock lock(device.state());
    const auto* entry = find_mapping(device.state(), address);
    if (entry == nullptr)
        return tl::unexpected(EFAULT);
    return mapped_piece(device, *entry, address, length);
}

bool read_piece(const piece& from, unsigned char* out, std::uint64_t length) {
    if (from.bytes != nullptr) {
        std::memcpy(out, from.bytes, length);
        return true;
    }
    const iovec local{out, length}, remote{reinterpret_cast<void*>(from.remote_address), length};
    return ::process_vm_readv(from.process, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length);
}

bool write_piece(const piece& to, const unsigned char* data, std::uint64_t length) {
    if (to.bytes != nullptr) {
        std::memcpy(to.bytes, data, length);
        return true;
    }
    const iovec local{const_cast<unsigned char*>(data), length},
        remote{reinterpret_cast<void*>(to.remote_address), length};
    return ::process_vm_writev(to.process, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length);
}

bool read_memory(virtual_device& device, std::uint64_t address, std::span<unsigned char> out) {
    while (!out.empty()) {
        const auto piece = translate(device, address, out.size());
        if (!piece || !read_piece(*piece, out.data(), piece->length)) {
            if (!piece)
                errno = piece.error();
            return false;
        }
        address += piece->length;
        out = out.subspan(piece->length);
    }
    return true;
}

bool write_memory(virtual_device& device, std::uint64_t address, std::span<const unsigned char> data) {
    while (!data.empty()) {
        const auto piece = translate(device, address, data.size());
        if (!piece || !write_piece(*piece, data.data(), piece->length)) {
            if (!piece)
                errno = piece.error();
            return false;
        }
        address += piece->length;
        data = data.subspan(piece->length);
    }
    return true;
}

} // namespace lab::gaudi
