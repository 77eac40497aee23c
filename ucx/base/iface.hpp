// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>

#include "ucx/base/module.hpp"
#include "ucx/base/operations.hpp"

#include <memory>
#include <vector>

namespace gaudi_ucx {

// Endpoints whose peer is gone. They are reported to UCX in the next progress: its error handlers must not
// run inside one of its own calls.
class endpoint_failures {
public:
    struct failure {
        uct_ep_h ep;
        ucs_status_t status;
    };
    void add(uct_ep_h ep, ucs_status_t status) { failures_.push_back({ep, status}); }
    [[nodiscard]] bool empty() const { return failures_.empty(); }
    [[nodiscard]] failure take() {
        const auto first = failures_.front();
        forget(first.ep); // reported only once
        return first;
    }
    void forget(uct_ep_h ep) {
        std::erase_if(failures_, [&](const failure& each) { return each.ep == ep; });
    }

private:
    std::vector<failure> failures_;
};

// An interface, as UCX calls it: its operations are copies of one copier. Transports derive from this class;
// iface.cpp and ep.cpp fill UCX's tables, the same for all transports. For one thread at a time, except
// drop_lost().
//
// It has more than thirty functions because UCX's table of an interface has about as many.
class gaudi_iface : public loss_listener {
public:
    // `copies_are`: the name of its copies in the log. `after_failure`: what a failed copy may mean for other
    // operations; logged once.
    gaudi_iface(uct_gaudi_module& module, const char* copies_are, const char* after_failure,
                const gaudi::copier_options& options);
    virtual ~gaudi_iface();
    gaudi_iface(const gaudi_iface&) = delete;
    gaudi_iface& operator=(const gaudi_iface&) = delete;

    [[nodiscard]] uct_gaudi_module& module() const { return module_; }

    // Limits and estimates. Flags, addresses and the requirements of zero-copy are set before the call.
    virtual void query(uct_iface_attr_t& attr) = 0;
    virtual void estimate_perf(uct_perf_attr_t& attr) = 0;
    // The addresses by which a peer reaches the interface: of the machine, and of the process.
    [[nodiscard]] virtual std::vector<std::byte> device_address() { return {}; }
    [[nodiscard]] virtual std::vector<std::byte> iface_address() = 0;
    // Why a peer cannot be reached, or nullptr.
    [[nodiscard]] virtual const char* unreachable_reason(const void* device, const void* iface) = 0;
    // An error, logged, where the settings of the two sides contradict each other; no endpoint is made then.
    [[nodiscard]] virtual ucs_status_t check_peer_settings(const void*) { return UCS_OK; }
    // Whether the peer of an endpoint is alive, as far as is known.
    [[nodiscard]] virtual ucs_status_t ep_check(const std::vector<std::byte>&) { return UCS_OK; }

    // Starts a copy: UCS_OK, UCS_INPROGRESS, UCS_ERR_NO_RESOURCE or an error.
    virtual ucs_status_t ep_zcopy(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey,
                                  bool put, uct_completion_t* comp) = 0;
    // Short and buffered copies, which have completed when the call returns. A limit of 0: not supported.
    enum class kind { short_copy, bcopy };
    [[nodiscard]] virtual std::size_t limit_of(kind) const { return 0; }
    virtual ucs_status_t ep_copy(kind, void*, std::size_t, std::uint64_t, uct_rkey_t, bool) {
        return UCS_ERR_UNSUPPORTED;
    }
    // UCS_ERR_BUSY: there is room, retry the operation now.
    virtual ucs_status_t pending_add(uct_ep_h ep, uct_pending_req_t* request);

    using operation_list = operations<gaudi::copy_ticket>;
    [[nodiscard]] operation_list& outstanding() { return operations_; }
    [[nodiscard]] endpoint_failures& failures() { return failures_; }
    unsigned progress();
    // A descriptor that becomes readable when progress() has something to do, after arm() returned UCS_OK.
    ucs_status_t event_fd(int* fd);
    ucs_status_t arm();
    // All operations have completed when this returns.
    void drain();
    void drop_lost() override { copies_.drop_lost(); }
    // Buffer in which buffered copies are packed and unpacked.
    [[nodiscard]] std::byte* bounce() {
        bounce_.resize(limit_of(kind::bcopy));
        return bounce_.data();
    }

protected:
    // An operation has completed without an error.
    virtual void completed(const gaudi::copy_ticket& copy) { (void)copy; }

    [[nodiscard]] gaudi::copier& copies() { return copies_; }
    // Waits for the operations before a fence, if there is one; progress reports their results.
    void keep_fence();
    void wait_for_all();
    // Marks the endpoint of a peer that is gone as failed. A silent peer is not marked: it may answer again.
    void note_failure(uct_ep_h ep, const gaudi::error& why);
    // Logs why a copy was not started, and returns its status.
    ucs_status_t refused(const gaudi::error& why, std::size_t length, std::uint64_t to, std::uint64_t from);
    void log_consequence();

private:
    ucs_log_level_t level_of_failure(const gaudi::error& why);
    // Releases lost devices in the whole module: a program that sees the error can open the device again only
    // when nothing in the process holds it.
    void announce_loss();
    ucs_status_t outcome_of(gaudi::copy_ticket& ticket, uct_ep_h ep);

    uct_gaudi_module& module_;
    const char* const copies_are_;
    const char* after_failure_; // nullptr once it is logged
    gaudi::copier copies_;
    operation_list operations_; // declared after the copier: destroyed first
    std::vector<std::byte> bounce_;
    endpoint_failures failures_;
    bool loss_logged_ = false, loss_seen_ = false;
};

// The address of an interface that reaches only itself: device addresses are valid in this process alone.
struct interface_id {
    std::vector<std::byte> bytes = std::vector<std::byte>(8);

    interface_id();
    [[nodiscard]] const char* unreachable_reason(const void* iface) const;
};

struct uct_gaudi_iface_t {
    uct_base_iface_t super; // UCX's part, which must come first
    std::unique_ptr<gaudi_iface> self;
};
inline gaudi_iface& iface_of(uct_iface_h iface) {
    return *reinterpret_cast<uct_gaudi_iface_t*>(iface)->self;
}

ucs_status_t open_iface(std::unique_ptr<gaudi_iface> made, uct_md_h md, uct_worker_h worker,
                        const uct_iface_params_t* params, const uct_iface_config_t* config,
                        uct_iface_h* iface_p);
// Fills the endpoint functions of the table.
void fill_ep_ops(uct_iface_ops_t& ops);

// Whether some NIC could access device memory; determined once.
[[nodiscard]] bool any_nic();
// Fills bandwidth, latency and overhead for estimate_perf().
void fill_perf_attr(uct_perf_attr_t& attr, double bandwidth, double latency, double overhead);

// The consequence of a failed copy in UCX's own staging, which passes no key.
constexpr const char* lost_staging = "UCX does not check the end of copies that it stages messages with; "
                                     "messages in flight may be reported as "
                                     "complete with old bytes in them. End or restart what they belong to";

} // namespace gaudi_ucx
