// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace gaudi {

// A queue of bounded length that allocates once. Callers check full() before push(), and empty() before
// pop().
template <typename T>
class ring {
public:
    explicit ring(std::size_t capacity) : capacity_(capacity), places_(std::bit_ceil(capacity)) {}

    [[nodiscard]] bool empty() const { return head_ == tail_; }
    [[nodiscard]] bool full() const { return size() >= capacity_; }
    [[nodiscard]] std::size_t size() const { return head_ - tail_; }
    T& front() { return places_[tail_ & (places_.size() - 1)]; }
    void push(T value) { places_[head_++ & (places_.size() - 1)] = std::move(value); }
    T pop() { return std::move(places_[tail_++ & (places_.size() - 1)]); }

private:
    std::size_t capacity_;
    std::vector<T> places_;
    std::size_t head_ = 0, tail_ = 0;
};

} // namespace gaudi
