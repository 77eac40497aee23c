// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/connection/operation.hpp"
#include "src/connection/slab_memory.hpp"
#include "src/os/ring.hpp"

namespace gaudi {

// Slabs for outgoing and slabs for incoming data of one device, separate so that neither direction waits for
// the other. Copies and network overlap.
class staging {
public:
    static constexpr unsigned slabs_per_direction = 8;

    static result<std::unique_ptr<staging>> make(const nic_core& nic, const copy_engine& engine,
                                                 std::uint32_t slab_bytes);
    ~staging();
    staging(const staging&) = delete;
    staging& operator=(const staging&) = delete;

    // One part of an operation in a slab.
    struct part {
        unsigned slab = 0;
        std::uint32_t operation = 0;
        std::uint32_t bytes = 0;
        copy_ticket copy;
    };

    [[nodiscard]] const slab_memory& memory() const { return memory_; }

    // Outgoing: fill() starts a copy from the device into a slab; filled parts are returned in the order of
    // the calls.
    [[nodiscard]] bool can_fill() const { return !free_out_.empty() && !filling_.full(); }
    result<void> fill(std::uint32_t operation, device_address from, std::uint32_t bytes);
    // The next filled part. The caller owns its slab until release_out().
    [[nodiscard]] bool filled();
    result<part> take_filled();
    void release_out(unsigned slab) { free_out_.push(slab); }

    // Incoming: a slab for the NIC to write; start_delivery() copies it to the device.
    [[nodiscard]] bool can_receive() const { return !free_in_.empty(); }
    [[nodiscard]] unsigned take_in() { return free_in_.pop(); }
    void release_in(unsigned slab) { free_in_.push(slab); }
    // A slab for an RDMA Read, from the outgoing ones.
    [[nodiscard]] bool can_read() const { return !free_out_.empty(); }
    [[nodiscard]] unsigned take_out() { return free_out_.pop(); }
    result<void> start_delivery(unsigned slab, std::uint32_t operation, device_address to,
                                std::uint32_t bytes);
    // The next part whose copy to the device has completed; its slab is free again.
    [[nodiscard]] bool delivered();
    result<part> take_delivered();
    [[nodiscard]] bool delivering() const { return !delivering_.empty(); }
    // Waits for every copy and ignores its result.
    void settle();
    [[nodiscard]] bool copying() const { return !filling_.empty() || !delivering_.empty(); }

private:
    explicit staging(slab_memory memory);

    slab_memory memory_;
    ring<unsigned> free_out_, free_in_;
    ring<part> filling_, delivering_;
};

// The staging of a connection, for each device whose memory the NIC cannot reach.
class staging_set {
public:
    result<staging*> find_or_make(const nic_core& nic, const copy_engine& engine, std::uint32_t slab_bytes);
    // Completes the parts that were copied to their device; returns how many.
    result<std::size_t> collect(operation_table& operations);
    [[nodiscard]] bool delivering() const;
    [[nodiscard]] bool copying() const;
    void settle();
    // In a child of fork: forgets the copies, which belong to the parent.
    void abandon();

private:
    std::vector<std::unique_ptr<staging>> stagings_;
};

} // namespace gaudi
