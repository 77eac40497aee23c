// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_path.hpp>
#include <gaudi/error.hpp>

#include <chrono>

namespace gaudi {

// Whoever carries out copies and knows the outcome of each by its number. Thread-safe.
class copy_tracker {
public:
    copy_tracker() = default;
    virtual ~copy_tracker() = default;
    copy_tracker(const copy_tracker&) = delete;
    copy_tracker& operator=(const copy_tracker&) = delete;

    // Drives it; never blocks.
    [[nodiscard]] virtual bool done(std::uint32_t slot) = 0;
    // Looks, and drives nothing.
    [[nodiscard]] virtual bool finished(std::uint32_t slot) = 0;
    // errc::copy_timeout where the time is over.
    virtual result<void> wait(std::uint32_t slot, std::chrono::milliseconds limit) = 0;
    // Nobody will ask for the outcome.
    virtual void drop(std::uint32_t slot) = 0;
};

// A copy ended well.
void count_copy(copy_path path, std::uint64_t bytes);

} // namespace gaudi
