// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_path.hpp>
#include <gaudi/memory_path.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace gaudi {

/// Operations and their bytes.
struct traffic {
    std::uint64_t operations = 0, bytes = 0;
};

/// Traffic by path.
template <typename Path, std::size_t paths>
struct traffic_by_path {
    std::array<traffic, paths> all{};

    /// The traffic of one path.
    [[nodiscard]] const traffic& by(Path path) const { return all[static_cast<std::size_t>(path)]; }
    /// The same, to change it.
    [[nodiscard]] traffic& by(Path path) { return all[static_cast<std::size_t>(path)]; }
};
/// Successful copies. Each counts once, when it has completed.
using copy_traffic = traffic_by_path<copy_path, copy_paths>;
/// Successful operations of one side of a connection. Each counts once on each side that posts it: a
/// one-sided write or read counts only at its initiator.
using connection_traffic = traffic_by_path<memory_path, memory_paths>;

/// Copy engines since they were created.
struct engine_statistics {
    std::uint64_t copies = 0, bytes = 0;
    std::uint64_t completed = 0, failed = 0; ///< completed, successfully or not; those that failed
    std::uint64_t submissions = 0, packets = 0;
    std::uint64_t most_in_flight = 0;                  ///< submissions; the greatest of any engine
    std::uint64_t pinned = 0, bounced = 0, mapped = 0; ///< copies by how host memory was reached

    /// Adds up; `most_in_flight` becomes the greater one.
    engine_statistics& operator+=(const engine_statistics& other);
};

/// Heaps at the time of the call.
struct heap_statistics {
    std::uint64_t chunks = 0;
    std::uint64_t chunk_bytes = 0; ///< allocated from the driver
    std::uint64_t buffers = 0;
    std::uint64_t buffer_bytes = 0; ///< allocated to buffers, rounded up to the granule
    std::uint64_t largest_free = 0; ///< largest buffer that fits without a new chunk, on any device
    std::uint64_t exports = 0;      ///< open DMA-BUFs: at most one per chunk
    std::uint64_t abandoned = 0;    ///< bytes never allocated again: another process may still access them

    /// Adds up; `largest_free` becomes the greater one.
    heap_statistics& operator+=(const heap_statistics& other);
};

/// The registrations of one NIC.
struct registration_statistics {
    std::uint64_t hits = 0, misses = 0, evictions = 0;
    std::uint64_t regions = 0, bytes = 0; ///< at present
};

/// Memory shared with other processes and imported from them.
struct ipc_statistics {
    std::uint64_t shared = 0, leases = 0;            ///< as owner, at present
    std::uint64_t leases_given = 0;                  ///< since the broker started
    std::uint64_t hits = 0, misses = 0, evicted = 0; ///< of the kept imports
    std::uint64_t imports = 0;                       ///< at present
};

/// What this process counts, over all its open devices. Counts of one NIC and of one connection: see
/// nic::statistics() and connection::statistics().
struct statistics {
    copy_traffic copies;
    engine_statistics engines; ///< of the engines in use
    heap_statistics heaps;
    ipc_statistics ipc;
};
/// The statistics of this process at the time of the call.
[[nodiscard]] statistics process_statistics();

} // namespace gaudi
