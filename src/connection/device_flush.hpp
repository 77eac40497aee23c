// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/operation.hpp"
#include "src/rdma/nic_copier.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace gaudi {

// A byte of a device's memory that the NIC can read.
struct flush_target {
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    // Keeps the key valid, where no pending operation does.
    std::shared_ptr<const registration> held;
};

// On PCIe the bytes that a NIC writes to device memory and the completion that it writes to host memory take
// different ways: the completion may be seen first (gotcha V15). A read of the device's memory by the same
// NIC pushes the bytes ahead of it. Completed parts of operations wait here for such a read; one read serves
// all parts that completed before it was posted.
class device_flush {
public:
    device_flush(std::shared_ptr<nic> opened, const connection_options& options, operation_table& operations)
        : opened_nic_(std::move(opened)), options_(options), operations_(operations) {}

    // Before the NIC is made to write device memory: makes the queue pairs. errc::connection_broken,
    // descriptors_exhausted and others: the NIC has none left.
    result<void> prepare();
    // Keeps a completed part until the memory of the targets added since has been read. False: there is no
    // target, or no flush is wanted, and the part is the caller's to complete.
    [[nodiscard]] bool hold(std::uint32_t slot, std::uint64_t bytes);
    void add(flush_target target);
    // Posts a read for what was added, one at a time, and completes the parts whose read has completed;
    // returns how many.
    result<std::size_t> progress();
    [[nodiscard]] bool busy() const { return !waiting_.empty() || !in_flight_.empty(); }
    // What was added so far has a number, and is done when a read for it has completed.
    [[nodiscard]] std::uint64_t last_added() const {
        return batches_done_ + (in_flight_.empty() ? 0 : 1) + (waiting_.empty() ? 0 : 1);
    }
    [[nodiscard]] bool done(std::uint64_t number) const { return batches_done_ >= number; }
    // The NIC accesses no memory for this after it returns. Parts that wait are never completed.
    void end();

private:
    result<void> post();
    [[nodiscard]] result<void> check_time();

    struct part {
        std::uint32_t slot = 0;
        std::uint64_t bytes = 0;
    };
    struct batch {
        std::vector<part> parts;
        std::vector<flush_target> targets;
        [[nodiscard]] bool empty() const { return parts.empty() && targets.empty(); }
        void clear() {
            parts.clear();
            targets.clear();
        }
    };

    const std::shared_ptr<nic> opened_nic_;
    const connection_options options_;
    operation_table& operations_;
    std::unique_ptr<nic_copier> reads_;
    batch waiting_, in_flight_;
    std::size_t posted_ = 0;      // targets in flight whose read is posted
    std::uint64_t last_read_ = 0; // the number of the last of these reads
    std::uint64_t batches_done_ = 0;
    unsigned polls_ = 0; // of the batch in flight
    std::optional<std::chrono::steady_clock::time_point>
        deadline_; // of the batch in flight, once it takes long
};

} // namespace gaudi
