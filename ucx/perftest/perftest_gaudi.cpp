// SPDX-License-Identifier: BSD-3-Clause
// `ucx_perftest -m gaudi`: fills the place of Gaudi memory in the tool's table of allocators. UCX allocates
// through the memory domain; what the tool lacks are copies and fills of memory that no CPU can touch.
#include <gaudi/device.hpp>

#include "ucx/base/module.hpp"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <vector>

using namespace gaudi_ucx;

namespace {

// As the tool lays it out; tests compare it with its DWARF.
struct ucx_perf_allocator {
    ucs_memory_type_t mem_type;
    ucs_status_t (*init)(void* perf);
    ucs_status_t (*uct_alloc)(const void* perf, size_t length, unsigned flags,
                              uct_allocated_memory_t* memory);
    void (*uct_free)(const void* perf, uct_allocated_memory_t* memory);
    void (*memcpy)(void* to, ucs_memory_type_t to_type, const void* from, ucs_memory_type_t from_type,
                   size_t count);
    void* (*memset)(void* to, int value, size_t count);
};
static_assert(sizeof(ucx_perf_allocator) == 48);

gaudi::result<gaudi::copy_engine> engine_at(std::uint64_t address) {
    const auto index = gaudi::known_memory().device_of(gaudi::device_address(address));
    const auto device = index ? gaudi::find_open_device(*index) : nullptr;
    if (!device)
        return tl::unexpected(gaudi::error(gaudi::errc::not_allocated, fmt::format("{:#x}", address)));
    return device->copies();
}

gaudi::result<void> finish(gaudi::result<gaudi::copy_ticket> started) {
    if (!started)
        return tl::unexpected(started.error());
    return started->wait();
}

gaudi::result<void> copy(void* to, ucs_memory_type_t to_type, const void* from, ucs_memory_type_t from_type,
                         size_t count) {
    const bool up = from_type == UCS_MEMORY_TYPE_GAUDI, down = to_type == UCS_MEMORY_TYPE_GAUDI;
    auto engine = engine_at(number(down ? to : from));
    if (!engine)
        return tl::unexpected(engine.error());
    if (up && down)
        return finish(
            engine->copy(gaudi::device_address(number(to)), gaudi::device_address(number(from)), count));
    if (down)
        return finish(
            engine->write(gaudi::device_address(number(to)), {static_cast<const std::byte*>(from), count}));
    return finish(engine->read({static_cast<std::byte*>(to), count}, gaudi::device_address(number(from))));
}

// The tool has no way to hear of a failure here, and a figure measured on other memory would be a lie.
[[noreturn]] void give_up(const gaudi::error& error) {
    std::fprintf(stderr, "ucx_perftest: Gaudi memory: %s\n", error.message().c_str());
    std::_Exit(1);
}

void copy_or_end(void* to, ucs_memory_type_t to_type, const void* from, ucs_memory_type_t from_type,
                 size_t count) {
    if (const auto done = copy(to, to_type, from, from_type, count); !done)
        give_up(done.error());
}

void* fill_or_end(void* to, int value, size_t count) {
    constexpr std::size_t most = 4 << 20;
    const std::vector<std::byte> pattern(std::min(count, most), static_cast<std::byte>(value));
    for (std::size_t done = 0; done < count; done += most)
        copy_or_end(static_cast<std::byte*>(to) + done, UCS_MEMORY_TYPE_GAUDI, pattern.data(),
                    UCS_MEMORY_TYPE_HOST, std::min(count - done, most));
    return to;
}

ucs_status_t refuse_uct(const void*, size_t, unsigned, uct_allocated_memory_t*) {
    std::fprintf(stderr, "ucx_perftest: Gaudi memory is for UCP tests (ucp_*, tag_*, stream_*, am_*); tests "
                         "of a bare transport "
                         "(-x, -d) use host memory\n");
    return UCS_ERR_UNSUPPORTED;
}

ucs_status_t ready(void*) {
    const auto devices = gaudi::list_devices();
    if (devices && !devices->empty())
        return UCS_OK;
    std::fprintf(stderr, "ucx_perftest: no Gaudi: %s\n",
                 devices ? "the driver finds none" : devices.error().message().c_str());
    return UCS_ERR_NO_DEVICE;
}

constexpr ucx_perf_allocator allocator = {
    UCS_MEMORY_TYPE_GAUDI, ready,      refuse_uct, [](const void*, uct_allocated_memory_t*) {},
    copy_or_end,           fill_or_end};

} // namespace

extern "C" __attribute__((visibility("default"))) ucs_status_t ucs_module_global_init(void) {
    auto** table =
        static_cast<const ucx_perf_allocator**>(::dlsym(RTLD_DEFAULT, "ucx_perf_mem_type_allocators"));
    if (table == nullptr)
        return UCS_ERR_UNSUPPORTED;
    table[UCS_MEMORY_TYPE_GAUDI] = &allocator;
    return UCS_OK;
}
