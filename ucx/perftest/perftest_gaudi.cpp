// SPDX-License-Identifier: BSD-3-Clause
// `ucx_perftest -m gaudi`: fills the entry for Gaudi memory in the tool's table of allocators. UCX allocates
// through the memory domain; the tool lacks copies and fills of memory that the CPU cannot access.
#include <gaudi/copier.hpp>
#include <gaudi/device.hpp>
#include <gaudi/nic.hpp>

#include "ucx/abi/perf_allocator.h"
#include "ucx/abi/ucx_version.hpp"
#include "ucx/base/module.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <functional>
#include <span>
#include <vector>

using namespace gaudi_ucx;

namespace {

gaudi::result<void> copy(void* to, ucs_memory_type_t to_type, const void* from, ucs_memory_type_t from_type,
                         size_t count) {
    static gaudi::copier copies({.keep = false}); // UCX keeps the devices open
    const auto place_of = [&](const void* address, ucs_memory_type_t type) -> gaudi::place {
        if (type == UCS_MEMORY_TYPE_GAUDI)
            return {gaudi::device_address(number(address)), count};
        return std::span(const_cast<std::byte*>(static_cast<const std::byte*>(address)), count);
    };
    auto started = copies.copy(place_of(to, to_type), place_of(from, from_type));
    return started ? started->wait() : tl::unexpected(started.error());
}

// The tool ignores results of its copies and fills, so a failure cannot be reported, and a figure measured on
// other memory would be wrong: the process ends. No exception may pass through the tool either.
template <typename F>
void carry_out_or_end(F&& body) noexcept {
    const auto end = [](const char* why) {
        std::fprintf(stderr, "ucx_perftest: Gaudi memory: %s\n", why);
        std::_Exit(1);
    };
    try {
        if (const gaudi::result<void> done = body(); !done)
            end(done.error().message().c_str());
    } catch (const std::exception& error) {
        end(error.what());
    }
}

void copy_or_end(void* to, ucs_memory_type_t to_type, const void* from, ucs_memory_type_t from_type,
                 size_t count) noexcept {
    carry_out_or_end([&] { return copy(to, to_type, from, from_type, count); });
}

gaudi::result<void> fill(void* to, int value, size_t count) {
    constexpr std::size_t most = 4 << 20;
    const std::vector<std::byte> pattern(std::min(count, most), static_cast<std::byte>(value));
    for (std::size_t done = 0; done < count; done += most)
        if (auto copied = copy(static_cast<std::byte*>(to) + done, UCS_MEMORY_TYPE_GAUDI, pattern.data(),
                               UCS_MEMORY_TYPE_HOST, std::min(count - done, most));
            !copied)
            return copied;
    return {};
}

void* fill_or_end(void* to, int value, size_t count) noexcept {
    carry_out_or_end([&] { return fill(to, value, count); });
    return to;
}

ucs_status_t refuse_uct(const void*, size_t, unsigned, uct_allocated_memory_t*) noexcept {
    std::fprintf(stderr, "ucx_perftest: Gaudi memory is for UCP tests (ucp_*, tag_*, stream_*, am_*); tests "
                         "of a bare transport "
                         "(-x, -d) use host memory\n");
    return UCS_ERR_UNSUPPORTED;
}

// Errors that can be detected early are returned here, where the tool checks the status; later calls return
// none.
ucs_status_t ready(void*) noexcept {
    return no_throw([]() -> ucs_status_t {
        const auto devices = gaudi::list_devices();
        if (!devices || devices->empty()) {
            std::fprintf(stderr, "ucx_perftest: no Gaudi: %s\n",
                         devices ? "the driver finds none, or none that HABANA_VISIBLE_DEVICES and "
                                   "HABANA_VISIBLE_MODULES show"
                                 : devices.error().message().c_str());
            return UCS_ERR_NO_DEVICE;
        }
        if (std::any_of(devices->begin(), devices->end(), gaudi::may_have_engine))
            return UCS_OK;
        const auto nics = gaudi::list_nics();
        if (nics &&
            std::any_of(nics->begin(), nics->end(), std::mem_fn(&gaudi::nic_info::moves_device_memory)))
            return UCS_OK;
        std::fprintf(stderr,
                     "ucx_perftest: Gaudi memory: no device has a queue for copies (Gaudi3 has none), and no "
                     "NIC registers DMA-BUFs that could copy instead\n");
        return UCS_ERR_UNSUPPORTED;
    });
}

constexpr ucx_perf_allocator allocator = {
    UCS_MEMORY_TYPE_GAUDI, ready,      refuse_uct, [](const void*, uct_allocated_memory_t*) {},
    copy_or_end,           fill_or_end};

} // namespace

extern "C" __attribute__((visibility("default"))) ucs_status_t ucs_module_global_init(void) {
    return no_throw([]() -> ucs_status_t {
        auto** table =
            static_cast<const ucx_perf_allocator**>(::dlsym(RTLD_DEFAULT, "ucx_perf_mem_type_allocators"));
        if (table == nullptr)
            return UCS_ERR_UNSUPPORTED;
        auto* const asked = ::dlsym(RTLD_DEFAULT, "ucp_get_version"); // of the tool's libucp
        const auto version = asked != nullptr ? version_by(asked) : "of unknown version";
        if (!is_known_version(version)) {
            std::fprintf(stderr, "ucx_perftest: no Gaudi memory: UCX %s is not known; known are %s\n",
                         version.c_str(), known_versions);
            return UCS_ERR_UNSUPPORTED;
        }
        table[UCS_MEMORY_TYPE_GAUDI] = &allocator;
        return UCS_OK;
    });
}
