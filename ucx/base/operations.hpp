// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ucx/base/module.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <list>
#include <utility>

namespace gaudi_ucx {

inline void complete(uct_completion_t* comp, ucs_status_t status) {
    if (comp == nullptr)
        return;
    if (UCS_STATUS_IS_ERR(status) && comp->status == UCS_OK)
        comp->status = status;
    if (--comp->count == 0)
        comp->func(comp);
}

// The outstanding operations of an interface in the order they were started, flushes that wait for earlier
// operations, and pending requests that wait for room. For one thread at a time, as the interface is.
template <typename Ticket>
class operations {
public:
    // `ep`: the endpoint of the operation.
    void add(Ticket ticket, uct_completion_t* comp, uct_ep_h ep) {
        if (spare_.empty())
            spare_.emplace_back();
        spare_.front() = {next_++, std::move(ticket), comp, ep};
        running_.splice(running_.end(), spare_, spare_.begin());
    }
    [[nodiscard]] bool idle() const {
        return running_.empty() && ended_.empty() && flushes_.empty() && waiting_.empty();
    }
    [[nodiscard]] bool none_running() const { return running_.empty(); }
    [[nodiscard]] std::size_t running() const { return running_.size(); }

    template <typename F>
    void for_each(F&& visit) {
        for (auto& each : running_)
            visit(each.ticket);
    }
    template <typename F>
    [[nodiscard]] bool any(F&& is) {
        return std::any_of(running_.begin(), running_.end(), [&](auto& each) { return is(each.ticket); });
    }

    // Completes `comp` when all operations started before have completed.
    ucs_status_t flush(uct_completion_t* comp) {
        if (running_.empty() && ended_.empty())
            return UCS_OK;
        if (comp != nullptr)
            flushes_.push_back({next_ - 1, comp});
        return UCS_INPROGRESS;
    }
    // The next operation waits for all earlier ones.
    void fence() { fenced_ = !running_.empty(); }
    [[nodiscard]] bool take_fence() { return std::exchange(fenced_, false); }

    void pending_add(uct_ep_h ep, uct_pending_req_t* request) {
        line_of(ep, waiting_.end())->requests.push_back(request);
    }
    // Whether a new operation would overtake pending requests.
    [[nodiscard]] bool others_wait() const { return !waiting_.empty() && !serving_; }
    // The endpoint is destroyed; its operations continue.
    void forget(uct_ep_h ep) {
        for (auto* list : {&running_, &ended_})
            for (auto& each : *list)
                if (each.ep == ep)
                    each.ep = nullptr;
    }
    template <typename F>
    void purge(uct_ep_h ep, F&& visit) {
        const auto found =
            std::find_if(waiting_.begin(), waiting_.end(), [&](auto& each) { return each.ep == ep; });
        if (found == waiting_.end())
            return;
        const auto gone = std::move(found->requests);
        waiting_.erase(found);
        for (auto* each : gone)
            visit(each);
    }

    // `finished` checks a ticket without blocking, `outcome` returns the status of a finished one.
    template <typename Finished, typename Outcome>
    unsigned progress(Finished&& finished, Outcome&& outcome) {
        unsigned count = 0;
        // All finished operations leave the list before any callback runs: callbacks start new operations.
        for (auto each = running_.begin(); each != running_.end();) {
            const auto next = std::next(each);
            if (finished(each->ticket))
                ended_.splice(ended_.end(), running_, each);
            each = next;
        }
        for (; !ended_.empty(); ++count) {
            auto ticket = std::exchange(ended_.front().ticket, {});
            auto* comp = ended_.front().comp;
            auto* ep = ended_.front().ep;
            spare_.splice(spare_.begin(), ended_, ended_.begin());
            complete(comp, outcome(ticket, ep));
        }
        while (!flushes_.empty() &&
               (running_.empty() || running_.front().sequence > flushes_.front().after)) {
            auto* comp = flushes_.front().comp;
            flushes_.pop_front();
            complete(comp, UCS_OK);
            ++count;
        }
        // Round-robin over endpoints, one request each; an endpoint that gets NO_RESOURCE is first again next
        // time.
        std::size_t left = 0;
        for (const auto& each : waiting_)
            left += count != 0 || running_.empty() ? each.requests.size() : 0;
        for (; left > 0 && !waiting_.empty(); --left) {
            auto* const ep = waiting_.front().ep;
            auto* const request = waiting_.front().requests.front();
            waiting_.front().requests.pop_front();
            if (!waiting_.front().requests.empty())
                waiting_.push_back(std::move(waiting_.front()));
            waiting_.pop_front();
            serving_ = true;
            const auto status = request->func(request);
            serving_ = false;
            if (status == UCS_ERR_NO_RESOURCE) {
                const auto again = line_of(ep, waiting_.begin());
                again->requests.push_front(request);
                std::rotate(waiting_.begin(), again, std::next(again));
                break;
            }
            if (status == UCS_INPROGRESS) // the request has more to do
                line_of(ep, waiting_.end())->requests.push_front(request);
            ++count;
        }
        return count;
    }

private:
    struct operation {
        std::uint64_t sequence;
        Ticket ticket;
        uct_completion_t* comp;
        uct_ep_h ep;
    };
    struct flushing {
        std::uint64_t after;
        uct_completion_t* comp;
    };
    struct line { // requests is never empty
        uct_ep_h ep;
        std::deque<uct_pending_req_t*> requests;
    };
    using lines = std::deque<line>;
    // The line of the endpoint; if it has none, a new one at `where`.
    typename lines::iterator line_of(uct_ep_h ep, typename lines::iterator where) {
        const auto known =
            std::find_if(waiting_.begin(), waiting_.end(), [&](auto& each) { return each.ep == ep; });
        return known != waiting_.end() ? known : waiting_.insert(where, line{ep, {}});
    }

    std::list<operation> running_; // in the order of sequence
    std::list<operation> ended_;   // whose completions are called next
    std::list<operation> spare_;
    std::deque<flushing> flushes_;
    lines waiting_; // endpoints in round-robin order
    std::uint64_t next_ = 1;
    bool fenced_ = false;
    bool serving_ = false; // a pending request is being retried
};

} // namespace gaudi_ucx
