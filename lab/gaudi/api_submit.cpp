// SPDX-License-Identifier: BSD-3-Clause
// Exported functions: submission, waiting, notifier.
#include "lab/gaudi/exported.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lab::gaudi {
namespace {

int submit_from_c(int fd, const hlthunk_cs_in* in, hlthunk_cs_out* out, std::uint32_t timeout_s) {
    if (in == nullptr || out == nullptr)
        return failure<int>(EINVAL);
    return on_device<int>(fd, [&](virtual_device& device) {
        const auto sequence = submit(device, fd, *in, timeout_s);
        if (!sequence)
            return failure<int>(sequence.error());
        out->seq = *sequence;
        out->status = 0;
        return 0;
    });
}

int wait_from_c(int fd, std::uint64_t sequence, std::uint64_t timeout_us, std::uint32_t* status,
                std::uint64_t* stamp) {
    if (status == nullptr)
        return failure<int>(EINVAL);
    return on_device<int>(
        fd,
        [&](virtual_device& device) {
            if (short_result_wanted()) {
                *status = HL_WAIT_CS_STATUS_BUSY;
                return 0;
            }
            const auto done = wait_for(device, sequence, timeout_us);
            if (!done) {
                *status = done.error() == EIO         ? HL_WAIT_CS_STATUS_ABORTED
                          : done.error() == ETIMEDOUT ? HL_WAIT_CS_STATUS_TIMEDOUT
                                                      : HL_WAIT_CS_STATUS_COMPLETED;
                return failure<int>(done.error());
            }
            *status = done->status;
            if (stamp != nullptr)
                *stamp = done->finished_ns;
            return 0;
        },
        true);
}

// Waits until the 64-bit word, which an engine writes, reaches the target.
int wait_for_word(virtual_device& device, const volatile std::uint64_t* word, std::uint64_t target,
                  std::uint32_t id, std::uint64_t timeout_us, std::uint32_t* status, std::uint64_t* stamp) {
    auto& state = device.state();
    auto& interrupt = state.interrupts[id % std::size(state.interrupts)];
    const auto deadline = now_ns() + std::min<std::uint64_t>(timeout_us, 1ULL << 50) * 1000;
    for (;;) {
        const auto seen = interrupt.load();
        if (*word >= target) {
            *status = HL_WAIT_CS_STATUS_COMPLETED;
            if (stamp != nullptr)
                *stamp = now_ns();
            return 0;
        }
        if (state.status != HL_DEVICE_STATUS_OPERATIONAL) {
            *status = HL_WAIT_CS_STATUS_ABORTED;
            return failure<int>(EIO);
        }
        const auto now = now_ns();
        if (now >= deadline) {
            *status = HL_WAIT_CS_STATUS_BUSY;
            return 0;
        }
        futex_wait(interrupt, seen, std::min<std::uint64_t>(deadline - now, 2000000000));
    }
}

bool known_interrupt(const virtual_device& device, std::uint32_t id) {
    return (id & 0xfff) == 0xfff || (id & 0xfff) == 0xffe ||
           (id >= device.type.first_interrupt && id < device.type.first_interrupt + device.type.interrupts);
}

int wait_interrupt(int fd, void* word, std::uint64_t target, std::uint32_t id, std::uint64_t timeout_us,
                   std::uint32_t* status, std::uint64_t* stamp) {
    if (status == nullptr || word == nullptr)
        return failure<int>(EINVAL);
    return on_device<int>(fd, [&](virtual_device& device) {
        if (!known_interrupt(device, id))
            return failure<int>(EINVAL);
        return wait_for_word(device, static_cast<std::uint64_t*>(word), target, id, timeout_us, status,
                             stamp);
    });
}

int wait_interrupt_by_handle(int fd, std::uint64_t handle, std::uint64_t offset, std::uint64_t target,
                             std::uint32_t id, std::uint64_t timeout_us, std::uint32_t* status,
                             std::uint64_t* stamp) {
    if (status == nullptr)
        return failure<int>(EINVAL);
    return on_device<int>(fd, [&](virtual_device& device) {
        std::uint64_t size = 0;
        {
            const context_lock lock(device.state());
            const auto* buffer = find_buffer(device.state(), handle);
            size = buffer != nullptr ? buffer->size : 0;
        }
        size = (size + host_page - 1) / host_page * host_page; // buffers are whole pages
        if (!known_interrupt(device, id) || size == 0 || offset >= size / 8)
            return failure<int>(EINVAL);
        void* view = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(handle));
        if (view == MAP_FAILED)
            return failure<int>(EINVAL);
        const int rc = wait_for_word(device, static_cast<std::uint64_t*>(view) + offset, target, id,
                                     timeout_us, status, stamp);
        const int error = errno;
        ::munmap(view, size);
        errno = error;
        return rc;
    });
}

} // namespace
} // namespace lab::gaudi

