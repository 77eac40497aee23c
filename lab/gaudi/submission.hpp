// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "abi/hlthunk.h"
#include "lab/gaudi/memory.hpp"
#include "lab/gaudi/queue_worker.hpp"

#include <span>

namespace lab::gaudi {

// Submission and waiting, by the rules of the command-submission and wait ioctls.
answer<std::uint64_t> submit(virtual_device& device, int fd, const hlthunk_cs_in& in,
                             std::uint32_t timeout_s);

struct wait_result {
    std::uint32_t status = HL_WAIT_CS_STATUS_COMPLETED;
    std::uint64_t finished_ns = 0;
};

// EINVAL: not issued yet, ETIMEDOUT, EIO: aborted, EBUSY: the device waits to be closed. BUSY is no error.
answer<wait_result> wait_for(virtual_device& device, std::uint64_t sequence, std::uint64_t timeout_us);

// Copies and fills by the device's own schedulers, without a submission. False: the device has failed.
bool scheduler_copy(virtual_device& device, std::uint64_t source, std::uint64_t destination,
                    std::uint64_t size);
bool scheduler_fill(virtual_device& device, std::uint64_t destination, std::uint64_t size,
                    std::uint64_t pattern);

// How a submission ends.
void complete_submission(submission& done);
void abort_all(virtual_device& device);

// Device errors: reported to the user as events, aborted work and a reset, never as an errno of submit.
void raise_page_fault(virtual_device& device, std::uint64_t address, unsigned queue);
void raise_undefined_opcode(virtual_device& device, std::uint64_t buffer, std::uint32_t size, unsigned queue);
void raise_storage_error(virtual_device& device, int error);
void raise_timeout(virtual_device& device, std::uint64_t sequence, bool reset);
// A reset without a user error: a firmware error, or the reset action of a fault script.
void raise_reset(virtual_device& device, std::uint64_t events);

// Timestamps: elements are a command buffer; a request is served when its counter reaches the target.
answer<void> request_timestamp(virtual_device& device, const timestamp_request& wanted);
void serve_timestamps(virtual_device& device);

// Notifier: an eventfd that belongs to the caller, or -errno.
int create_notifier(virtual_device& device);
int release_notifier(virtual_device& device, int handle);
void signal_notifier(const context& state); // with the context locked
[[nodiscard]] std::uint64_t take_events(virtual_device& device);

} // namespace lab::gaudi
