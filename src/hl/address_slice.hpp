// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>
#include <map>

namespace gaudi {

// The device addresses that one context allocates from, and which of them are in use. Each device of a
// process has a slice of its own, so that an address identifies its device. Not thread-safe.
class address_slice {
public:
    address_slice() = default;
    address_slice(std::uint64_t begin, std::uint64_t end, std::uint64_t page);

    [[nodiscard]] device_address begin() const { return device_address(begin_); }
    [[nodiscard]] std::uint64_t size() const { return end_ - begin_; }
    [[nodiscard]] std::uint64_t page() const { return page_; }

    // The first gap of `bytes` bytes at or above begin() + `skip`; 0: there is none.
    [[nodiscard]] std::uint64_t find_gap(std::uint64_t bytes, std::uint64_t skip = 0) const;
    void take(std::uint64_t address, std::uint64_t bytes) { taken_[address] = bytes; }
    void release(std::uint64_t address) { taken_.erase(address); }

private:
    std::uint64_t begin_ = 0, end_ = 0, page_ = 1;
    std::map<std::uint64_t, std::uint64_t> taken_; // address -> bytes
};

} // namespace gaudi
