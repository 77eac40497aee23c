// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/submission.hpp"

#include "lab/gaudi/packets.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace lab::gaudi {
namespace {

cs_slot& slot_of(virtual_device& device, std::uint64_t sequence) {
    return device.state().slots[sequence & (device.type.max_in_flight - 1)];
}

void changed(context& state) {
    state.completions.fetch_add(1);
    if (state.waiters.load() != 0)
        futex_wake(state.completions);
}

// Moves a pending slot to its final state; false if another thread did so first.
bool finish(virtual_device& device, std::uint64_t sequence, cs_state outcome) {
    auto& slot = slot_of(device, sequence);
    auto expected = cs_state::pending;
    if (slot.state.load() == cs_state::pending)
        slot.finished_ns.store(now_ns());
    if (slot.sequence.load() != sequence || !slot.state.compare_exchange_strong(expected, outcome))
        return false;
    device.state().in_flight.fetch_sub(1);
    changed(device.state());
    return true;
}

// Whether a queue may fetch its buffer from the address.
bool in_any_range(const personality& type, std::uint64_t address) {
    const address_range ranges[] = {{type.sram_base, type.sram_base + type.sram_size},
                                    type.dram_va,
                                    type.host_va,
                                    type.host_huge_va,
                                    {0xFFF0000000000000, 0xFFF1000000000000}};
    return std::any_of(std::begin(ranges), std::end(ranges),
                       [address](const address_range& range) { return range.contains(address); });
}

answer<job> check_user_buffer(const virtual_device& device, const hl_cs_chunk& chunk) {
    if ((chunk.cs_chunk_flags & HL_CS_CHUNK_FLAGS_USER_ALLOC_CB) == 0)
        return tl::unexpected(EINVAL);
    if (!in_any_range(device.type, chunk.cb_handle) ||
        (chunk.cb_size != 0 && !in_any_range(device.type, chunk.cb_handle + chunk.cb_size - 1)))
        return tl::unexpected(EFAULT);
    return job{nullptr, chunk.cb_handle, chunk.cb_size, false};
}

// Gen1: the driver reads the buffer and refuses packets that a user may not submit.
answer<job> check_kernel_buffer(virtual_device& device, const hl_cs_chunk& chunk) {
    if ((chunk.cs_chunk_flags & HL_CS_CHUNK_FLAGS_USER_ALLOC_CB) != 0)
        return tl::unexpected(EINVAL);
    {
        const context_lock lock(device.state());
        const auto* buffer = find_buffer(device.state(), chunk.cb_handle);
        if (buffer == nullptr || chunk.cb_size < 8 || chunk.cb_size > buffer->size)
            return tl::unexpected(EINVAL);
    }
    std::vector<unsigned char> bytes(chunk.cb_size);
    const int fd = ::open(device.node.c_str(), O_RDONLY | O_CLOEXEC);
    const auto got =
        fd < 0 ? -1 : ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(chunk.cb_handle));
    if (fd >= 0)
        ::close(fd);
    if (got != static_cast<ssize_t>(bytes.size()))
        return tl::unexpected(EFAULT);
    if (const int refused = refuse_packets_of_gen1(bytes); refused != 0)
        return tl::unexpected(refused);
    return job{nullptr, chunk.cb_handle, chunk.cb_size, true, true, std::move(bytes)};
}

struct planned {
    job work;
    std::uint32_t queue;
};

answer<std::vector<planned>> plan(virtual_device& device, std::span<const hl_cs_chunk> chunks) {
    std::vector<planned> jobs;
    for (const auto& chunk : chunks) {
        if (chunk.queue_index >= device.type.queues)
            return tl::unexpected(EINVAL);
        auto checked =
            device.type.dram_mmu ? check_user_buffer(device, chunk) : check_kernel_buffer(device, chunk);
        if (!checked)
            return tl::unexpected(checked.error());
        jobs.push_back({std::move(*checked), chunk.queue_index});
    }
    return jobs;
}

