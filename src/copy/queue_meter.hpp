// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

namespace gaudi {

// Bytes and busy time of each hardware queue.
class queue_meter {
public:
    void enter(std::uint32_t queue, std::uint64_t bytes) {
        auto& use = queues_[queue];
        use.bytes += bytes;
        if (use.depth++ == 0)
            use.since = clock::now();
    }
    void leave(std::uint32_t queue) {
        auto& use = queues_[queue];
        if (--use.depth == 0)
            use.busy_ns +=
                static_cast<std::uint64_t>(std::chrono::nanoseconds(clock::now() - use.since).count());
    }
    [[nodiscard]] std::vector<queue_use> all() const {
        std::vector<queue_use> uses;
        for (const auto& [number, use] : queues_)
            uses.push_back({number, use.bytes, use.busy_ns, use.depth});
        return uses;
    }

private:
    using clock = std::chrono::steady_clock;
    struct state {
        std::uint64_t bytes = 0, busy_ns = 0;
        unsigned depth = 0;
        clock::time_point since;
    };
    std::map<std::uint32_t, state> queues_; // by the driver's number
};

} // namespace gaudi
