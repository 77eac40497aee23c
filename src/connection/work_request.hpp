// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace gaudi {

constexpr int no_slab = -1;
constexpr std::uint32_t no_operation = ~0U; // a work request of the connection itself

// Where the NIC reads or writes one part of an operation.
struct local_part {
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    int slab = no_slab;
};

// A posted work request, kept until its completion.
struct posted_request {
    std::uint32_t slot = no_operation;
    std::uint32_t bytes = 0;
    int slab = no_slab;
    std::uint64_t offset = 0;  // in the operation; used for data that a slab receives
    int remote_slab = no_slab; // in the peer's staging
};

} // namespace gaudi
