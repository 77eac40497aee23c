// SPDX-License-Identifier: BSD-3-Clause
// Device errors and how they are reported to the user.
#include "lab/gaudi/submission.hpp"
#include "lab/world/storage.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lab::gaudi {

void signal_notifier(const context& state) {
    if (state.notifier_fd < 0)
        return;
    const std::uint64_t one = 1;
    int fd = state.notifier_fd;
    if (state.notifier_process != ::getpid()) {
        if (process_start_time(state.notifier_process) != state.notifier_process_start)
            return;
        const int process = static_cast<int>(::syscall(SYS_pidfd_open, state.notifier_process, 0));
        fd = process < 0 ? -1 : static_cast<int>(::syscall(SYS_pidfd_getfd, process, state.notifier_fd, 0));
        if (process >= 0)
            ::close(process);
    }
    if (fd >= 0 && ::write(fd, &one, sizeof(one)) != sizeof(one))
        std::fprintf(stderr, "gaudi-lab: notifier not signalled: %s\n", std::strerror(errno));
    if (fd >= 0 && fd != state.notifier_fd)
        ::close(fd);
}

namespace {

// If the user does not close the device after an error, the driver kills the process (SIGKILL) after a grace
// period.
void kill_opener_later(virtual_device& device, unsigned grace_ms) {
    const auto epoch = device.state().epoch;
    const auto opener = device.state().opener;
    const auto opener_start = device.state().opener_start;
    const auto node = device.node.string();
    const auto grace = std::chrono::milliseconds(grace_ms);
    const auto* state = &device.state();
    std::thread([=] {
        std::this_thread::sleep_for(grace);
        const int fd = ::open(node.c_str(), O_RDWR | O_CLOEXEC);
        const bool still_open = fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0;
        if (fd >= 0)
            ::close(fd);
        if (!still_open || state->epoch != epoch || process_start_time(opener) != opener_start)
            return;
        std::fprintf(
            stderr,
            "gaudi-lab: device %s had an error and was not closed in time: the driver kills process %d\n",
            node.c_str(), opener);
        ::kill(opener, SIGKILL);
    }).detach();
}

void fail_device(virtual_device& device, std::uint64_t events) {
    auto& state = device.state();
    bool notified = false;
    {
        const context_lock lock(state);
        if (state.status != HL_DEVICE_STATUS_OPERATIONAL || state.watchdog != 0)
            return; // already failing: the first error counts
        notified = state.notifier_fd >= 0;
        state.hard_resets++;
        state.events |=
            events | (notified ? HL_NOTIFIER_EVENT_DEVICE_UNAVAILABLE : 0) | HL_NOTIFIER_EVENT_DEVICE_RESET;
        state.status = notified ? HL_DEVICE_STATUS_NEEDS_RESET : HL_DEVICE_STATUS_IN_RESET;
        // The order matters: waiters that already wait get EIO, later ones EBUSY.
        abort_all(device);
        state.watchdog = notified ? 1 : 0;
        signal_notifier(state);
    }
    kill_opener_later(device, notified ? device.description.watchdog_ms : device.description.reset_grace_ms);
}

std::int64_t stamp() {
    return static_cast<std::int64_t>(now_ns());
}

} // namespace

void raise_page_fault(virtual_device& device, std::uint64_t address, unsigned queue) {
    const auto& type = device.type;
    const bool behind_mmu = type.dram_va.contains(address) || type.host_va.contains(address) ||
                            type.host_huge_va.contains(address);
    {
        const context_lock lock(device.state());
        auto& last = device.state().last;
        if (behind_mmu) {
            last.page_fault_ns = stamp();
            last.page_fault_address = address;
            last.page_fault_engine = queue;
        } else {
            last.razwi_ns = stamp();
            last.razwi_address = address;
        }
    }
    fail_device(device, behind_mmu ? HL_NOTIFIER_EVENT_PAGE_FAULT : HL_NOTIFIER_EVENT_RAZWI);
}

void raise_undefined_opcode(virtual_device& device, std::uint64_t buffer, std::uint32_t size,
                            unsigned queue) {
    {
        const context_lock lock(device.state());
        auto& last = device.state().last;
        last.undefined_opcode_ns = stamp();
        last.undefined_opcode_address = buffer;
        last.undefined_opcode_size = size;
        last.undefined_opcode_engine = queue / 4;
        last.undefined_opcode_stream = queue % 4;
    }
    fail_device(device, HL_NOTIFIER_EVENT_UNDEFINED_OPCODE);
}

void raise_storage_error(virtual_device& device, int error) {
    std::fprintf(
        stderr, "gaudi-lab: no storage for the virtual HBM in %s: %s. The device reports a hardware error.\n",
        device.directory.c_str(), explain_no_storage(device.directory, error).c_str());
    fail_device(device, HL_NOTIFIER_EVENT_GENERAL_HW_ERR);
}

void raise_reset(virtual_device& device, std::uint64_t events) {
    fail_device(device, events);
}

int create_notifier(virtual_device& device) {
    auto& state = device.state();
    const int handle = ::eventfd(0, EFD_CLOEXEC);
    if (handle < 0)
        return -errno;
    const context_lock lock(state);
    if (state.notifier_fd >= 0) {
        ::close(handle);
        return -EINVAL;
    }
    state.notifier_fd = handle;
    state.notifier_process = ::getpid();
    state.notifier_process_start = process_start_time(state.notifier_process);
    return handle;
}

int release_notifier(virtual_device& device, int handle) {
    auto& state = device.state();
    const context_lock lock(state);
    if (state.notifier_fd < 0)
        return -EINVAL;
    state.notifier_fd = -1;
    ::close(handle);
    return 0;
}

std::uint64_t take_events(virtual_device& device) {
    const context_lock lock(device.state());
    const auto events = device.state().events;
    device.state().events = 0;
    return events;
}

} // namespace lab::gaudi
