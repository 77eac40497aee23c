// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>

#include <string_view>

namespace gaudi {

// The address map as the library sees it: with the calls that change it.
class editable_address_map : public address_map {
public:
    editable_address_map() = default;

    // Adds the range [base, base + size) in which a device's memory lies. errc::address_collision: it
    // overlaps another window, or there are too many windows.
    result<void> add_window(device_address base, std::uint64_t size, unsigned device_index);
    // Removes the window that begins there; no allocation is left in it.
    void remove_window(device_address base);
    // Removes all windows and all allocations of a device.
    void remove_device(unsigned device_index);

    // Adds a live allocation and returns its generation. `base` must be a multiple of 64, and the range must
    // lie in a window. errc::ranges_overlap: it overlaps a live allocation, in units of 64 bytes.
    // errc::size_zero, alignment_invalid, range_leaves_allocation.
    result<std::uint64_t> insert(device_address base, std::uint64_t length, std::uint64_t tag);
    // Removes the allocation that begins at `base`. errc::not_allocated: no live allocation begins there.
    result<void> erase(device_address base);

    // See observe_memory().
    void observe(const std::shared_ptr<memory_observer>& observer);
    // Notifies the observers that an allocation is about to be freed. Call it before erase(), with no lock
    // held. Returns false if an observer demands that the memory is never allocated again.
    [[nodiscard]] bool announce(device_address base, std::uint64_t length) const;
};

// errc::not_allocated, or pytorch_handle where the number is one. `what`: completes "N bytes at ADDRESS".
[[nodiscard]] error no_allocation(device_address address, std::uint64_t length, std::string_view what = {});

} // namespace gaudi
