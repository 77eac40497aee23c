// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/process.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lab::hca {

// A contiguous range of memory, as the executing process can access it.
struct piece {
    // lost: device memory that the NIC's reads and writes do not reach.
    enum class kind : std::uint32_t { local, hbm, across, null, lost };
    kind where;
    std::uint64_t address; // a pointer of this process, or an address in the other one
    std::uint64_t length;
    [[nodiscard]] bool here() const { return where == kind::local || where == kind::hbm; }
    [[nodiscard]] std::byte* pointer() const { return reinterpret_cast<std::byte*>(address); }
};

// One side of a transfer. `process` owns the pieces of kind `across`.
struct side {
    std::vector<piece> pieces;
    std::uint64_t length = 0;
    int process = 0;
    // A range of this process's own memory.
    static side of(const void* at, std::uint64_t bytes) {
        side made;
        made.add(at, bytes);
        return made;
    }
    void add(const void* at, std::uint64_t bytes) {
        pieces.push_back({piece::kind::local, reinterpret_cast<std::uint64_t>(at), bytes});
        length += bytes;
    }
    void clear() {
        pieces.clear();
        length = 0;
    }
    // How many of the bytes are Gaudi memory.
    [[nodiscard]] std::uint64_t hbm_bytes() const {
        std::uint64_t sum = 0;
        for (const auto& each : pieces)
            sum += each.where == piece::kind::hbm ? each.length : 0;
        return sum;
    }
};

enum class access_result { fine, denied, unmappable };

// Appends the memory of (key, address, length) in `owner` to `to`. denied: no such key, wrong PD, out of
// range, or a missing right.
[[nodiscard]] access_result find_memory(process& here, const segment& owner, std::uint32_t key,
                                        std::uint64_t address, std::uint64_t length, std::uint32_t pd,
                                        std::uint32_t rights, side& to);

// The same for a list; entries of length 0 are skipped.
[[nodiscard]] access_result find_entries(process& here, const segment& owner, const scatter_entry* entries,
                                         std::size_t count, std::uint32_t pd, std::uint32_t rights, side& to);

struct moved {
    bool fine = true;
    bool forbidden = false; // by ptrace rules
    bool gone = false;      // the process has no memory any more: it is exiting
    std::uint64_t mapped = 0, across = 0;
    std::uint64_t from_hbm = 0, to_hbm = 0; // bytes of these from and to DMA-BUF regions
};

// Memory of a region that is contiguous and mapped in this process. It stays valid as long as the region
// exists; a holder needs no other check than find().
struct stretch {
    const shared_mr* region = nullptr;
    std::uint64_t registration = 0; // the region's counter when this was found
    std::uint32_t key = 0;
    bool hbm = false;
    std::uint64_t begin = 0, length = 0; // as addresses of requests
    std::byte* at = nullptr;

    // nullptr: the range is not in this stretch, or the region is gone.
    [[nodiscard]] std::byte* find(std::uint32_t with, std::uint64_t address, std::uint64_t bytes) const {
        const auto offset = address - begin;
        const bool inside = region != nullptr && with == key && offset <= length && bytes <= length - offset;
        const bool there = inside && region->key.load(std::memory_order_seq_cst) == key &&
                           region->registrations.load(std::memory_order_relaxed) == registration;
        return there ? at + offset : nullptr;
    }
};
// A stretch that contains (key, address, length), as large as possible. Empty: the memory is not contiguous
// or may not be accessed.
[[nodiscard]] stretch find_stretch(process& here, const segment& owner, std::uint32_t key,
                                   std::uint64_t address, std::uint64_t length, std::uint32_t pd,
                                   std::uint32_t rights);
// Copies within this process. A copy of word size is one store, so that no reader sees half of it.
void copy_local(std::byte* to, const std::byte* from, std::uint64_t length);

// Copies min of both lengths; the last bytes become visible last. At most one side has pieces of kind
// `across`.
[[nodiscard]] moved copy(const side& to, const side& from);

} // namespace lab::hca
