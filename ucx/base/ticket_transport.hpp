// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ucx/base/operations.hpp"
#include "ucx/base/transport.hpp"

#include <utility>

namespace gaudi_ucx {

// A transport whose copies are tickets of the library.
template <typename Ticket>
class ticket_transport : public transport {
public:
    // What its copies are called in the log.
    ticket_transport(uct_gaudi_module& module, const char* what) : transport(module), what_(what) {}

    [[nodiscard]] bool idle() const override { return operations_.idle(); }
    unsigned progress() override {
        const auto count =
            operations_.progress([&](Ticket& each) { return finished(each); },
                                 [&](Ticket& each, uct_ep_h ep) { return outcome_of(each, ep); });
        let_go_of_lost();
        return count;
    }
    ucs_status_t flush(uct_completion_t* comp) override { return operations_.flush(comp); }
    void fence() override { operations_.fence(); }
    ucs_status_t wait_for_room(uct_ep_h ep, uct_pending_req_t* request) override {
        operations_.wait_for_room(ep, request);
        return UCS_OK;
    }
    void purge(uct_ep_h ep, uct_pending_purge_callback_t visit, void* arg) override {
        operations_.purge(ep, [&](uct_pending_req_t* request) { visit(request, arg); });
    }
    void forget(uct_ep_h ep) override {
        transport::forget(ep);
        operations_.forget(ep);
    }
    void drain() override {
        while (!operations_.none_running()) {
            wait_for_all();
            progress();
        }
    }

protected:
    // Looks without blocking.
    [[nodiscard]] virtual bool finished(Ticket& ticket) = 0;
    // What the failure of a copy may mean to others than its caller. Said once.
    [[nodiscard]] virtual const char* what_follows() const { return nullptr; }

    [[nodiscard]] operations<Ticket>& under_way() { return operations_; }
    [[nodiscard]] bool any_finished() {
        return operations_.any([&](Ticket& each) { return finished(each); });
    }
    // What was begun before a fence is over; its outcome is told by progress, and nowhere else.
    void keep_fence() {
        if (operations_.take_fence())
            wait_for_all();
    }
    // Where the peer is gone its endpoint is of no more use. One that is silent may speak again.
    void note_failure(uct_ep_h ep, const gaudi::error& why) {
        // Zero-copy that is required and impossible stays so: both sides shall hear of it.
        if (ep != nullptr &&
            (why.code() == gaudi::errc::peer_gone || why.code() == gaudi::errc::zero_copy_impossible))
            endpoint_failed(ep, status_of(why));
    }
    ucs_status_t refused(const gaudi::error& why, std::size_t length, std::uint64_t to, std::uint64_t from) {
        gaudi_log_at(module(), level_of_failure(why), "{} of {} bytes from {:#x} to {:#x}: {}", what_, length,
                     from, to, why.message());
        let_go_of_lost();
        return status_of(why);
    }
    void say_what_follows() {
        if (const auto* text = what_follows(); text != nullptr && !std::exchange(said_, true))
            gaudi_log(module(), ERROR, "{}: {}", what_, text);
    }

private:
    // All copies that a lost device had under way fail, and all that follow: one line tells it.
    ucs_log_level_t level_of_failure(const gaudi::error& why) {
        const bool lost = why.kind() == gaudi::error_kind::device_lost;
        met_loss_ = met_loss_ || lost;
        return lost && std::exchange(told_of_loss_, true) ? UCS_LOG_LEVEL_DIAG : UCS_LOG_LEVEL_ERROR;
    }
    // A program that sees the error may open the device again as soon as nothing here is on it any more.
    void let_go_of_lost() {
        if (met_loss_ && operations_.none_running()) {
            met_loss_ = false;
            module().holders.let_go_of_lost();
        }
    }
    void wait_for_all() {
        operations_.for_each([](Ticket& each) { (void)each.wait(); });
    }
    ucs_status_t outcome_of(Ticket& ticket, uct_ep_h ep) {
        auto status = UCS_ERR_NO_MEMORY;
        (void)guarded([&] { // whatever happens, the completion must be told something
            const auto result = ticket.wait();
            status = result ? UCS_OK : status_of(result.error());
            if (!result) {
                gaudi_log_at(module(), level_of_failure(result.error()), "{}: {}", what_,
                             result.error().message());
                say_what_follows();
                note_failure(ep, result.error());
            }
            return UCS_OK;
        });
        return status;
    }

    const char* const what_;
    bool said_ = false, told_of_loss_ = false, met_loss_ = false;
    operations<Ticket> operations_;
};

} // namespace gaudi_ucx
