// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>

#include "src/rdma/queue_pair.hpp"

#include <optional>
#include <vector>

namespace gaudi {

// Copies between two registered places by a NIC that sends to itself: no CPU and no copy engine of a device.
// Copies complete in the order they were started. The remote place is registered in the NIC's loopback
// domain, which no peer's queue pair can reach; the local one in the connections' domain, with local rights.
// For one thread at a time.
class nic_copier {
public:
    // Timeout and retries are those of connection_options; only the NIC itself has to answer.
    struct queue_limits {
        unsigned depth = 256; // requests outstanding at the NIC
        unsigned timeout = 14, retries = 7;
    };
    // errc::dmabuf_unsupported, connection_broken.
    static result<std::unique_ptr<nic_copier>> make(const std::shared_ptr<nic>& opened);
    static result<std::unique_ptr<nic_copier>> make(const std::shared_ptr<nic>& opened,
                                                    const queue_limits& limits);
    explicit nic_copier(std::shared_ptr<nic> opened) : opened_nic_(std::move(opened)) {}
    ~nic_copier();
    nic_copier(const nic_copier&) = delete;
    nic_copier& operator=(const nic_copier&) = delete;

    struct region {
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        // Device memory: the copy completes only after its bytes were pushed to the device.
        bool device = false;
    };
    // Starts a copy and returns its number. `write`: from `local` to `remote`, else from `remote` to `local`;
    // `local` is addressed by its local key, `remote` by its remote key. errc::too_many_operations: poll, and
    // try again.
    result<std::uint64_t> start(bool write, region local, region remote, std::uint64_t length);
    // As start(): reads one byte of device memory, after which the bytes that this NIC wrote to the device
    // before are in its memory.
    result<std::uint64_t> start_flush(region local);
    // Polls; returns the number of the last copy that has completed.
    std::uint64_t poll();
    // Starts one copy and waits for it.
    result<void> carry_out(bool write, region local, region remote, std::uint64_t length);
    // Destroys the queue pair: no copy that was started moves data after this.
    void end(error why);
    // Why no copy can complete any more; empty while the copier works.
    [[nodiscard]] const std::optional<error>& broken() const { return broken_; }

private:
    result<void> connect(const queue_limits& limits);

    // Members are destroyed in reverse order: this order is required.
    std::shared_ptr<nic> opened_nic_;
    queue_pair local_, remote_;
    // Targets of the one-byte transfers that push earlier writes to the device.
    std::byte local_byte_[64] = {}, remote_byte_[64] = {};
    mr_handle local_region_, remote_region_;
    unsigned posted_ = 0; // outstanding requests
    std::uint64_t started_ = 0, completed_ = 0;
    std::optional<error> broken_;
    std::vector<ibv_send_wr> requests_; // of the copy that is being posted; kept to avoid allocations
    std::vector<ibv_sge> entries_;
};

} // namespace gaudi
