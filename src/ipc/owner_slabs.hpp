// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include "src/os/shared_memory.hpp"

#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace gaudi {

class owner_link;

// Memory that this process shares with one owner, for copies that the owner makes. Thread-safe.
class owner_slabs {
public:
    struct slab {
        std::span<std::byte> bytes;
        std::uint64_t offset = 0; // names the slab in requests to the owner
    };
    static constexpr std::size_t slab_bytes = 1 << 20, count = 8;

    // nullopt: all are in use. The first call asks the owner to map the memory.
    result<std::optional<slab>> acquire(owner_link& link);
    void release(std::uint64_t offset);

private:
    std::mutex attaching_; // held while the owner is asked; never by release()
    shared_memory memory_;
    std::mutex mutex_; // guards the list
    std::vector<std::uint64_t> free_;
};

} // namespace gaudi
