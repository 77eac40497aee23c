// SPDX-License-Identifier: BSD-3-Clause
// DMA-BUF export and import.
#include "lab/dmabuf.h"

#include "abi/hlthunk.h"
#include "lab/gaudi/memory.hpp"

#include <cstdio>
#include <sys/file.h>

namespace lab::gaudi {
namespace {

using range_list = std::vector<gaudi_lab_range>;

bool page_multiple(std::uint64_t value) {
    return value % host_page == 0;
}

// The window [offset, offset + size) of an allocation, as ranges of HBM.
range_list window_of(const virtual_device& device, const context& state, const allocation& from,
                     std::uint64_t offset, std::uint64_t size) {
    const auto page_size = device.type.dram_page;
    range_list ranges;
    for (auto page = from.first_page; page != context::max_pages && size > 0; page = state.page_next[page]) {
        if (offset >= page_size) {
            offset -= page_size;
            continue;
        }
        const auto start = page * page_size + offset;
        const auto length = std::min(size, page_size - offset);
        if (!ranges.empty() && ranges.back().hbm_offset + ranges.back().length == start)
            ranges.back().length += length;
        else
            ranges.push_back({start, length});
        size -= length;
        offset = 0;
    }
    return ranges;
}

bool write_ranges(const std::filesystem::path& path, const gaudi_lab_dmabuf& head, const range_list& ranges) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    const auto body = ranges.size() * sizeof(ranges[0]);
    const bool whole = ::write(fd, &head, sizeof(head)) == static_cast<ssize_t>(sizeof(head)) &&
                       ::write(fd, ranges.data(), body) == static_cast<ssize_t>(body);
    const int error = whole ? 0 : ENOSPC;
    ::close(fd);
    errno = error;
    return whole;
}

std::uint64_t flags_of(const virtual_device& device) {
    if (device.description.peer_to_peer)
        return 0;
    return device.description.driver == driver::vendor ? GAUDI_LAB_NO_PEER_DATA : GAUDI_LAB_NO_PEER_MAP;
}

// An upstream driver before Linux 6.7 keeps one exported size for each allocation: the last one is that of
// all its DMA-BUFs.
void shrink_or_grow(virtual_device& device, std::uint64_t mapping_address, const range_list& ranges) {
    const auto& state = device.state();
    for (std::uint32_t i = 0; i < state.export_count; ++i) {
        if (state.exports[i].mapping_address != mapping_address || !device.export_alive(state.exports[i].id))
            continue;
        const auto path = device.export_path(state.exports[i].id).string() + ".ranges";
        gaudi_lab_dmabuf head{};
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        const bool known = fd >= 0 && ::read(fd, &head, sizeof(head)) == static_cast<ssize_t>(sizeof(head));
        if (fd >= 0)
            ::close(fd);
        head.range_count = static_cast<std::uint32_t>(ranges.size());
        const auto changed = path + ".new";
        if (known && write_ranges(changed, head, ranges))
            std::rename(changed.c_str(), path.c_str());
    }
}

// The caller holds the context lock. The DMA-BUF lives as long as the lock on its file, so the lock is taken
// before any other process can know the file.
answer<int> make_dmabuf(virtual_device& device, std::uint64_t mapping_address, std::uint64_t size,
                        const range_list& ranges) {
    auto& state = device.state();
    for (std::uint32_t i = 0; i < state.export_count && state.export_count == context::max_exports;)
        if (device.export_alive(state.exports[i].id))
            ++i;
        else {
            device.forget_export(state.exports[i].id);
            state.exports[i] = state.exports[--state.export_count];
        }
    if (state.export_count == context::max_exports)
        return tl::unexpected(ENOMEM);
    const auto id = state.next_export++;
    const auto path = device.export_path(id);
    const gaudi_lab_dmabuf head{GAUDI_LAB_DMABUF_MAGIC,
                                size,
                                device.type.hbm_size,
                                device.index,
                                static_cast<std::uint32_t>(ranges.size()),
                                flags_of(device)};
    int fd = -1;
    if (write_ranges(path.string() + ".ranges", head, ranges))
        fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(size)) != 0 || ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int error = errno;
        if (fd >= 0)
            ::close(fd);
        device.forget_export(id);
        return tl::unexpected(error);
    }
    state.exports[state.export_count++] = {id, mapping_address};
    return fd;
}

} // namespace

answer<int> export_mapped(virtual_device& device, std::uint64_t address, std::uint64_t size,
                          std::uint64_t offset) {
    auto& state = device.state();
    if (!device.type.dram_mmu || size == 0 || !page_multiple(address) || !page_multiple(size) ||
        !page_multiple(offset))
        return tl::unexpected(EINVAL);
    const context_lock lock(state);
    const auto* entry = find_mapping(state, address);
    if (entry == nullptr || entry->address != address || entry->kind != mapping_kind::device ||
        offset + size < offset || offset + size > entry->size || device.description.small_bar)
        return tl::unexpected(EINVAL);
    const bool old = device.description.driver == driver::upstream_6_6;
    for (const auto& from : state.allocations)
        if (from.handle == entry->handle) {
            const auto ranges = window_of(device, state, from, old ? 0 : offset, size);
            auto exported = make_dmabuf(device, address, size, ranges);
            if (exported && old)
                shrink_or_grow(device, address, ranges);
            return exported;
        }
    return tl::unexpected(EINVAL);
}

answer<int> export_physical(virtual_device& device, std::uint64_t address, std::uint64_t size) {
    const auto& type = device.type;
    const address_range user{type.dram_base, type.hbm_size};
    if (type.dram_mmu || size == 0 || !page_multiple(address) || !page_multiple(size) ||
        !user.contains(address, size) || device.description.small_bar)
        return tl::unexpected(EINVAL);
    const context_lock lock(device.state());
    return make_dmabuf(device, address, size, {{address, size}});
}

answer<std::uint64_t> import_dmabuf(virtual_device& device, int fd, std::uint64_t length) {
    if (!device.description.dmabuf_import) // the upstream driver does not support the operation
        return tl::unexpected(EINVAL);
    gaudi_lab_dmabuf head{};
    import_record record{};
    std::vector<gaudi_lab_range> ranges(std::size(record.ranges));
    if (const int rc =
            gaudi_lab_dmabuf_describe(fd, &head, ranges.data(), static_cast<std::uint32_t>(ranges.size()),
                                      record.hbm_path, sizeof(record.hbm_path));
        rc != 0)
        return tl::unexpected(rc == -ENOSPC ? ENOMEM : -rc);
    if (length == 0 || length > head.size || !page_multiple(length))
        return tl::unexpected(EINVAL);
    record.hbm_size = head.hbm_size;
    record.range_count = head.range_count;
    for (std::uint32_t i = 0; i < head.range_count; ++i)
        record.ranges[i] = {ranges[i].hbm_offset, ranges[i].length};
    record.process = ::getpid();
    auto& state = device.state();
    const context_lock lock(state);
    auto* slot = std::find_if(std::begin(state.imports), std::end(state.imports),
                              [](const import_record& entry) { return entry.id == 0; });
    const auto address = find_room(state, device.type.host_va, length, host_page);
    if (slot == std::end(state.imports) || address == 0)
        return tl::unexpected(ENOMEM);
    record.dup_fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (record.dup_fd < 0)
        return tl::unexpected(errno);
    record.id = state.next_import++;
    if (!insert_mapping(state, {address, length, record.id, 0, 0, 0, mapping_kind::imported})) {
        ::close(record.dup_fd);
        return tl::unexpected(ENOMEM);
    }
    *slot = record;
    return address;
}

} // namespace lab::gaudi
