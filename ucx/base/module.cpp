// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/module.hpp"

#include <cstdlib>
#include <cstring>
#include <strings.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gaudi_ucx {

void uct_gaudi_module::write(ucs_log_level_t level, const char* file, unsigned line, const char* function,
                             const std::string& text) {
    ucx.ucs_log_dispatch(file, line, function, level, &log, "%s", text.c_str());
}

bool uct_gaudi_module::set_log_level(std::string_view name) {
    const auto& names = *ucx.ucs_log_level_names;
    for (int level = 0; level < UCS_LOG_LEVEL_LAST; ++level)
        if (name.size() == std::strlen(names[level]) &&
            ::strncasecmp(name.data(), names[level], name.size()) == 0) {
            // Other threads log while a second memory domain is opened with another level.
            std::atomic_ref(log.log_level)
                .store(static_cast<ucs_log_level_t>(level), std::memory_order_relaxed);
            return true;
        }
    return false;
}

namespace {

bool cpu_can_read(std::uint64_t address) {
    char byte = 0;
    // The kernel reads for us: memory that the CPU cannot access is an error then, not a signal.
    const iovec to{&byte, 1}, from{reinterpret_cast<void*>(address), 1}; // NOLINT: the kernel reads it
    return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == 1;
}

} // namespace

void refuse_gpu_memory(uct_gaudi_module& module, std::uint64_t address, std::size_t length) {
    ucs_memory_info_t info{};
    const auto* pointer = reinterpret_cast<void*>(address); // NOLINT: UCX passes addresses as pointers
    if (module.ucx.ucs_memtype_cache_lookup(pointer, length, &info) != UCS_OK ||
        info.type == UCS_MEMORY_TYPE_HOST || cpu_can_read(address))
        return;
    gaudi_log(module, FATAL,
              "UCX stages {} bytes of Gaudi memory through memory of a GPU at {:#x}, which this transport "
              "cannot reach; "
              "set UCX_RNDV_FRAG_MEM_TYPES=host",
              length, address);
    // UCX would take a failed copy of its own staging for a completed one, and report the message as received
    // (gotcha U18).
    std::abort();
}

ucs_status_t status_of(const gaudi::error& error) {
    switch (error.code()) {
    case gaudi::errc::not_allocated:
    case gaudi::errc::pytorch_handle:
    case gaudi::errc::range_leaves_allocation:
    case gaudi::errc::wrong_device:
        return UCS_ERR_INVALID_ADDR;
    case gaudi::errc::peer_silent:
        return UCS_ERR_TIMED_OUT;
    case gaudi::errc::lease_revoked:
        return UCS_ERR_INVALID_PARAM; // as for a handle that was revoked before it was opened
    case gaudi::errc::no_device:
    case gaudi::errc::device_unknown:
    case gaudi::errc::device_hidden:
    case gaudi::errc::library_missing:
    case gaudi::errc::library_unusable:
    case gaudi::errc::symbol_missing:
        return UCS_ERR_NO_DEVICE;
    default:
        break;
    }
    switch (error.kind()) {
    case gaudi::error_kind::unsupported:
        return UCS_ERR_UNSUPPORTED;
    case gaudi::error_kind::busy:
        return UCS_ERR_BUSY;
    case gaudi::error_kind::exhausted:
        return UCS_ERR_NO_MEMORY;
    case gaudi::error_kind::invalid:
        return UCS_ERR_INVALID_PARAM;
    case gaudi::error_kind::peer_gone:
        return UCS_ERR_CONNECTION_RESET;
    case gaudi::error_kind::not_permitted:
    case gaudi::error_kind::device_lost:
        break;
    }
    return UCS_ERR_IO_ERROR;
}

} // namespace gaudi_ucx