// Issues planned jobs as one submission. Blocks, as the library does, while the table of submissions is full.
answer<std::uint64_t> issue(virtual_device& device, int fd, std::vector<planned>&& jobs, std::uint32_t flags,
                            std::uint32_t timeout_s) {
    auto& state = device.state();
    for (;;) {
        const auto seen = state.completions.load();
        std::uint64_t issued = 0;
        {
            const context_lock lock(state);
            if (state.status != HL_DEVICE_STATUS_OPERATIONAL)
                return tl::unexpected(EBUSY);
            const auto sequence = state.next_sequence.load();
            auto& slot = slot_of(device, sequence);
            if (slot.state.load() != cs_state::pending) {
                for (const auto& [work, queue] : jobs)
                    if (work.kernel_buffer)
                        if (auto* buffer = find_buffer(state, work.buffer); buffer != nullptr)
                            ++buffer->in_flight;
                const auto limit_ms = (flags & HL_CS_FLAGS_CUSTOM_TIMEOUT) != 0 && timeout_s != 0
                                          ? std::uint64_t{timeout_s} * 1000
                                          : device.cs_timeout_ms();
                auto owner = std::shared_ptr<submission>(
                    new submission{device, sequence, now_ns() + limit_ms * 1000000,
                                   (flags & HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT) == 0, device.hold(fd),
                                   static_cast<std::uint32_t>(jobs.size())});
                slot.process = ::getpid();
                slot.process_start = process_start_time(slot.process);
                if (slot.keep_timestamp != 0)
                    state.kept_timestamps[state.next_kept++ % context::kept] = {slot.sequence.load(),
                                                                                slot.finished_ns.load()};
                slot.keep_timestamp = flags & HL_CS_FLAGS_TIMESTAMP;
                slot.finished_ns = 0;
                slot.sequence = sequence;
                slot.state = cs_state::pending;
                state.in_flight.fetch_add(1);
                state.submitter.store(slot.process, std::memory_order_relaxed);
                state.next_sequence = sequence + 1;
                // Under the lock: the order within a queue is the order of sequence numbers.
                for (auto& [work, queue] : jobs) {
                    work.owner = owner;
                    device.worker(queue).push(std::move(work));
                }
                issued = sequence;
            }
        }
        if (issued != 0) {
            for (const auto& job : jobs)
                device.worker(job.queue).wake();
            return issued;
        }
        state.waiters.fetch_add(1);
        futex_wait(state.completions, seen, 10000000);
        state.waiters.fetch_sub(1);
    }
}

} // namespace

answer<std::uint64_t> submit(virtual_device& device, int fd, const hlthunk_cs_in& in,
                             std::uint32_t timeout_s) {
    constexpr std::uint32_t unsupported =
        HL_CS_FLAGS_STAGED | HL_CS_FLAGS_STAGED_FIRST | HL_CS_FLAGS_STAGED_LAST;
    if (device.state().status != HL_DEVICE_STATUS_OPERATIONAL)
        return tl::unexpected(EBUSY);
    if ((in.flags & unsupported) != 0)
        return tl::unexpected(EPERM);
    if ((in.flags & (HL_CS_FLAGS_SIGNAL | HL_CS_FLAGS_WAIT | HL_CS_FLAGS_COLLECTIVE_WAIT)) != 0)
        return tl::unexpected(EINVAL);
    if (in.num_chunks_execute == 0 || in.chunks_execute == nullptr ||
        in.num_chunks_execute > HL_MAX_JOBS_PER_CS || in.num_chunks_restore > HL_MAX_JOBS_PER_CS)
        return tl::unexpected(EINVAL);
    if ((in.flags & HL_CS_FLAGS_FORCE_RESTORE) != 0 && in.num_chunks_restore != 0) {
        auto restore =
            plan(device, {static_cast<const hl_cs_chunk*>(in.chunks_restore), in.num_chunks_restore});
        if (!restore)
            return tl::unexpected(restore.error());
        const auto sequence = issue(device, fd, std::move(*restore), 0, 0);
        if (!sequence)
            return sequence;
        if (const auto done = wait_for(device, *sequence, device.cs_timeout_ms() * 1000ULL); !done)
            return tl::unexpected(done.error());
    }
    auto jobs = plan(device, {static_cast<const hl_cs_chunk*>(in.chunks_execute), in.num_chunks_execute});
    if (!jobs)
        return tl::unexpected(jobs.error());
    return issue(device, fd, std::move(*jobs), in.flags, timeout_s);
}

