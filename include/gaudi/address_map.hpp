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

/// A live allocation. `generation` never repeats in a process: a cache that stores it can tell that the
/// memory was freed and its address allocated again.
struct allocation_view {
    device_address base;
    std::uint64_t length = 0;
    std::uint64_t generation = 0;
    unsigned device_index = 0;
    std::uint64_t tag = 0; ///< private to the library: finds the block of its heap; has no meaning elsewhere
};

/// Maps an address to its device and to its live allocation. A lookup takes no lock, never allocates, and
/// costs the same for ten allocations and for a hundred thousand. All functions may be called from any
/// thread.
class address_map {
public:
    address_map(const address_map&) = delete;
    address_map& operator=(const address_map&) = delete;

    /// The device whose window contains the address, whether or not the address is allocated.
    [[nodiscard]] std::optional<unsigned> device_of(device_address address) const noexcept;
    /// The live allocation that contains the address.
    [[nodiscard]] std::optional<allocation_view> find(device_address address) const noexcept;
    /// The allocation that contains all of [address, address + length). errc::not_allocated or
    /// range_leaves_allocation.
    [[nodiscard]] result<allocation_view> find(device_address address, std::uint64_t length) const;
    /// As above, but the range may extend to the borders of the allocation's first and last page: NICs
    /// register pages, and small allocations share them.
    [[nodiscard]] result<allocation_view> find_pages(device_address address, std::uint64_t length) const;
    /// The generation of the latest allocation, freed or not. Later allocations have greater ones.
    [[nodiscard]] std::uint64_t newest_generation() const noexcept;
    /// The number of live allocations.
    [[nodiscard]] std::size_t size() const noexcept;
    /// The live allocations of a device. Takes a lock.
    [[nodiscard]] std::vector<allocation_view> allocations_of(unsigned device_index) const;
    /// The window that contains the address.
    [[nodiscard]] std::optional<memory_window> window_at(device_address address) const noexcept;
    /// The window that contains all of [address, address + length). Nothing more can be checked of memory
    /// whose allocations are not known, such as SynapseAI's pool.
    [[nodiscard]] std::optional<memory_window> window_at(device_address address,
                                                         std::uint64_t length) const noexcept;

protected:
    address_map();
    ~address_map();

    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace gaudi
