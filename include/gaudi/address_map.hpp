// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/error.hpp>
#include <gaudi/memory_observer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gaudi {

// A live allocation. `generation` never repeats in a process: a cache that keeps it notices that memory was
// freed and its address given to somebody else.
struct allocation_view {
    device_address base;
    std::uint64_t length = 0;
    std::uint64_t generation = 0;
    unsigned device_index = 0;
    std::uint64_t tag = 0; // the inserter's own
};

// Answers "is this Gaudi memory, which device, which allocation". Lookup takes no lock, never allocates, and
// costs the same for ten allocations and a hundred thousand. All functions may be called from any thread.
class address_map {
public:
    address_map();
    ~address_map();
    address_map(const address_map&) = delete;
    address_map& operator=(const address_map&) = delete;

    // A device's memory lies within [base, base + size). Windows must not overlap: errc::address_collision.
    result<void> add_window(device_address base, std::uint64_t size, unsigned device_index);
    // All of a device's windows and allocations are forgotten.
    void remove_device(unsigned device_index);

    // base is a multiple of 64, and the range lies in a window; overlap (in units of 64 bytes) with a live
    // allocation is errc::ranges_overlap. Returns the generation.
    result<std::uint64_t> insert(device_address base, std::uint64_t length, std::uint64_t tag);
    // `base` must be the beginning of a live allocation: errc::not_allocated.
    result<void> erase(device_address base);

    // Whether a device's window holds the address, allocated or not.
    [[nodiscard]] std::optional<unsigned> device_of(device_address address) const noexcept;
    [[nodiscard]] std::optional<allocation_view> find(device_address address) const noexcept;
    // The allocation that holds all of [address, address + length): errc::not_allocated or
    // range_leaves_allocation.
    [[nodiscard]] result<allocation_view> find(device_address address, std::uint64_t length) const;
    // The same for a range that may reach to the borders of the allocation's first and last page: NICs
    // register pages, and small allocations share them.
    [[nodiscard]] result<allocation_view> find_pages(device_address address, std::uint64_t length) const;
    // That of the allocation made last, freed or not; those made later have greater ones.
    [[nodiscard]] std::uint64_t newest_generation() const noexcept;
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] std::vector<allocation_view> allocations_of(unsigned device_index) const;
    // The window that holds the address.
    [[nodiscard]] std::optional<memory_window> window_at(device_address address) const noexcept;
    // The same if it holds all of [address, address + length): all that can be checked of memory whose
    // allocations are not known, as in SynapseAI's pool.
    [[nodiscard]] std::optional<memory_window> window_at(device_address address,
                                                         std::uint64_t length) const noexcept;

    // See observe_memory().
    void observe(const std::shared_ptr<memory_observer>& observer);
    // Tells the observers that an allocation is about to go: before erase(), with no lock held. False: one of
    // them says that nobody shall get the memory again.
    [[nodiscard]] bool announce(device_address base, std::uint64_t length) const;

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace gaudi
