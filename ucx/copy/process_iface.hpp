// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ucx/base/iface.hpp"
#include "ucx/copy/copy_md.hpp"

#include <atomic>
#include <functional>

namespace gaudi_ucx {

// What a transport of copies within this process is configured by.
struct process_transport {
    const char* copies_are; // the name of its copies in the log
    gaudi::copier_options options = {};
    gaudi::copy_hints hints = {};
    std::size_t max_short = 0, max_bcopy = 0, max_zcopy = SIZE_MAX;
    std::size_t in_flight = SIZE_MAX; // outstanding copies beyond which operations return NO_RESOURCE
    bool within_host = false;         // copies although neither end is device memory
    double bandwidth = 0, latency = 0, overhead = 0;
    // In place of the three above, where the operands are known.
    std::function<void(uct_perf_attr_t&)> estimate_perf = {};
    // Where bytes are counted, by kind of operation; and those of any kind that a NIC copied, or nullptr.
    std::atomic<std::uint64_t>*short_bytes = nullptr, *bcopy_bytes = nullptr, *zcopy_bytes = nullptr,
    *loopback_bytes = nullptr;
};

// Copies within this process, of gaudi_cpy and of gaudi_dma.
class process_iface final : public gaudi_iface {
public:
    process_iface(uct_gaudi_copy_md_t& md, process_transport transport);

    std::vector<std::byte> iface_address() override { return id_.bytes; }
    const char* unreachable_reason(const void*, const void* iface) override {
        return id_.unreachable_reason(iface);
    }
    void query(uct_iface_attr_t& attr) override;
    void estimate_perf(uct_perf_attr_t& attr) override;
    [[nodiscard]] std::size_t limit_of(kind which) const override {
        return which == kind::short_copy ? transport_.max_short : transport_.max_bcopy;
    }
    ucs_status_t ep_zcopy(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey,
                          bool put, uct_completion_t* comp) override;
    ucs_status_t ep_copy(kind which, void* buffer, std::size_t length, std::uint64_t remote, uct_rkey_t rkey,
                         bool put) override;
    ucs_status_t pending_add(uct_ep_h ep, uct_pending_req_t* request) override;

private:
    struct copied_range {
        std::uint64_t to = 0, from = 0;
        std::size_t length = 0;
        const uct_iov_t* pinned = nullptr; // registered host memory, one of the two ends, to be kept pinned
    };
    gaudi::result<gaudi::copy_ticket> start(const copied_range& range, bool can_retry);
    gaudi::result<gaudi::copy_ticket> start_once(const copied_range& range);
    gaudi::result<gaudi::copy_ticket> locate_and_start(const copied_range& range);
    [[nodiscard]] bool synapse_reopened(const copied_range& range);
    void completed(const gaudi::copy_ticket& copy) override { count(copy, transport_.zcopy_bytes); }
    void count(const gaudi::copy_ticket& copy, std::atomic<std::uint64_t>* by_kind) const;
    [[nodiscard]] bool has_room() { return outstanding().running() < transport_.in_flight; }

    uct_gaudi_copy_md_t& md_;
    const process_transport transport_;
    gaudi::copy_policy policy_;
    interface_id id_;
    bool nic_full_ = false; // the queue of a NIC had no room for the last copy
};

} // namespace gaudi_ucx
