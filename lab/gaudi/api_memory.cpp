// SPDX-License-Identifier: BSD-3-Clause
// Exported functions: memory, DMA-BUF, command buffers.
#include "lab/gaudi/exported.hpp"

#include <cstdarg>
#include <linux/dma-buf.h>
#include <sys/syscall.h>
#include <unistd.h>

LAB_EXPORT(uint64_t, hlthunk_device_memory_alloc,
           (int fd, uint64_t size, uint64_t page_size, bool contiguous, bool shared),
           (fd, size, page_size, contiguous, shared), {
               return on_device<uint64_t>(fd, [&](virtual_device& device) {
                   return outcome_of<uint64_t>(allocate(device, size, page_size, contiguous));
               });
           })

LAB_EXPORT(int, hlthunk_device_memory_free, (int fd, uint64_t handle), (fd, handle), {
    return on_device<int>(fd,
                          [&](virtual_device& device) { return outcome_of<int>(release(device, handle)); });
})

LAB_EXPORT(uint64_t, hlthunk_device_memory_map, (int fd, uint64_t handle, uint64_t hint_addr),
           (fd, handle, hint_addr), {
               return on_device<uint64_t>(fd, [&](virtual_device& device) {
                   return outcome_of<uint64_t>(map_device(device, handle, hint_addr, 0));
               });
           })

LAB_EXPORT(uint64_t, hlthunk_host_memory_map,
           (int fd, void* host_virt_addr, uint64_t hint_addr, uint64_t host_size),
           (fd, host_virt_addr, hint_addr, host_size), {
               return on_device<uint64_t>(fd, [&](virtual_device& device) {
                   return outcome_of<uint64_t>(map_host(device, host_virt_addr, host_size, hint_addr, 0));
               });
           })

LAB_EXPORT(uint64_t, hlthunk_host_memory_map_flags,
           (int fd, void* host_virt_addr, uint64_t hint_addr, uint64_t host_size, uint32_t flags),
           (fd, host_virt_addr, hint_addr, host_size, flags), {
               return on_device<uint64_t>(fd, [&](virtual_device& device) {
                   return outcome_of<uint64_t>(map_host(device, host_virt_addr, host_size, hint_addr, flags));
               });
           })

LAB_EXPORT(int, hlthunk_memory_unmap, (int fd, uint64_t device_virt_addr), (fd, device_virt_addr), {
    return on_device<int>(
        fd, [&](virtual_device& device) { return outcome_of<int>(unmap(device, device_virt_addr)); });
})

LAB_EXPORT(int, hlthunk_device_memory_export_dmabuf_fd,
           (int fd, uint64_t addr, uint64_t size, uint32_t flags), (fd, addr, size, flags), {
               if (short_result_wanted() && size > host_page)
                   size -= host_page;
               return on_device<int>(fd, [&](virtual_device& device) {
                   return outcome_of<int>(export_physical(device, addr, size));
               });
           })

LAB_EXPORT(int, hlthunk_device_mapped_memory_export_dmabuf_fd,
           (int fd, uint64_t addr, uint64_t size, uint64_t offset, uint32_t flags),
           (fd, addr, size, offset, flags), {
               if (flags != HL_EXPORT_FLAGS) // hl-thunk itself refuses other flags
                   return failure<int>(EINVAL);
               if (short_result_wanted() && size > host_page)
                   size -= host_page;
               return on_device<int>(fd, [&](virtual_device& device) {
                   return outcome_of<int>(export_mapped(device, addr, size, offset));
               });
           })

namespace lab::gaudi {
namespace {

int request_buffer(int fd, std::uint32_t size, bool mapped, std::uint64_t* handle) {
    if (handle == nullptr)
        return failure<int>(EINVAL);
    return on_device<int>(fd, [&](virtual_device& device) {
        const auto buffer = create_buffer(device, size, mapped);
        *handle = buffer.value_or(0);
        return buffer ? 0 : failure<int>(buffer.error());
    });
}

} // namespace
} // namespace lab::gaudi

