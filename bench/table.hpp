// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fmt/format.h>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace bench {

using clock = std::chrono::steady_clock;

// The printed report: figure, limit or goal, and whether it was reached where there is a goal.
class table {
public:
    explicit table(std::string title) : title_(std::move(title)) {}

    void row(std::string what, std::string figure, std::string limit,
             std::optional<bool> reached = std::nullopt) {
        rows_.push_back({std::move(what), std::move(figure), std::move(limit), reached});
    }
    void print() const {
        std::size_t first = 0, second = 0, third = 0;
        for (const auto& next : rows_) {
            first = std::max(first, next.what.size());
            second = std::max(second, next.figure.size());
            third = std::max(third, next.limit.size());
        }
        fmt::print("{}\n\n", title_);
        for (const auto& next : rows_)
            fmt::print("{:<{}}  {:<{}}  {:<{}}  {}\n", next.what, first, next.figure, second, next.limit,
                       third,
                       !next.reached   ? ""
                       : *next.reached ? "reached"
                                       : "MISSED");
    }

private:
    struct entry {
        std::string what, figure, limit;
        std::optional<bool> reached;
    };
    std::string title_;
    std::vector<entry> rows_;
};

// Mean time of one call, best of several rounds that last long enough to measure.
template <typename Body>
double nanoseconds_per(Body&& body, int rounds = 8) {
    std::size_t count = 16;
    double best = 1e18;
    for (int round = 0; round < rounds;) {
        const auto begin = clock::now();
        for (std::size_t i = 0; i < count; ++i)
            body(i);
        const std::chrono::duration<double, std::nano> taken = clock::now() - begin;
        if (taken < std::chrono::milliseconds(20)) {
            count *= 2;
            continue;
        }
        best = std::min(best, taken.count() / static_cast<double>(count));
        ++round;
    }
    return best;
}

struct times {
    double limit = 1e18, measured = 1e18;

    [[nodiscard]] double ratio() const { return limit / measured; }
};

// Nanoseconds of two operations, measured alternately, so that both run under the same conditions.
template <typename Limit, typename Measured>
times in_turn(Limit&& limit, Measured&& measured) {
    times best;
    for (int round = 0; round < 4; ++round) {
        best.limit = std::min(best.limit, nanoseconds_per(limit, 3));
        best.measured = std::min(best.measured, nanoseconds_per(measured, 3));
    }
    return best;
}

template <typename Body>
double gigabytes_per_second(Body&& body, std::uint64_t bytes) {
    const auto begin = clock::now();
    body();
    const std::chrono::duration<double> taken = clock::now() - begin;
    return static_cast<double>(bytes) / taken.count() / 1e9;
}

// The median of figures that were measured alternately: a shared machine changes its speed over time, but
// little between two successive measurements.
inline double median(std::vector<double> all) {
    std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
    return all[all.size() / 2];
}

// Two figures measured alternately. The ratio is that of successive measurements.
class side_by_side {
public:
    void add(double first, double second) {
        first_.push_back(first);
        second_.push_back(second);
        ratios_.push_back(first / second);
    }
    [[nodiscard]] double first() const { return median(first_); }
    [[nodiscard]] double second() const { return median(second_); }
    [[nodiscard]] double ratio() const { return median(ratios_); }

private:
    std::vector<double> first_, second_, ratios_;
};

// Half of the time in which one thread wakes another and is woken by it: the floor of anything that waits for
// a thread.
inline double wakeup_nanoseconds() {
    std::mutex mutex;
    std::condition_variable changed;
    int turn = 0;
    bool stop = false;
    std::thread other([&] {
        std::unique_lock lock(mutex);
        while (!stop) {
            changed.wait(lock, [&] { return turn == 1 || stop; });
            turn = 0;
            changed.notify_one();
        }
    });
    const auto pair = nanoseconds_per([&](std::size_t) {
        std::unique_lock lock(mutex);
        turn = 1;
        changed.notify_one();
        changed.wait(lock, [&] { return turn == 0; });
    });
    {
        const std::lock_guard lock(mutex);
        stop = true;
        changed.notify_one();
    }
    other.join();
    return pair / 2;
}

} // namespace bench
