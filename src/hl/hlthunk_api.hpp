// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "abi/hlthunk.h"
#include "src/os/dynamic_library.hpp"

#include <memory>
#include <string>
#include <vector>

// The functions of hl-thunk that this library calls. One list generates the table, the loader and the report
// of missing functions. Symbol, need, signature.
#define GAUDI_HLTHUNK_SYMBOLS(X)                                                                             \
    X(open, required, int(hlthunk_device_name, const char*))                                                 \
    X(open_control, required, int(int, const char*))                                                         \
    X(close, required, int(int))                                                                             \
    X(get_device_name_from_fd, required, hlthunk_device_name(int))                                           \
    X(get_pci_bus_id_from_fd, required, int(int, char*, int))                                                \
    X(get_hw_ip_info, required, int(int, hlthunk_hw_ip_info*))                                               \
    X(get_dram_usage, required, int(int, hlthunk_dram_usage_info*))                                          \
    X(get_device_status_info, required, hl_device_status(int))                                               \
    X(device_memory_alloc, required, std::uint64_t(int, std::uint64_t, std::uint64_t, bool, bool))           \
    X(device_memory_free, required, int(int, std::uint64_t))                                                 \
    X(device_memory_map, required, std::uint64_t(int, std::uint64_t, std::uint64_t))                         \
    X(host_memory_map, required, std::uint64_t(int, void*, std::uint64_t, std::uint64_t))                    \
    X(memory_unmap, required, int(int, std::uint64_t))                                                       \
    X(device_memory_export_dmabuf_fd, optional, int(int, std::uint64_t, std::uint64_t, std::uint32_t))       \
    X(device_mapped_memory_export_dmabuf_fd, optional,                                                       \
      int(int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t))                                  \
    X(request_command_buffer, optional, int(int, std::uint32_t, std::uint64_t*))                             \
    X(destroy_command_buffer, optional, int(int, std::uint64_t))                                             \
    X(command_submission, optional, int(int, hlthunk_cs_in*, hlthunk_cs_out*))                               \
    X(wait_for_cs, optional, int(int, std::uint64_t, std::uint64_t, std::uint32_t*))                         \
    X(notifier_create, optional, int(int))                                                                   \
    X(notifier_release, optional, int(int, int))                                                             \
    X(notifier_recv, optional, int(int, int, std::uint64_t*, std::uint64_t*, std::uint32_t, std::uint32_t))  \
    X(get_device_count, optional, int(hlthunk_device_name))                                                  \
    X(get_version, optional, char*(void))                                                                    \
    X(free, optional, void(void*))

namespace gaudi {

// hl-thunk as a table of functions. A missing optional function is nullptr and listed in missing().
class hlthunk_api {
public:
    // Loads $GAUDI_DIRECT_HLTHUNK and nothing else if it is set; otherwise tries, in this order: the loader's
    // search path (which finds a copy that the process has loaded already), /usr/lib/habanalabs,
    // /opt/habanalabs/lib.
    static result<std::shared_ptr<const hlthunk_api>> load();

#define GAUDI_MEMBER(name, need, signature) std::add_pointer_t<signature> name = nullptr;
    GAUDI_HLTHUNK_SYMBOLS(GAUDI_MEMBER)
#undef GAUDI_MEMBER
    // For driver calls that hl-thunk has no function for. It comes from the loaded hl-thunk, so that a
    // virtual hl-thunk can provide its own; a real one resolves to libc's.
    int (*ioctl)(int, unsigned long, ...) = nullptr;

    [[nodiscard]] const std::string& path() const {
        return path_;
    }
    [[nodiscard]] const std::vector<std::string>& tried() const {
        return tried_;
    }
    [[nodiscard]] const std::vector<std::string>& missing() const {
        return missing_;
    }
    [[nodiscard]] std::string version() const;

private:
    std::shared_ptr<dynamic_library> library_;
    std::string path_;
    std::vector<std::string> tried_;
    std::vector<std::string> missing_;
};

} // namespace gaudi
