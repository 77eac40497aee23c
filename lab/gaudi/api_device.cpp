// SPDX-License-Identifier: BSD-3-Clause
// Exported functions: opening, closing, identity.
#include "lab/gaudi/exported.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace lab::gaudi {
namespace {

virtual_device* by_bus_id(const char* text) {
    const std::string wanted = std::strlen(text) == 7 ? std::string("0000:") + text : text;
    if (const auto* all = process::self().devices(); all != nullptr)
        for (const auto& device : *all)
            if (device->description.bus_id == wanted)
                return device.get();
    return nullptr;
}

virtual_device* by_module_id(std::uint32_t module_id) {
    if (const auto* all = process::self().devices(); all != nullptr)
        for (const auto& device : *all)
            if (device->description.module_id == module_id)
                return device.get();
    return nullptr;
}

bool matches(const virtual_device& device, hlthunk_device_name name) {
    return name == HLTHUNK_DEVICE_DONT_CARE || static_cast<std::uint32_t>(name) == device.type.device_name;
}

int answer_fd(int fd) {
    if (fd < 0)
        errno = -fd;
    return fd;
}

// Without a bus id, opens the first device that opens; failure is -1 with errno, not -errno.
int open_first(hlthunk_device_name name) {
    int reason = ENOENT;
    if (const auto* all = process::self().devices(); all != nullptr)
        for (const auto& device : *all) {
            if (!matches(*device, name))
                continue;
            const int fd = device->open_compute();
            if (fd >= 0)
                return fd;
            reason = -fd;
        }
    errno = reason;
    return -1;
}

int open_named(hlthunk_device_name name, const char* bus_id) {
    if (bus_id == nullptr)
        return open_first(name);
    auto* device = by_bus_id(bus_id);
    if (device == nullptr)
        return failure<int>(EINVAL);
    return answer_fd(device->open_compute());
}

int open_control_of(const virtual_device* device, int missing) {
    return device == nullptr ? failure<int>(missing) : answer_fd(device->open_control());
}

} // namespace
} // namespace lab::gaudi

LAB_EXPORT(int, hlthunk_open, (hlthunk_device_name name, const char* busid), (static_cast<long>(name), busid),
           { return open_named(name, busid); })

LAB_EXPORT(int, hlthunk_open_by_module_id, (uint32_t module_id), (module_id), {
    auto* device = by_module_id(module_id);
    if (device == nullptr) {
        errno = ENODEV;
        return -1;
    }
    return answer_fd(device->open_compute());
})

LAB_EXPORT(int, hlthunk_open_control, (int dev_id, const char* busid), (static_cast<long>(dev_id), busid), {
    if (busid != nullptr)
        return open_control_of(by_bus_id(busid), EINVAL);
    const auto* all = process::self().devices();
    if (all == nullptr || dev_id < 0 || static_cast<std::size_t>(dev_id) >= all->size())
        return failure<int>(ENOENT);
    return answer_fd((*all)[static_cast<std::size_t>(dev_id)]->open_control());
})

LAB_EXPORT(int, hlthunk_open_control_by_name, (hlthunk_device_name name, const char* busid),
           (static_cast<long>(name), busid), {
               if (busid != nullptr)
                   return open_control_of(by_bus_id(busid), EINVAL);
               if (const auto* all = process::self().devices(); all != nullptr)
                   for (const auto& device : *all)
                       if (matches(*device, name))
                           return answer_fd(device->open_control());
               errno = ENOENT;
               return -1;
           })

LAB_EXPORT(int, hlthunk_open_control_by_module_id, (uint32_t module_id), (module_id),
           { return open_control_of(by_module_id(module_id), EBADF); })

LAB_EXPORT(int, hlthunk_open_control_by_bus_id, (const char* busid), (busid),
           { return open_control_of(busid == nullptr ? nullptr : by_bus_id(busid), EBADF); })

LAB_EXPORT(int, hlthunk_close, (int fd), (fd), {
    auto* device = process::self().find(fd);
    const int rc = ::close(fd);
    const int error = errno;
    if (rc == 0 && device != nullptr)
        device->released();
    errno = error;
    return rc;
})

LAB_EXPORT(uint32_t, hlthunk_get_device_id_from_fd, (int fd), (fd),
           { return on_either<uint32_t>(fd, [](virtual_device& device) { return device.type.pci_id; }); })

LAB_EXPORT(hlthunk_device_name, hlthunk_get_device_name_from_fd, (int fd), (fd), {
    return on_either<hlthunk_device_name>(
        fd, [](virtual_device& device) { return static_cast<hlthunk_device_name>(device.type.device_name); });
})

LAB_EXPORT(int, hlthunk_get_pci_bus_id_from_fd, (int fd, char* pci_bus_id, int len), (fd, pci_bus_id, len), {
    if (pci_bus_id == nullptr || len <= 0)
        return failure<int>(EINVAL);
    return on_either<int>(fd, [&](virtual_device& device) {
        std::memset(pci_bus_id, 0, static_cast<std::size_t>(len));
        std::memcpy(pci_bus_id, device.description.bus_id.c_str(),
                    std::min(device.description.bus_id.size(), static_cast<std::size_t>(len)));
        return 0;
    });
})

LAB_EXPORT(int, hlthunk_get_device_index_from_pci_bus_id, (const char* busid), (busid), {
    if (busid == nullptr)
        return failure<int>(EINVAL);
    const auto* device = by_bus_id(busid);
    return device == nullptr ? failure<int>(EINVAL) : static_cast<int>(device->index);
})

LAB_EXPORT(int, hlthunk_get_device_count, (hlthunk_device_name name), (static_cast<long>(name)), {
    if (name == HLTHUNK_DEVICE_INVALID || name >= HLTHUNK_DEVICE_MAX || name < 0)
        return failure<int>(EINVAL);
    int count = 0;
    if (const auto* all = process::self().devices(); all != nullptr)
        for (const auto& device : *all)
            count += matches(*device, name) ? 1 : 0;
    return count;
})

LAB_EXPORT(void*, hlthunk_malloc, (size_t size), (size), { return std::calloc(1, size); })

LAB_EXPORT(char*, hlthunk_get_version, (void), (0), { return ::strdup("1.10.0-lab"); })

LAB_EXPORT_VOID(hlthunk_free, (void* pt), (pt), { std::free(pt); })

// The lab's own functions, for tests: see lab/README.md.
extern "C" [[gnu::visibility("default")]] int gaudi_lab_arm_faults(const char* script) {
    return lab::arm_faults(script);
}

extern "C" [[gnu::visibility("default")]] uint64_t gaudi_lab_faults_fired() {
    return lab::faults().fired();
}

extern "C" [[gnu::visibility("default")]] void gaudi_lab_leave() {
    lab::gaudi::process::self().leave();
}
