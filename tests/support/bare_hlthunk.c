/* SPDX-License-Identifier: BSD-3-Clause */
/* An hl-thunk that has only the required functions: no export, no notifier, no submission. WITH_SUBMISSION
 * adds submission and the first-generation export. Every function calls the lab's library, which is opened
 * with dlopen: if it were linked, dlsym would also find the missing functions. */
#include "abi/hlthunk.h"

#include <dlfcn.h>

#define FORWARD(result, name, parameters, arguments)                                                         \
    __attribute__((visibility("default"))) result hlthunk_##name parameters {                                \
        result(*real) parameters;                                                                            \
        *(void**)&real = dlsym(dlopen(LAB_HLTHUNK, RTLD_NOW | RTLD_LOCAL), "hlthunk_" #name);                \
        return real arguments;                                                                               \
    }

FORWARD(int, open, (enum hlthunk_device_name name, const char* bus_id), (name, bus_id))
FORWARD(int, open_control, (int minor, const char* bus_id), (minor, bus_id))
FORWARD(int, close, (int fd), (fd))
FORWARD(enum hlthunk_device_name, get_device_name_from_fd, (int fd), (fd))
FORWARD(int, get_pci_bus_id_from_fd, (int fd, char* text, int size), (fd, text, size))
FORWARD(int, get_hw_ip_info, (int fd, struct hlthunk_hw_ip_info* out), (fd, out))
FORWARD(int, get_dram_usage, (int fd, struct hlthunk_dram_usage_info* out), (fd, out))
FORWARD(enum hl_device_status, get_device_status_info, (int fd), (fd))
FORWARD(uint64_t, device_memory_alloc, (int fd, uint64_t size, uint64_t page, bool contiguous, bool shared),
        (fd, size, page, contiguous, shared))
FORWARD(int, device_memory_free, (int fd, uint64_t handle), (fd, handle))
FORWARD(uint64_t, device_memory_map, (int fd, uint64_t handle, uint64_t hint), (fd, handle, hint))
FORWARD(uint64_t, host_memory_map, (int fd, void* memory, uint64_t hint, uint64_t size),
        (fd, memory, hint, size))
FORWARD(int, memory_unmap, (int fd, uint64_t address), (fd, address))
#ifdef WITH_SUBMISSION
FORWARD(int, device_memory_export_dmabuf_fd, (int fd, uint64_t address, uint64_t size, uint32_t flags),
        (fd, address, size, flags))
FORWARD(int, request_command_buffer, (int fd, uint32_t size, uint64_t* handle), (fd, size, handle))
FORWARD(int, destroy_command_buffer, (int fd, uint64_t handle), (fd, handle))
FORWARD(int, command_submission, (int fd, struct hlthunk_cs_in* in, struct hlthunk_cs_out* out),
        (fd, in, out))
FORWARD(int, wait_for_cs, (int fd, uint64_t sequence, uint64_t limit_us, uint32_t* status),
        (fd, sequence, limit_us, status))
#endif
