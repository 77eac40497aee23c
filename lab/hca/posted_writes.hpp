// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"

#include <cstdint>

// Mode posted=TIME. On PCIe the bytes that a NIC writes to device memory and the completion that it writes to
// host memory take different ways, so that the completion may be seen first. In this mode the last bytes of a
// message to device memory arrive after its completion: when the same NIC reads memory of that device, when
// the queue pair's next message to device memory is written, or after TIME.
namespace lab::hca {

// Holds back the last bytes of one message.
class held_bytes {
public:
    // The message is about to be copied to `to`, memory of the process of `target`: where its last bytes are
    // device memory, a place of the queue pair replaces them in `to`.
    held_bytes(process& here, const endpoint& target, side& to, std::uint64_t length, bool own_read);
    // The message was copied: from now on its last bytes may arrive.
    void copied(moved& sum);

private:
    endpoint target_;
    posted_write& write_;
    std::uint32_t length_ = 0; // 0: nothing is held back
};

// The NIC of `reader` is about to read `memory` of that process: what the NIC wrote to the same devices
// arrives.
void push_writes(process& here, const endpoint& reader, const side& memory);

// What is on its way arrives now.
void arrive(process& here, shared_qp& qp);
// The same for all that goes to memory of this device.
void arrive_at(process& home, std::uint32_t gaudi);
// The same for what is due; returns when the next is due. For the guard thread.
[[nodiscard]] std::uint64_t arrive_due(process& home);

} // namespace lab::hca
