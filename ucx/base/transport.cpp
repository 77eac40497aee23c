// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/transport.hpp"

#include <gaudi/nic.hpp>

#include <algorithm>
#include <sys/random.h>
#include <unistd.h>

namespace gaudi_ucx {

transport::transport(uct_gaudi_module& module, const char* what, const gaudi::copier_options& options)
    : module_(module), what_(what), copies_(options) {
    module.holders.add(*this);
}

transport::~transport() {
    module_.holders.remove(*this);
}

unsigned transport::progress() {
    copies_.poll();
    const auto count =
        operations_.progress([](gaudi::copy_ticket& each) { return each.finished(); },
                             [&](gaudi::copy_ticket& each, uct_ep_h ep) { return outcome_of(each, ep); });
    tell_of_loss();
    return count;
}

ucs_status_t transport::wait_for_room(uct_ep_h ep, uct_pending_req_t* request) {
    operations_.wait_for_room(ep, request);
    return UCS_OK;
}

void transport::purge(uct_ep_h ep, uct_pending_purge_callback_t visit, void* arg) {
    operations_.purge(ep, [&](uct_pending_req_t* request) { visit(request, arg); });
}

void transport::forget(uct_ep_h ep) {
    forget_failures(ep);
    operations_.forget(ep);
}

void transport::drain() {
    while (!operations_.none_running()) {
        wait_for_all();
        progress();
    }
}

ucs_status_t transport::event_fd(int* fd) {
    const auto descriptor = copies_.event_fd();
    if (!descriptor) {
        gaudi_log(module_, ERROR, "{}: {}", what_, descriptor.error().message());
        return status_of(descriptor.error());
    }
    *fd = *descriptor;
    return UCS_OK;
}

ucs_status_t transport::arm() {
    if (operations_.none_running() && !operations_.idle())
        return UCS_ERR_BUSY; // requests wait for room that others have: nothing of ours would wake them
    copies_.arm();
    const bool any = operations_.any([](gaudi::copy_ticket& each) { return each.done(); });
    return any ? UCS_ERR_BUSY : UCS_OK; // progress first
}

void transport::keep_fence() {
    if (operations_.take_fence())
        wait_for_all();
}

void transport::note_failure(uct_ep_h ep, const gaudi::error& why) {
    // Zero-copy that is required and impossible stays so: both sides shall hear of it.
    if (ep != nullptr &&
        (why.code() == gaudi::errc::peer_gone || why.code() == gaudi::errc::zero_copy_impossible))
        endpoint_failed(ep, status_of(why));
}

ucs_status_t transport::refused(const gaudi::error& why, std::size_t length, std::uint64_t to,
                                std::uint64_t from) {
    gaudi_log_at(module_, level_of_failure(why), "{} of {} bytes from {:#x} to {:#x}: {}", what_, length,
                 from, to, why.message());
    tell_of_loss();
    return status_of(why);
}

void transport::say_what_follows() {
    if (const auto* text = what_follows(); text != nullptr && !std::exchange(said_, true))
        gaudi_log(module_, ERROR, "{}: {}", what_, text);
}

// All copies that a lost device had under way fail, and all that follow: one line tells it.
ucs_log_level_t transport::level_of_failure(const gaudi::error& why) {
    const bool lost = why.kind() == gaudi::error_kind::device_lost;
    met_loss_ = met_loss_ || lost;
    return lost && std::exchange(told_of_loss_, true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR;
}

void transport::tell_of_loss() {
    if (met_loss_ && operations_.none_running()) {
        met_loss_ = false;
        module_.holders.let_go_of_lost();
    }
}

void transport::wait_for_all() {
    operations_.for_each([](gaudi::copy_ticket& each) { (void)each.wait(); });
}

ucs_status_t transport::outcome_of(gaudi::copy_ticket& ticket, uct_ep_h ep) {
    auto status = UCS_ERR_NO_MEMORY;
    (void)guarded([&] { // whatever happens, the completion must be told something
        const auto result = ticket.wait();
        status = result ? UCS_OK : status_of(result.error());
        if (result) {
            ended(ticket);
        } else {
            gaudi_log_at(module_, level_of_failure(result.error()), "{}: {}", what_,
                         result.error().message());
            say_what_follows();
            note_failure(ep, result.error());
        }
        return UCS_OK;
    });
    return status;
}

interface_id::interface_id() {
    if (::getrandom(bytes.data(), bytes.size(), GRND_NONBLOCK) != static_cast<ssize_t>(bytes.size())) {
        const auto made = number(this) ^ static_cast<std::uint64_t>(::getpid()) << 48;
        std::memcpy(bytes.data(), &made, bytes.size());
    }
}

const char* interface_id::why_unreachable(const void* process) const {
    return process != nullptr && std::memcmp(process, bytes.data(), bytes.size()) == 0
               ? nullptr
               : "not this interface: its addresses mean something in its own process alone";
}

bool any_nic() {
    static const bool found = [] {
        const auto all = gaudi::list_nics();
        return all && std::any_of(all->begin(), all->end(), [](const auto& each) {
                   return each.active && each.dmabuf && !each.of_gaudi;
               });
    }();
    return found;
}

void give_estimates(uct_perf_attr_t& attr, double bandwidth, double latency, double overhead) {
    const auto mask = attr.field_mask;
    if ((mask & UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD) != 0)
        attr.send_pre_overhead = overhead;
    if ((mask & UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD) != 0)
        attr.send_post_overhead = 0;
    if ((mask & UCT_PERF_ATTR_FIELD_RECV_OVERHEAD) != 0)
        attr.recv_overhead = 0;
    if ((mask & UCT_PERF_ATTR_FIELD_BANDWIDTH) != 0)
        attr.bandwidth = {0, bandwidth};
    if ((mask & UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH) != 0)
        attr.path_bandwidth = {0, bandwidth};
    if ((mask & UCT_PERF_ATTR_FIELD_LATENCY) != 0)
        attr.latency = {latency, 0};
    if ((mask & UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS) != 0)
        attr.max_inflight_eps = SIZE_MAX;
    if ((mask & UCT_PERF_ATTR_FIELD_FLAGS) != 0)
        attr.flags = 0;
}

} // namespace gaudi_ucx