LAB_EXPORT(int, hlthunk_request_command_buffer, (int fd, uint32_t cb_size, uint64_t* cb_handle),
           (fd, cb_size, cb_handle), { return request_buffer(fd, cb_size, false, cb_handle); })

LAB_EXPORT(int, hlthunk_request_mapped_command_buffer, (int fd, uint32_t cb_size, uint64_t* cb_handle),
           (fd, cb_size, cb_handle), { return request_buffer(fd, cb_size, true, cb_handle); })

LAB_EXPORT(int, hlthunk_destroy_command_buffer, (int fd, uint64_t cb_handle), (fd, cb_handle), {
    return on_device<int>(
        fd, [&](virtual_device& device) { return outcome_of<int>(destroy_buffer(device, cb_handle)); });
})

LAB_EXPORT(int, hlthunk_get_cb_usage_count, (int fd, uint64_t cb_handle, uint32_t* usage_cnt),
           (fd, cb_handle, usage_cnt), {
               if (usage_cnt == nullptr)
                   return failure<int>(EINVAL);
               return on_device<int>(fd, [&](virtual_device& device) {
                   const context_lock lock(device.state());
                   const auto* buffer = find_buffer(device.state(), cb_handle);
                   if (buffer == nullptr)
                       return failure<int>(EINVAL);
                   *usage_cnt = buffer->in_flight;
                   return 0;
               });
           })

LAB_EXPORT(int, hlthunk_get_mapped_cb_device_va_by_handle, (int fd, uint64_t cb_handle, uint64_t* device_va),
           (fd, cb_handle, device_va), {
               if (device_va == nullptr)
                   return failure<int>(EINVAL);
               return on_device<int>(fd, [&](virtual_device& device) {
                   const context_lock lock(device.state());
                   const auto* buffer = find_buffer(device.state(), cb_handle);
                   if (buffer == nullptr || buffer->device_address == 0)
                       return failure<int>(EINVAL);
                   *device_va = buffer->device_address;
                   return 0;
               });
           })

namespace lab::gaudi {
namespace {

// The memory ioctl, for the operations that programs issue without hl-thunk.
int memory_ioctl(virtual_device& device, hl_mem_args& args) {
    if (device.state().status != HL_DEVICE_STATUS_OPERATIONAL)
        return failure<int>(EBUSY);
    const auto answer_with = [&](const answer<std::uint64_t>& value) {
        if (value)
            args.out.device_virt_addr = *value;
        return value ? 0 : failure<int>(value.error());
    };
    const auto& in = args.in;
    switch (in.op) {
    case HL_MEM_OP_UNMAP:
        return outcome_of<int>(unmap(device, in.argument[0]));
    case HL_MEM_OP_REG_DMABUF_FD:
        return answer_with(import_dmabuf(device, static_cast<int>(in.argument[0]), in.argument[1]));
    default:
        return failure<int>(EINVAL);
    }
}

bool is_dmabuf(int fd) {
    char link[64], path[4096];
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const auto length = ::readlink(link, path, sizeof(path));
    return length > 0 && std::string_view(path, static_cast<std::size_t>(length)).find("/exports/") !=
                             std::string_view::npos;
}

} // namespace
} // namespace lab::gaudi

// In addition to hl-thunk's own functions: programs that issue the driver's ioctls themselves take ioctl()
// from the hl-thunk they loaded (dlsym on its handle finds libc's through the vendor's library, and this one
// in the lab). Descriptors that are not the lab's go to the kernel unchanged.
extern "C" [[gnu::visibility("default")]] int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list list;
    va_start(list, request);
    void* argument = va_arg(list, void*);
    va_end(list);
    using namespace lab::gaudi;
    if (request == HL_IOCTL_MEMORY_REQUEST && argument != nullptr)
        if (auto* device = process::self().find(fd); device != nullptr) {
            const int rc = call<int>(
                "hlthunk_memory_ioctl",
                [&] { return memory_ioctl(*device, *static_cast<hl_mem_args*>(argument)); }, fd,
                static_cast<hl_mem_args*>(argument)->in.op, argument);
            return rc < 0 ? -1 : rc;
        }
    if (request == DMA_BUF_IOCTL_SYNC && is_dmabuf(fd))
        return 0;
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}
