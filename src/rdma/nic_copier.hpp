// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>

#include "src/rdma/queue_pair.hpp"

#include <optional>
#include <vector>

namespace gaudi {

// Copies between two registered places by a NIC that sends to itself: no CPU, no engine of a device. They
// land in the order they were started. The far place is registered in the NIC's loopback domain, which no
// peer's queue pair can reach; the near one in the connections' domain, with local rights. For one thread at
// a time.
class nic_copier {
public:
    // errc::dmabuf_unsupported, connection_broken.
    static result<std::unique_ptr<nic_copier>> make(const std::shared_ptr<nic>& opened);
    explicit nic_copier(std::shared_ptr<nic> opened) : opened_nic_(std::move(opened)) {}
    ~nic_copier();
    nic_copier(const nic_copier&) = delete;
    nic_copier& operator=(const nic_copier&) = delete;

    struct region {
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        bool device = false; // memory of a device: bytes are pushed to it before the copy counts as landed
    };
    // The number of the copy. `write`: from near to far, else the other way; `near` by its local key, `far`
    // by its remote one. errc::too_many_operations: poll, and try again.
    result<std::uint64_t> start(bool write, region local, region remote, std::uint64_t length);
    // Up to which number they have landed.
    std::uint64_t poll();
    // One copy; it has landed when this returns.
    result<void> carry_out(bool write, region local, region remote, std::uint64_t length);
    // Nothing that was started lands any more.
    void end(error why);
    // Why none lands any more, or nothing.
    [[nodiscard]] const std::optional<error>& broken() const { return broken_; }
    [[nodiscard]] const std::shared_ptr<nic>& opened_nic() const { return opened_nic_; }

private:
    result<void> connect();

    // Order of members is order of tear-down, last first.
    std::shared_ptr<nic> opened_nic_;
    queue_pair local_, remote_;
    // Where the transfers of one byte end that push what was written before them to its place.
    std::byte local_byte_[64] = {}, remote_byte_[64] = {};
    mr_handle local_region_, remote_region_;
    unsigned posted_ = 0; // requests on the queue
    std::uint64_t started_ = 0, landed_ = 0;
    std::optional<error> broken_;
    std::vector<ibv_send_wr> requests_; // of the copy that is being posted: room that is kept
    std::vector<ibv_sge> entries_;
};

} // namespace gaudi
