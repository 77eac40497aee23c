// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/gaudi/personality.hpp"
#include "lab/os/system.hpp"

#include <atomic>
#include <cstdint>
#include <pthread.h>

namespace lab::gaudi {

// The open context of one virtual device: the state that a kernel driver would keep. It is in shared memory
// because a context follows its open file description into other processes (dup, fork, SCM_RIGHTS). `mutex`,
// taken through context_lock, guards everything but the atomics. Each open wipes it and changes `epoch`.

enum class mapping_kind : std::uint32_t { device, host, command_buffer, imported };

// Sorted by address; never overlapping (whole pages counted).
struct mapping {
    std::uint64_t address; // exactly what map returned, with the page offset of host memory
    std::uint64_t size;
    std::uint64_t handle; // allocation, command buffer id, or import id
    std::uint64_t host_address;
    std::uint64_t process_start;
    std::int32_t process;
    mapping_kind kind;

    [[nodiscard]] std::uint64_t page_begin() const { return address & ~(host_page - 1); }
    [[nodiscard]] std::uint64_t page_end() const {
        return (address + size + host_page - 1) & ~(host_page - 1);
    }
};

struct allocation {
    std::uint64_t handle; // 0: free slot
    std::uint64_t size;   // rounded
    std::uint32_t first_page;
    std::uint32_t mappings;
};

struct command_buffer {
    std::uint64_t id; // page number in the handle; 0: free slot
    std::uint64_t size;
    std::uint32_t in_flight;
    std::uint32_t destroyed; // waits until its last mmap is unmapped
    std::uint64_t device_address;
};

struct export_record {
    std::uint64_t id; // name of its file; 0: free slot
    std::uint64_t mapping_address;
};

struct import_record {
    std::uint64_t id;
    std::int32_t process; // this process holds the dup of the DMA-BUF
    std::int32_t dup_fd;
    std::uint64_t hbm_size;
    std::uint32_t range_count;
    char hbm_path[512];
    struct {
        std::uint64_t hbm_offset, length;
    } ranges[256];
};

enum class cs_state : std::uint32_t { none, pending, completed, aborted, timed_out };

struct cs_slot {
    std::atomic<std::uint64_t> sequence;
    std::atomic<cs_state> state;
    std::uint32_t keep_timestamp;
    std::int32_t process;
    std::uint64_t process_start;
    std::atomic<std::uint64_t> finished_ns;
};

struct monitor {
    std::uint32_t payload_low, payload_high, payload_data, arm, config, status;
};

struct sync_manager {
    static constexpr unsigned sobs = 8192, monitors = 2048;
    std::uint32_t sob[sobs];
    monitor monitor_of[monitors];
    std::uint32_t armed; // how many monitors are armed: most writes find none
};

// The state of a command processor between packets.
struct processor {
    std::uint32_t predicates; // bit i: predicate i; number 0 is always true
    std::uint32_t scalars[4];
};

// "Store the time in that element when this counter reaches the target."
struct timestamp_request {
    std::uint64_t counter_handle, counter_offset, target, stamp_handle, stamp_offset;
    std::uint32_t wanted;
};

struct kept_timestamp {
    std::uint64_t sequence, finished_ns;
};

struct last_events {
    std::uint64_t page_fault_address, razwi_address, timed_out_sequence, undefined_opcode_address;
    std::int64_t page_fault_ns, razwi_ns, cs_timeout_ns, undefined_opcode_ns;
    std::uint32_t page_fault_engine, undefined_opcode_engine, undefined_opcode_stream, undefined_opcode_size;
};

struct context {
    static constexpr std::uint64_t magic_value = 0x31747865746e6f63;
    static constexpr unsigned max_pages = 4096, max_mappings = 65536, max_buffers = 16384,
                              max_exports = 16384, max_imports = 64, max_slots = 16384, engines = 40,
                              fence_streams = 5, fences = 4, cq_registers = 0x240, max_requests = 1024,
                              kept = 256;

