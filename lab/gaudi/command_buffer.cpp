// SPDX-License-Identifier: BSD-3-Clause
// Command buffers: ranges of the device node, so that mmap on the device descriptor maps them.
#include "lab/gaudi/memory.hpp"
#include "lab/gaudi/submission.hpp"

#include "abi/hlthunk.h"

#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lab::gaudi {
namespace {

constexpr std::uint64_t buffer_space = 1ULL << 60;

std::uint64_t pages_of(std::uint64_t size) {
    return (size + host_page - 1) / host_page;
}

// Whether this process still has the buffer mmapped: its contents must outlive destroy.
bool mapped_here(const virtual_device& device, std::uint64_t handle) {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    if (maps == nullptr)
        return false;
    const auto path = device.node.string();
    char line[4352];
    bool found = false;
    while (!found && std::fgets(line, sizeof(line), maps) != nullptr) {
        unsigned long offset = 0;
        int path_at = 0;
        if (std::sscanf(line, "%*s %*s %lx %*s %*s %n", &offset, &path_at) == 1 && offset == handle)
            found = std::string_view(line + path_at).starts_with(path);
    }
    std::fclose(maps);
    return found;
}

void release(virtual_device& device, const command_buffer& gone) {
    const int fd = ::open(device.node.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(buffer_space | gone.id * host_page),
                static_cast<off_t>(pages_of(gone.size) * host_page));
    ::close(fd);
}

void sweep_destroyed(virtual_device& device, context& state) {
    for (std::uint32_t i = 0; i < state.buffer_count;) {
        auto& entry = state.buffers[i];
        if (entry.destroyed != 0 && entry.in_flight == 0 &&
            !mapped_here(device, buffer_space | entry.id * host_page)) {
            release(device, entry);
            entry = state.buffers[--state.buffer_count];
        } else
            ++i;
    }
}

} // namespace

answer<std::uint64_t> create_buffer(virtual_device& device, std::uint64_t size, bool mapped) {
    if (size == 0 || size > HL_MAX_CB_SIZE)
        return tl::unexpected(EINVAL);
    auto& state = device.state();
    const context_lock lock(state);
    sweep_destroyed(device, state);
    if (state.buffer_count == context::max_buffers)
        return tl::unexpected(ENOMEM);
    command_buffer buffer{state.next_buffer_id, size, 0, 0, 0};
    const auto length = pages_of(size) * host_page;
    const auto handle = buffer_space | buffer.id * host_page;
    const int fd = ::open(device.node.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return tl::unexpected(errno);
    // Allocate storage now: a full tmpfs must be an errno here and not a SIGBUS in the program.
    const bool stored =
        ::fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(handle), static_cast<off_t>(length)) == 0;
    const int error = errno;
    void* view = MAP_FAILED;
    if (stored && mapped)
        view = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(handle));
    ::close(fd);
    if (!stored || (mapped && view == MAP_FAILED))
        return tl::unexpected(stored ? ENOMEM : error);
    if (mapped) {
        buffer.device_address = find_room(state, device.type.host_va, length, host_page);
        const auto self = ::getpid();
        if (buffer.device_address == 0 ||
            !insert_mapping(state,
                            {buffer.device_address, length, buffer.id, reinterpret_cast<std::uint64_t>(view),
                             process_start_time(self), self, mapping_kind::command_buffer})) {
            ::munmap(view, length);
            return tl::unexpected(ENOMEM);
        }
    }
    state.next_buffer_id += pages_of(size);
    state.buffers[state.buffer_count++] = buffer;
    return handle;
}

command_buffer* find_buffer(context& state, std::uint64_t handle) {
    if ((handle & ~((buffer_space << 1) - 1)) != 0 || (handle & buffer_space) == 0 || handle % host_page != 0)
        return nullptr;
    const auto id = (handle & (buffer_space - 1)) / host_page;
    auto* const end = state.buffers + state.buffer_count;
    auto* buffer = std::find_if(state.buffers, end, [id](const command_buffer& entry) {
        return entry.id == id && entry.destroyed == 0;
    });
    return buffer == end ? nullptr : buffer;
}

answer<void> destroy_buffer(virtual_device& device, std::uint64_t handle) {
    auto& state = device.state();
    const context_lock lock(state);
    auto* buffer = find_buffer(state, handle);
    if (buffer == nullptr)
        return tl::unexpected(EINVAL);
    if (buffer->device_address != 0) {
        if (auto* entry = find_mapping(state, buffer->device_address); entry != nullptr) {
            if (entry->process == ::getpid())
                ::munmap(reinterpret_cast<void*>(entry->host_address), entry->size);
            erase_mapping(state, entry);
        }
    }
    buffer->destroyed = 1;
    sweep_destroyed(device, state);
    return {};
}

answer<void> request_timestamp(virtual_device& device, const timestamp_request& wanted) {
    auto& state = device.state();
    {
        const context_lock lock(state);
        const auto holds = [&](std::uint64_t handle, std::uint64_t element) {
            const auto* buffer = find_buffer(state, handle);
            return buffer != nullptr && element < pages_of(buffer->size) * host_page / 8;
        };
        auto* slot = std::find_if(std::begin(state.requests), std::end(state.requests),
                                  [](const timestamp_request& entry) { return entry.wanted == 0; });
        if (!holds(wanted.counter_handle, wanted.counter_offset) ||
            !holds(wanted.stamp_handle, wanted.stamp_offset))
            return tl::unexpected(EINVAL);
        if (slot == std::end(state.requests))
            return tl::unexpected(ENOMEM);
        *slot = wanted;
        slot->wanted = 1;
        ++state.requests_open;
    }
    serve_timestamps(device);
    return {};
}

void serve_timestamps(virtual_device& device) {
    auto& state = device.state();
    if (state.requests_open.load() == 0)
        return;
    const context_lock lock(state);
    const int fd = ::open(device.node.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    for (auto& request : state.requests) {
        std::uint64_t counter = 0;
        const auto stamp = now_ns();
        if (request.wanted == 0 ||
            ::pread(fd, &counter, sizeof(counter),
                    static_cast<off_t>(request.counter_handle + 8 * request.counter_offset)) !=
                static_cast<ssize_t>(sizeof(counter)) ||
            counter < request.target)
            continue;
        if (::pwrite(fd, &stamp, sizeof(stamp),
                     static_cast<off_t>(request.stamp_handle + 8 * request.stamp_offset)) ==
            static_cast<ssize_t>(sizeof(stamp))) {
            request.wanted = 0;
            --state.requests_open;
        }
    }
    ::close(fd);
}

} // namespace lab::gaudi