LAB_EXPORT(int, hlthunk_command_submission, (int fd, hlthunk_cs_in* in, hlthunk_cs_out* out), (fd, in, out),
           { return submit_from_c(fd, in, out, 0); })

LAB_EXPORT(int, hlthunk_command_submission_timeout,
           (int fd, hlthunk_cs_in* in, hlthunk_cs_out* out, uint32_t timeout), (fd, in, out, timeout), {
               if (in == nullptr)
                   return failure<int>(EINVAL);
               auto timed = *in;
               timed.flags |= HL_CS_FLAGS_CUSTOM_TIMEOUT;
               return submit_from_c(fd, &timed, out, timeout);
           })

LAB_EXPORT(int, hlthunk_staged_command_submission,
           (int fd, uint64_t sequence, hlthunk_cs_in* in, hlthunk_cs_out* out), (fd, sequence, in, out),
           { return failure<int>(EPERM); })

LAB_EXPORT(int, hlthunk_staged_command_submission_timeout,
           (int fd, uint64_t sequence, hlthunk_cs_in* in, hlthunk_cs_out* out, uint32_t timeout),
           (fd, sequence, in, out, timeout), { return failure<int>(EPERM); })

LAB_EXPORT(int, hlthunk_cs_flush_pci_hbw_writes, (int fd), (fd),
           { return on_device<int>(fd, [](virtual_device&) { return 0; }); })

LAB_EXPORT(int, hlthunk_wait_for_cs, (int fd, uint64_t seq, uint64_t timeout_us, uint32_t* status),
           (fd, seq, timeout_us, status), { return wait_from_c(fd, seq, timeout_us, status, nullptr); })

LAB_EXPORT(int, hlthunk_wait_for_cs_with_timestamp,
           (int fd, uint64_t seq, uint64_t timeout_us, uint32_t* status, uint64_t* timestamp),
           (fd, seq, timeout_us, status, timestamp),
           { return wait_from_c(fd, seq, timeout_us, status, timestamp); })

// Not supported by the driver of Gaudi2 and later; on gen1 not modelled.
LAB_EXPORT(int, hlthunk_wait_for_multi_cs,
           (int fd, hlthunk_wait_multi_cs_in* in, hlthunk_wait_multi_cs_out* out), (fd, in, out),
           { return failure<int>(EPERM); })

LAB_EXPORT(int, hlthunk_wait_for_multi_cs_with_timestamp,
           (int fd, hlthunk_wait_multi_cs_in* in, hlthunk_wait_multi_cs_out* out, uint64_t* timestamp),
           (fd, in, out, timestamp), { return failure<int>(EPERM); })

LAB_EXPORT(int, hlthunk_wait_for_interrupt,
           (int fd, void* addr, uint64_t target_value, uint32_t interrupt_id, uint64_t timeout_us,
            uint32_t* status),
           (fd, addr, target_value, interrupt_id, timeout_us, status),
           { return wait_interrupt(fd, addr, target_value, interrupt_id, timeout_us, status, nullptr); })

LAB_EXPORT(int, hlthunk_wait_for_interrupt_with_timestamp,
           (int fd, void* addr, uint64_t target_value, uint32_t interrupt_id, uint64_t timeout_us,
            uint32_t* status, uint64_t* timestamp),
           (fd, addr, target_value, interrupt_id, timeout_us, status, timestamp),
           { return wait_interrupt(fd, addr, target_value, interrupt_id, timeout_us, status, timestamp); })

LAB_EXPORT(int, hlthunk_wait_for_interrupt_by_handle,
           (int fd, uint64_t cq_counters_handle, uint64_t cq_counters_offset, uint64_t target_value,
            uint32_t interrupt_id, uint64_t timeout_us, uint32_t* status),
           (fd, cq_counters_handle, cq_counters_offset, target_value, interrupt_id, timeout_us, status), {
               return wait_interrupt_by_handle(fd, cq_counters_handle, cq_counters_offset, target_value,
                                               interrupt_id, timeout_us, status, nullptr);
           })

LAB_EXPORT(int, hlthunk_wait_for_interrupt_by_handle_with_timestamp,
           (int fd, uint64_t cq_counters_handle, uint64_t cq_counters_offset, uint64_t target_value,
            uint32_t interrupt_id, uint64_t timeout_us, uint32_t* status, uint64_t* timestamp),
           (fd, cq_counters_handle, cq_counters_offset, target_value, interrupt_id, timeout_us, status,
            timestamp),
           {
               return wait_interrupt_by_handle(fd, cq_counters_handle, cq_counters_offset, target_value,
                                               interrupt_id, timeout_us, status, timestamp);
           })

