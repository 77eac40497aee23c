// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>
#include <gaudi/copy_engine.hpp>

#include "src/copy/command_ring.hpp"
#include "src/copy/copy_core.hpp"
#include "src/copy/queue_meter.hpp"
#include "src/hl/hl_device.hpp"

#include <deque>
#include <map>

namespace gaudi {

// Copies on the queues of the submission ioctl. An operation is split into pieces, pieces are batched into
// submissions, and submissions are in flight.
//
// What copies go through each time is in queue_submit.cpp: the functions that copy_core demands of an engine.
// queue_core.cpp has what is done once.
//
// One mutex guards all state. No submission under it can block: the engine counts those in flight and stays
// below the driver's limit, beyond which one spins inside hl-thunk. Host memory that is neither pinned nor
// short is mapped under it, which takes as long as the kernel needs to pin its pages.
class queue_core : public copy_core, public std::enable_shared_from_this<queue_core> {
public:
    // `map`: where addresses are checked; nullptr: the caller has checked them.
    static result<std::shared_ptr<queue_core>> make(const std::shared_ptr<hl_device>& device,
                                                    const address_map* map, const copy_options& options);
    queue_core(std::shared_ptr<hl_device> device, const address_map* map, const copy_options& options,
               command_ring ring, bounce_slab slab);
    ~queue_core() override;

    result<pinned_memory> pin(std::span<std::byte> memory) override;
    void unpin(const host_mapping& gone);
    [[nodiscard]] std::vector<queue_use> queues() override;

private:
    struct queue_operation : operation {
        std::uint32_t pieces_left = 0;
        std::uint64_t last_sequence = 0; // its latest submission; 0: none yet
        mapping duplicate;               // a copy of a source that cannot be pinned because it is read-only
        host_mapping mapped;             // host memory mapped for this copy only
    };

    struct piece {
        std::uint64_t source, destination;
        std::uint32_t size;
        std::uint32_t operation;
        std::uint16_t batch; // most packets in its submission
        std::uint16_t queue; // the driver's number
    };

    static constexpr std::uint32_t several = UINT32_MAX;
    struct flight {
        std::uint64_t sequence;
        unsigned slot;
        std::vector<std::uint32_t> operations; // one entry per piece
        std::vector<std::uint32_t> queues;     // the driver's numbers, one per piece
        std::uint32_t queue;                   // the queue of all pieces, or `several`
    };
    struct pinned_range {
        std::uintptr_t end;
        std::uint64_t address;
    };

    [[nodiscard]] result<void> check(device_address address, std::uint64_t length) const override;
    void sleep(std::uint32_t slot, std::chrono::microseconds limit) override;
    void watch() override;

    // All with the mutex held.
    operation& at(std::uint32_t slot) override { return operations_[slot]; }
    std::uint32_t new_operation() override;
    std::size_t advance() override;
    void flush_batch() override { submit_waiting(true); }
    void release(std::uint32_t slot) override { operations_.release(slot); }
    result<std::uint64_t> reach_host(std::uint32_t slot, std::span<std::byte> memory,
                                     bool to_device) override;
    result<std::uint32_t> start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                std::uint64_t length, copy_direction direction,
                                const copy_hints& hints) override;
    void enqueue(std::uint32_t slot, std::uint64_t source, std::uint64_t destination, std::uint64_t length,
                 copy_direction direction, const copy_hints& hints);
    std::optional<std::uint64_t> pinned_address(const void* begin, std::size_t length) const;
    result<host_mapping> map_for_copy(queue_operation& begun, std::span<std::byte> memory, bool to_device);
    void submit_waiting(bool all);
    bool submit_one();
    std::size_t gather(flight& into, std::vector<hl_cs_chunk>& chunks);
    std::size_t collect();
    void retire(flight& completed);
    std::size_t end_operation(std::uint32_t slot);
    std::size_t fail_all(const error& why);
    [[nodiscard]] bool room_in_flight();
    [[nodiscard]] bool room_among_members(const shared_context& shared);
    [[nodiscard]] std::span<const std::uint32_t> queues_of(copy_direction direction) const;

    const copy_options options_;
    const unsigned limit_; // submissions in flight

    host_mapping mapped_slab_;
    command_ring ring_;
    std::vector<unsigned> free_slots_;
    slots<queue_operation> operations_;
    std::deque<piece> waiting_;
    std::deque<flight> flights_; // by sequence
    std::vector<flight> spare_flights_;
    std::multimap<std::uintptr_t, pinned_range> pinned_;
    unsigned next_queue_ = 0;
    std::uint64_t finished_ = 0; // on a shared context: every submission up to this one has completed
    queue_meter queues_;
};

// Host memory mapped for the device by the driver.
class mapped_pin : public pin_core {
public:
    mapped_pin(std::shared_ptr<queue_core> engine, host_mapping mapped)
        : engine_(std::move(engine)), mapped_(std::move(mapped)) {}
    ~mapped_pin() override { engine_->unpin(mapped_); }
    [[nodiscard]] std::span<std::byte> bytes() const override { return mapped_.bytes(); }
    [[nodiscard]] device_address address() const override { return mapped_.address(); }

private:
    std::shared_ptr<queue_core> engine_;
    host_mapping mapped_;
};

} // namespace gaudi
