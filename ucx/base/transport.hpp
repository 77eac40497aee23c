// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>

#include "ucx/base/module.hpp"
#include "ucx/base/operations.hpp"

#include <cstring>
#include <memory>
#include <vector>

namespace gaudi_ucx {

// A transport of copies, as its interface sees it: what it has under way are copies of one copier. UCX's
// tables of functions, the same for all of them, are in iface_ops.cpp. For one thread at a time, but for
// let_go_of_lost().
class transport : public device_holder {
public:
    // `what`: what its copies are called in the log.
    transport(uct_gaudi_module& module, const char* what, const gaudi::copier_options& options);
    virtual ~transport();
    transport(const transport&) = delete;
    transport& operator=(const transport&) = delete;

    [[nodiscard]] uct_gaudi_module& module() const { return module_; }

    // Limits and estimates; flags, addresses and what zero-copy needs are filled in already.
    virtual void describe(uct_iface_attr_t& attr) = 0;
    virtual void estimate(uct_perf_attr_t& attr) = 0;
    // What a peer must know to reach it: of the machine, and of the process.
    [[nodiscard]] virtual std::vector<std::byte> machine_address() { return {}; }
    [[nodiscard]] virtual std::vector<std::byte> process_address() = 0;
    // Why not, or nullptr.
    [[nodiscard]] virtual const char* why_unreachable(const void* machine, const void* process) = 0;
    // Whether settings of the two sides contradict each other, so that no endpoint may be made; logged.
    [[nodiscard]] virtual ucs_status_t check_settings_of_peer(const void* machine) {
        (void)machine;
        return UCS_OK;
    }
    // Whether the peer of an endpoint still lives, as far as anybody knows.
    [[nodiscard]] virtual ucs_status_t check_peer(const std::vector<std::byte>&) { return UCS_OK; }

    // Begins a copy: UCS_OK, UCS_INPROGRESS, UCS_ERR_NO_RESOURCE or an error.
    virtual ucs_status_t begin(uct_ep_h ep, const uct_iov_t& local, std::uint64_t remote, uct_rkey_t rkey,
                               bool put, uct_completion_t* comp) = 0;
    // One that is over when it returns. 0 bytes: the transport has none of that kind.
    enum class kind { brief, buffered };
    [[nodiscard]] virtual std::size_t longest(kind) const { return 0; }
    virtual ucs_status_t copy_now(kind, void*, std::size_t, std::uint64_t, uct_rkey_t, bool) {
        return UCS_ERR_UNSUPPORTED;
    }
    // UCS_ERR_BUSY: there is room, try again now.
    virtual ucs_status_t wait_for_room(uct_ep_h ep, uct_pending_req_t* request);

    [[nodiscard]] bool idle() const { return operations_.idle(); }
    unsigned progress();
    ucs_status_t flush(uct_completion_t* comp) { return operations_.flush(comp); }
    void fence() { operations_.fence(); }
    void purge(uct_ep_h ep, uct_pending_purge_callback_t visit, void* arg);
    // A descriptor that becomes readable when progress() has something to do, after arm() said UCS_OK.
    ucs_status_t event_fd(int* fd);
    ucs_status_t arm();
    // Everything that is under way has ended when this returns.
    void drain();
    void let_go_of_lost() override { copies_.drop_lost(); }

    // UCX hears of it at the next progress: its handlers may not run inside a call of its own.
    void endpoint_failed(uct_ep_h ep, ucs_status_t status) { failures_.push_back({ep, status}); }
    struct failure {
        uct_ep_h ep;
        ucs_status_t status;
    };
    [[nodiscard]] bool any_failures() const { return !failures_.empty(); }
    [[nodiscard]] failure next_failure() {
        const auto first = failures_.front();
        forget_failures(first.ep); // once is enough
        return first;
    }
    // The endpoint is no more.
    void forget(uct_ep_h ep);

    // Where buffered copies are packed and unpacked.
    [[nodiscard]] std::byte* bounce() {
        bounce_.resize(longest(kind::buffered));
        return bounce_.data();
    }

protected:
    // What the failure of a copy may mean to others than its caller. Said once.
    [[nodiscard]] virtual const char* what_follows() const { return nullptr; }
    // A copy that was under way went well.
    virtual void ended(const gaudi::copy_ticket& copy) { (void)copy; }

    [[nodiscard]] gaudi::copier& copies() { return copies_; }
    [[nodiscard]] operations<gaudi::copy_ticket>& under_way() { return operations_; }
    // What was begun before a fence is over; its outcome is told by progress, and nowhere else.
    void keep_fence();
    // Where the peer is gone its endpoint is of no more use. One that is silent may speak again.
    void note_failure(uct_ep_h ep, const gaudi::error& why);
    ucs_status_t refused(const gaudi::error& why, std::size_t length, std::uint64_t to, std::uint64_t from);
    void say_what_follows();
    void wait_for_all();

private:
    void forget_failures(uct_ep_h of) {
        std::erase_if(failures_, [&](const failure& each) { return each.ep == of; });
    }
    ucs_log_level_t level_of_failure(const gaudi::error& why);
    // A program that sees the error may open the device again as soon as nothing here is on it any more.
    void tell_of_loss();
    ucs_status_t outcome_of(gaudi::copy_ticket& ticket, uct_ep_h ep);

    uct_gaudi_module& module_;
    const char* const what_;
    gaudi::copier copies_;
    operations<gaudi::copy_ticket> operations_; // after the copier: what is under way goes first
    std::vector<std::byte> bounce_;
    std::vector<failure> failures_;
    bool said_ = false, told_of_loss_ = false, met_loss_ = false;
};

// The address of an interface that reaches only itself: device addresses mean something in this process
// alone.
struct interface_id {
    std::vector<std::byte> bytes = std::vector<std::byte>(8);

    interface_id();
    [[nodiscard]] const char* why_unreachable(const void* process) const;
};

struct uct_gaudi_iface_t {
    uct_base_iface_t super; // UCX's part; it must come first
    std::unique_ptr<transport> self;
};

// Makes the interface of a transport.
ucs_status_t open_interface(std::unique_ptr<transport> made, uct_md_h md, uct_worker_h worker,
                            const uct_iface_params_t* params, const uct_iface_config_t* config,
                            uct_iface_h* iface_p);

// What UCX registers: a name, where settings begin ("GAUDI_DMA_") and what they are.
template <typename Config>
void describe_transport(uct_tl_t& tl, const char* name, const char* title, const char* prefix,
                        ucs_config_field_t* settings) {
    std::strcpy(tl.name, name);
    tl.config.name = title;
    tl.config.prefix = prefix;
    tl.config.table = settings;
    tl.config.size = sizeof(Config);
}

// Whether some NIC could reach device memory; asked once.
[[nodiscard]] bool any_nic();

// Bandwidth, latency and overhead of a transport, for estimate().
void give_estimates(uct_perf_attr_t& attr, double bandwidth, double latency, double overhead);

} // namespace gaudi_ucx