LAB_EXPORT(int, hlthunk_notifier_create, (int fd), (fd), {
    bool is_control = false;
    auto* device = process::self().find(fd, &is_control);
    if (device == nullptr)
        return failure<int>(errno);
    if (is_control)
        return failure<int>(EOPNOTSUPP);
    const int handle = create_notifier(*device);
    return handle < 0 ? failure<int>(-handle) : handle;
})

LAB_EXPORT(int, hlthunk_notifier_release, (int fd, int handle), (fd, handle), {
    return on_device<int>(
        fd,
        [&](virtual_device& device) {
            const int rc = release_notifier(device, handle);
            return rc < 0 ? failure<int>(-rc) : 0;
        },
        true);
})

LAB_EXPORT(int, hlthunk_notifier_recv,
           (int fd, int handle, uint64_t* notifier_events, uint64_t* notifier_cnt, uint32_t flags,
            uint32_t timeout),
           (fd, handle, notifier_events, notifier_cnt, flags, timeout), {
               if (notifier_events == nullptr || notifier_cnt == nullptr)
                   return failure<int>(EINVAL);
               *notifier_cnt = 0;
               pollfd waited{handle, POLLIN, 0};
               const int ready = short_result_wanted() ? 0 : ::poll(&waited, 1, static_cast<int>(timeout));
               if (ready < 0)
                   return failure<int>(errno);
               if (ready == 0)
                   return 0;
               std::uint64_t count = 0;
               if (::read(handle, &count, sizeof(count)) != sizeof(count))
                   return -1;
               return on_device<int>(
                   fd,
                   [&](virtual_device& device) {
                       *notifier_events = take_events(device);
                       *notifier_cnt = count;
                       return 0;
                   },
                   true);
           })

LAB_EXPORT(int, hlthunk_allocate_timestamp_elements, (int fd, uint32_t elements_num, uint64_t* handle),
           (fd, elements_num, handle), {
               if (handle == nullptr)
                   return failure<int>(EINVAL);
               return on_device<int>(fd, [&](virtual_device& device) {
                   const auto buffer = create_buffer(device, elements_num * sizeof(std::uint64_t), false);
                   *handle = buffer.value_or(0);
                   return buffer ? 0 : failure<int>(buffer.error());
               });
           })

LAB_EXPORT(int, hlthunk_register_timestamp_interrupt,
           (int fd, uint32_t interrupt_id, uint64_t cq_counters_handle, uint64_t cq_counters_offset,
            uint64_t target_value, uint64_t timestamps_handle, uint64_t timestamps_offset),
           (fd, interrupt_id, cq_counters_handle, cq_counters_offset, target_value, timestamps_handle,
            timestamps_offset),
           {
               return on_device<int>(fd, [&](virtual_device& device) {
                   if (!known_interrupt(device, interrupt_id))
                       return failure<int>(EINVAL);
                   return outcome_of<int>(
                       request_timestamp(device, {cq_counters_handle, cq_counters_offset, target_value,
                                                  timestamps_handle, timestamps_offset, 0}));
               });
           })

// Of the debug operations the lab supports only switching the debug mode on and off.
LAB_EXPORT(int, hlthunk_debug, (int fd, hl_debug_args* debug), (fd, debug), {
    enum { set_mode = 7 };
    if (debug == nullptr)
        return failure<int>(EINVAL);
    return on_device<int>(fd,
                          [&](virtual_device&) { return debug->op == set_mode ? 0 : failure<int>(EINVAL); });
})

// For the virtual SynapseAI: what the device's schedulers do, which no call of hl-thunk reaches.
extern "C" [[gnu::visibility("default")]] int gaudi_lab_scheduler_copy(int fd, uint64_t source,
                                                                       uint64_t target, uint64_t size) {
    using namespace lab::gaudi;
    auto* const device = process::self().find(fd);
    return device != nullptr && scheduler_copy(*device, source, target, size) ? 0 : -EIO;
}

// `value`: one element of `width` bytes, of which there are `count`.
extern "C" [[gnu::visibility("default")]] int
gaudi_lab_scheduler_fill(int fd, uint64_t target, uint64_t count, const void* value, uint32_t width) {
    using namespace lab::gaudi;
    auto* const device = process::self().find(fd);
    if (device == nullptr || (width != 1 && width != 2 && width != 4))
        return -EINVAL;
    std::array<unsigned char, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); i += width)
        std::memcpy(bytes.data() + i, value, width);
    std::uint64_t pattern = 0;
    std::memcpy(&pattern, bytes.data(), sizeof(pattern));
    return scheduler_fill(*device, target, count * width, pattern) ? 0 : -EIO;
}