    // The first page belongs to the device and is not wiped: other processes may be waiting for the mutex
    // when a context ends.
    std::uint64_t magic;
    std::uint64_t epoch;
    pthread_mutex_t mutex;
    // Set while the tables are inconsistent: if the process that set it dies, that is a device fault.
    std::atomic<std::uint32_t> mutating;
    std::atomic<std::uint32_t> resetting;
    std::uint64_t open_count, last_open_ms;
    std::uint32_t hard_resets, soft_resets;

    // The rest belongs to the context and is wiped. The second page, with all that is read without an open
    // context, has storage like the first; the tables after it have storage only while a context is open.
    alignas(4096) std::atomic<std::uint32_t> status; // enum hl_device_status
    std::atomic<std::uint32_t> watchdog;             // a fault happened and the user was asked to close
    std::uint64_t opened_ns;
    std::int32_t opener;
    std::int32_t notifier_process;
    std::int32_t notifier_fd;
    std::uint64_t opener_start;
    std::uint64_t notifier_process_start;
    std::uint64_t events;
    last_events last;
    std::uint64_t next_handle, next_export, next_import, next_buffer_id;
    std::uint64_t bytes_accounted; // without a DRAM MMU: the bytes that the user reports as taken
    std::uint32_t pages_used, allocation_count, mapping_count, export_count, buffer_count;
    alignas(64) std::atomic<std::uint64_t> next_sequence;
    std::atomic<std::uint32_t> in_flight;
    std::atomic<std::int32_t> submitter; // the process of the last submission

    // Memory.
    alignas(4096) std::uint32_t page_next[max_pages]; // chain of an allocation's pages; max_pages ends it
    std::uint8_t page_taken[max_pages];
    allocation allocations[max_pages];
    mapping mappings[max_mappings];
    export_record exports[max_exports];
    import_record imports[max_imports];

    // Command buffers and submission.
    command_buffer buffers[max_buffers];
    std::atomic<std::uint32_t> completions; // futex: bumped at each change that a waiter may wait for
    std::atomic<std::uint32_t> waiters;
    kept_timestamp kept_timestamps[kept]; // of submissions that asked for one: they outlive their slot
    std::uint32_t next_kept;
    cs_slot slots[max_slots];

    // Engines.
    std::atomic<std::uint32_t> sync_changes; // futex: bumped when a fence counter changed or work was aborted
    std::uint32_t fence[engines][fence_streams][fences];
    processor processors[engines][fence_streams];
    std::uint32_t cq_register[cq_registers]; // completion queues of the sync manager, from 0x411E050
    timestamp_request requests[max_requests];
    std::atomic<std::uint32_t> requests_open;
    std::atomic<std::uint32_t>
        interrupts[256]; // futexes: bumped when an engine rings the doorbell with that number
    sync_manager sync;
};

// Locks a context. If a holder died half-way, the device needs a reset; the lock does not stay blocked.
class context_lock {
public:
    explicit context_lock(context& locked);
    ~context_lock();
    context_lock(const context_lock&) = delete;
    context_lock& operator=(const context_lock&) = delete;

private:
    context& context_;
};

// Marks the tables as inconsistent for its lifetime.
class mutation {
public:
    explicit mutation(context& changed) : context_(changed) {
        context_.mutating.store(1, std::memory_order_relaxed);
    }
    ~mutation() { context_.mutating.store(0, std::memory_order_relaxed); }
    mutation(const mutation&) = delete;
    mutation& operator=(const mutation&) = delete;

private:
    context& context_;
};

// Initialises the mutex of a new file, once. The caller holds a lock against concurrent initialisation.
void initialise(context& fresh);
// Resets a context to its state right after open; what belongs to the device is kept.
void wipe(context& wiped);

[[nodiscard]] std::uint64_t process_start_time(std::int32_t process); // 0: no such process

} // namespace lab::gaudi
