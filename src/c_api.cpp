// SPDX-License-Identifier: BSD-3-Clause
// The C interface: each function checks its pointers, calls the C++ interface and turns the error into a
// status. Nothing is kept here but the text of the thread's last error.
#include <gaudi/copier.hpp>
#include <gaudi/device.hpp>
#include <gaudi/gaudi.h>
#include <gaudi/version.hpp>

#include "src/hl/hl_device.hpp"
#include "src/os/internals.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <unistd.h>

struct gaudi_device {
    std::shared_ptr<gaudi::device> open;
    gaudi::copier copies{}; // declared after the device: destroyed first
};

namespace {

thread_local std::string last_error;

static_assert(GAUDI_DEVICE_LOST == static_cast<int>(gaudi::error_kind::device_lost) + 1);

gaudi_status failed(const gaudi::error& error) {
    last_error = error.message();
    return static_cast<gaudi_status>(static_cast<int>(error.kind()) + 1);
}

gaudi_status refused(std::string why) {
    last_error = std::move(why);
    return GAUDI_INVALID;
}

// No exception passes through the C interface.
template <typename F>
gaudi_status guarded(F&& body) noexcept {
    try {
        last_error.clear();
        return body();
    } catch (...) { // out of memory: nothing else here throws
        last_error.clear();
        return GAUDI_EXHAUSTED;
    }
}

// Copies as much of a structure as the caller's version has; members that only the caller has are zeroed.
template <typename T>
gaudi_status store(const T& values, T* into) {
    const auto caller_size = into->struct_size;
    if (caller_size < sizeof(std::size_t) + 1 || caller_size > 4096)
        return refused(fmt::format("struct_size is {}; set it to sizeof of the structure", caller_size));
    std::memset(static_cast<void*>(into), 0, caller_size);
    std::memcpy(static_cast<void*>(into), &values, std::min(caller_size, sizeof(T)));
    into->struct_size = caller_size;
    return GAUDI_OK;
}

// Checks required pointer arguments.
template <typename... Pointer>
bool all_there(Pointer... pointer) {
    return (... && (pointer != nullptr));
}

gaudi_status null_pointer() {
    return refused("a null pointer where a device, host memory or a place for the result was expected");
}

// Blocks until the copy has completed.
gaudi_status copy(gaudi_device& device, const gaudi::place& to, const gaudi::place& from) {
    auto started = device.copies.copy(to, from);
    const auto done = started ? started->wait() : tl::unexpected(started.error());
    return done ? GAUDI_OK : failed(done.error());
}

// Memory of this device; an address of another device is refused.
gaudi::place memory_of(const gaudi_device& device, uint64_t address, uint64_t size) {
    return {gaudi::device_address(address), size, core_of(*device.open)->identity().index};
}

using export_function = gaudi::result<gaudi::dmabuf_export> (gaudi::device::*)(gaudi::device_address,
                                                                               std::uint64_t);

gaudi_status export_by(export_function function, gaudi_device* device, std::uint64_t address,
                       std::uint64_t size, gaudi_dmabuf* dmabuf) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device, dmabuf))
            return null_pointer();
        if (size == 0)
            return failed(
                gaudi::error(gaudi::errc::size_zero, fmt::format("export of 0 bytes at {:#x}", address)));
        const auto exported = ((*device->open).*function)(gaudi::device_address(address), size);
        if (!exported)
            return failed(exported.error());
        gaudi_dmabuf values{};
        values.fd = exported->fd;
        values.offset = exported->offset;
        values.iova = exported->iova.value();
        values.length = exported->length;
        const auto status = store(values, dmabuf);
        if (status != GAUDI_OK)
            ::close(exported->fd);
        return status;
    });
}

} // namespace

gaudi_status gaudi_device_count(uint32_t* count) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(count))
            return null_pointer();
        const auto all = gaudi::list_devices();
        if (!all)
            return failed(all.error());
        *count = static_cast<uint32_t>(all->size());
        return GAUDI_OK;
    });
}

gaudi_status gaudi_open(const char* which, gaudi_device** device) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device))
            return null_pointer();
        const auto choice = gaudi::parse_device_choice(which != nullptr ? which : "");
        if (!choice)
            return refused(fmt::format("device '{}': use auto, an index, a bus id, or module:<id>", which));
        auto opened = gaudi::open_device(*choice);
        if (!opened)
            return failed(opened.error());
        *device = new gaudi_device{std::move(*opened)};
        return GAUDI_OK;
    });
}

void gaudi_close(gaudi_device* device) {
    delete device;
}

gaudi_status gaudi_query_device(gaudi_device* device, gaudi_device_info* info) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device, info))
            return null_pointer();
        const auto properties = device->open->info();
        gaudi_device_info values{};
        values.index = properties.index;
        values.generation = properties.generation ? static_cast<uint32_t>(*properties.generation) + 1 : 0;
        values.module_id = properties.module_id;
        values.numa_node = properties.numa_node.value_or(-1);
        values.memory_total = properties.memory_total;
        values.memory_free = properties.memory_free;
        properties.bus_id.copy(values.bus_id, sizeof(values.bus_id) - 1);
        return store(values, info);
    });
}

gaudi_status gaudi_allocate(gaudi_device* device, uint64_t size, uint64_t* address) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device, address))
            return null_pointer();
        auto buffer = device->open->heap().allocate_pages(size);
        if (!buffer)
            return failed(buffer.error());
        *address = buffer->release().value();
        return GAUDI_OK;
    });
}

gaudi_status gaudi_free(gaudi_device* device, uint64_t address) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device))
            return null_pointer();
        const auto freed = device->open->heap().free(gaudi::device_address(address));
        return freed ? GAUDI_OK : failed(freed.error());
    });
}

gaudi_status gaudi_query_memory(uint64_t address, gaudi_memory_info* info) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(info))
            return null_pointer();
        const auto allocation = gaudi::known_memory().find(gaudi::device_address(address), 1);
        if (!allocation)
            return failed(allocation.error());
        gaudi_memory_info values{};
        values.base = allocation->base.value();
        values.length = allocation->length;
        values.generation = allocation->generation;
        values.device_index = allocation->device_index;
        return store(values, info);
    });
}

gaudi_status gaudi_copy_in(gaudi_device* device, uint64_t to, const void* from, uint64_t size) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device, from))
            return null_pointer();
        return copy(*device, memory_of(*device, to, size),
                    std::span(static_cast<const std::byte*>(from), size));
    });
}

gaudi_status gaudi_copy_out(gaudi_device* device, void* to, uint64_t from, uint64_t size) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device, to))
            return null_pointer();
        return copy(*device, std::span(static_cast<std::byte*>(to), size), memory_of(*device, from, size));
    });
}

gaudi_status gaudi_copy_within(gaudi_device* device, uint64_t to, uint64_t from, uint64_t size) {
    return guarded([&]() -> gaudi_status {
        if (!all_there(device))
            return null_pointer();
        return copy(*device, memory_of(*device, to, size), memory_of(*device, from, size));
    });
}

gaudi_status gaudi_export(gaudi_device* device, uint64_t address, uint64_t size, gaudi_dmabuf* dmabuf) {
    return export_by(&gaudi::device::export_memory, device, address, size, dmabuf);
}

gaudi_status gaudi_export_pages(gaudi_device* device, uint64_t address, uint64_t size, gaudi_dmabuf* dmabuf) {
    return export_by(&gaudi::device::export_pages, device, address, size, dmabuf);
}

const char* gaudi_last_error(void) {
    return last_error.c_str();
}

const char* gaudi_version(void) {
    return gaudi::version().data();
}
