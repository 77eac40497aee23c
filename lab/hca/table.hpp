// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace lab::hca {

// Hands out the places of a table. A released place is not reused for a while, so that stale uses of its
// number are detected.
class place_table {
public:
    explicit place_table(std::uint32_t size, std::uint32_t first = 0) : size_(size), fresh_(first) {}

    std::optional<std::uint32_t> take() {
        const std::lock_guard guard(mutex_);
        constexpr std::size_t resting = 64;
        if (free_.size() - first_ < resting && fresh_ < size_)
            return fresh_++;
        if (first_ == free_.size())
            return std::nullopt;
        const auto place = free_[first_++];
        if (first_ > 1024 && first_ * 2 > free_.size()) {
            free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(first_));
            first_ = 0;
        }
        return place;
    }
    void release(std::uint32_t place) {
        const std::lock_guard guard(mutex_);
        free_.push_back(place);
    }

private:
    std::mutex mutex_;
    std::uint32_t size_;
    std::uint32_t fresh_;
    std::vector<std::uint32_t> free_;
    std::size_t first_ = 0;
};

} // namespace lab::hca
