// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>
#include <gaudi/statistics.hpp>

#include <chrono>

namespace gaudi {

// Carries out copies and knows the outcome of each by its number. Thread-safe.
class copy_tracker {
public:
    copy_tracker() = default;
    virtual ~copy_tracker() = default;
    copy_tracker(const copy_tracker&) = delete;
    copy_tracker& operator=(const copy_tracker&) = delete;

    // Whether the copy has completed. Drives it; never blocks.
    [[nodiscard]] virtual bool done(std::uint32_t slot) = 0;
    // Whether the copy has completed, as far as is known. Drives nothing; releases what a completed copy
    // kept.
    [[nodiscard]] virtual bool finished(std::uint32_t slot) = 0;
    // Blocks until the copy has completed. errc::copy_timeout: the limit expired.
    virtual result<void> wait(std::uint32_t slot, std::chrono::milliseconds limit) = 0;
    // The ticket was destroyed: nothing reads the outcome.
    virtual void drop(std::uint32_t slot) = 0;
};

// Counts a successful copy.
void count_copy(copy_path path, std::uint64_t bytes);
// The successful copies of this process.
[[nodiscard]] copy_traffic count_copies();

} // namespace gaudi
