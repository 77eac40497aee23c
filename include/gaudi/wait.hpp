// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <thread>

namespace gaudi {

/// Waits until all operations have ended: `transfer` or `copy_ticket`, of any connections and copiers that
/// this thread may drive. Returns the first failure in their order, after all have ended; each ticket keeps
/// its own outcome. errc::wait_timeout where the limit passed first: the operations continue.
template <typename Ticket>
result<void> wait_all(std::span<Ticket> tickets, std::chrono::milliseconds limit = no_limit);

/// Waits until at least one operation has ended and returns its index: the lowest, if there are several.
/// Polls all of them in turn. errc::wait_timeout; size_zero where there are no tickets.
template <typename Ticket>
result<std::size_t> wait_any(std::span<Ticket> tickets, std::chrono::milliseconds limit = no_limit);

namespace detail {

/// Polls until `ended()`, ever less often. False where the limit passed first.
template <typename F>
bool poll_until(std::chrono::milliseconds limit, F&& ended) {
    using clock = std::chrono::steady_clock;
    const auto begin = clock::now();
    for (unsigned turns = 0; !ended(); ++turns) {
        if (limit != no_limit && clock::now() - begin >= limit)
            return false;
        if (turns > 4096)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        else if (turns > 64)
            std::this_thread::yield();
    }
    return true;
}

/// The error of a wait whose limit passed.
inline error out_of_time(std::size_t tickets, std::chrono::milliseconds limit) {
    return {errc::wait_timeout,
            std::to_string(limit.count()) + " ms for " + std::to_string(tickets) + " operations"};
}

} // namespace detail

template <typename Ticket>
result<std::size_t> wait_any(std::span<Ticket> tickets, std::chrono::milliseconds limit) {
    if (tickets.empty())
        return tl::unexpected(error(errc::size_zero, "waiting for one of no operations"));
    std::size_t index = 0;
    const bool ended = detail::poll_until(limit, [&] {
        for (index = 0; index < tickets.size(); ++index)
            if (tickets[index].done())
                return true;
        return false;
    });
    if (!ended)
        return tl::unexpected(detail::out_of_time(tickets.size(), limit));
    return index;
}

template <typename Ticket>
result<void> wait_all(std::span<Ticket> tickets, std::chrono::milliseconds limit) {
    const bool ended = detail::poll_until(limit, [&] {
        // All of them are driven in each turn: an operation may wait for another one's connection.
        return std::count_if(tickets.begin(), tickets.end(), [](Ticket& each) { return !each.done(); }) == 0;
    });
    if (!ended)
        return tl::unexpected(detail::out_of_time(tickets.size(), limit));
    for (auto& each : tickets)
        if (auto outcome = each.wait(); !outcome)
            return tl::unexpected(outcome.error());
    return {};
}

} // namespace gaudi