namespace {

// The slot was reused: the submission completed long ago. Its timestamp is kept only if it asked for one.
wait_result gone(context& state, std::uint64_t sequence) {
    const context_lock lock(state);
    for (const auto& kept : state.kept_timestamps)
        if (kept.sequence == sequence)
            return {HL_WAIT_CS_STATUS_COMPLETED, kept.finished_ns};
    return {};
}

} // namespace

answer<wait_result> wait_for(virtual_device& device, std::uint64_t sequence, std::uint64_t timeout_us) {
    constexpr std::uint64_t infinite = INT64_MAX;
    auto& state = device.state();
    if (state.watchdog != 0)
        return tl::unexpected(EBUSY);
    if (sequence == 0 || sequence >= state.next_sequence.load())
        return tl::unexpected(EINVAL);
    if (timeout_us != infinite)
        timeout_us &= 0xffffffff; // the kernel's field has 32 bits: larger values wrap
    const auto deadline = timeout_us == infinite ? ~0ULL : now_ns() + timeout_us * 1000;
    auto& slot = slot_of(device, sequence);
    bool helped = false;
    for (unsigned round = 0;; ++round) {
        const auto seen = state.completions.load();
        const auto outcome = slot.state.load();
        if (slot.sequence.load() != sequence)
            return gone(state, sequence);
        if (outcome == cs_state::completed)
            return wait_result{HL_WAIT_CS_STATUS_COMPLETED, slot.finished_ns.load()};
        if (outcome == cs_state::timed_out)
            return tl::unexpected(ETIMEDOUT);
        if (outcome == cs_state::aborted)
            return tl::unexpected(EIO);
        const auto now = now_ns();
        const bool over = now >= deadline;
        if (slot.process == ::getpid() && !(over && helped) && device.help()) {
            helped = true;
            continue;
        }
        if ((over || round % 16 == 15) && slot.process != ::getpid() &&
            process_start_time(slot.process) != slot.process_start) {
            // Its process died, and with it the threads of the queues.
            finish(device, sequence, cs_state::aborted);
            continue;
        }
        if (over && timeout_us == 0)
            ::sched_yield(); // the device may need this processor
        if (over)
            return wait_result{HL_WAIT_CS_STATUS_BUSY, 0};
        state.waiters.fetch_add(1);
        futex_wait(state.completions, seen, std::min<std::uint64_t>(deadline - now, 100000000));
        state.waiters.fetch_sub(1);
    }
}

void complete_submission(submission& done) {
    finish(done.device, done.sequence, cs_state::completed);
}

void abort_all(virtual_device& device) {
    auto& state = device.state();
    const auto next = state.next_sequence.load();
    const auto first = next > device.type.max_in_flight ? next - device.type.max_in_flight : 1;
    for (auto sequence = first; sequence < next; ++sequence)
        finish(device, sequence, cs_state::aborted);
    state.sync_changes.fetch_add(1);
    futex_wake(state.sync_changes);
    changed(state);
}

void raise_timeout(virtual_device& device, std::uint64_t sequence, bool reset) {
    if (!finish(device, sequence, cs_state::timed_out))
        return;
    {
        const context_lock lock(device.state());
        device.state().last.cs_timeout_ns = static_cast<std::int64_t>(now_ns());
        device.state().last.timed_out_sequence = sequence;
        if (!reset) {
            device.state().events |= HL_NOTIFIER_EVENT_CS_TIMEOUT;
            signal_notifier(device.state());
        }
    }
    if (reset)
        raise_reset(device, HL_NOTIFIER_EVENT_CS_TIMEOUT);
}

} // namespace lab::gaudi
