// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address_map.hpp>
#include <gaudi/copy_engine.hpp>

#include "src/copy/bounce_slab.hpp"
#include "src/copy/completion_event.hpp"
#include "src/copy/copy_tracker.hpp"
#include "src/hl/hl_device.hpp"

#include <deque>
#include <mutex>
#include <optional>

namespace gaudi {

enum class copy_direction : std::uint8_t { down, up, within };

// How an engine carries out one copy.
struct copy_details {
    copy_hints hints = {};
    // The path that the copy counts as; nullopt: it is a step of a larger copy, which counts as a whole.
    std::optional<copy_path> counted = copy_path::engine;
    // Kept until the copy has ended and its ticket was asked about it. A ticket that is destroyed earlier
    // waits for the copy.
    std::shared_ptr<const void> kept = {};
    // false: the caller knows that the device can access the addresses, and they are not looked up.
    bool checked = true;
};

// A copy engine: checks addresses and keeps the outcomes of operations. Derived classes start copies and
// detect their completion. An operation is identified by its slot. One mutex guards all state.
class copy_core : public copy_tracker {
public:
    // An engine on the device's queues, or on SynapseAI's call where SynapseAI owns the queues. `map`:
    // where addresses are checked; nullptr: the caller has checked them. errc::copies_absent with the reason.
    static result<std::shared_ptr<copy_core>> make(const std::shared_ptr<hl_device>& device,
                                                   const address_map* map, const copy_options& options);

    result<std::uint32_t> write(device_address to, std::span<const std::byte> from,
                                const copy_details& details);
    result<std::uint32_t> read(std::span<std::byte> to, device_address from, const copy_details& details);
    result<std::uint32_t> copy(device_address to, device_address from, std::uint64_t length,
                               const copy_details& details);
    // Between this device's memory and another's, which this device has imported. Addresses are not looked
    // up.
    virtual result<std::uint32_t> copy_imported(device_address to, device_address from, std::uint64_t length,
                                                copy_direction direction, const copy_details& details);

    std::size_t poll();
    [[nodiscard]] bool done(std::uint32_t slot) override;
    [[nodiscard]] bool finished(std::uint32_t slot) override;
    result<void> wait(std::uint32_t slot, std::chrono::milliseconds limit) override;
    void drop(std::uint32_t slot) override;
    result<int> event_fd(event_when when);
    void arm();
    virtual result<pinned_memory> pin(std::span<std::byte> memory) = 0;
    [[nodiscard]] engine_statistics statistics();
    [[nodiscard]] virtual std::vector<queue_use> queues() = 0;
    [[nodiscard]] hl_device& device() { return *device_; }

protected:
    enum class state : std::uint8_t { unused, pending, finished };
    struct operation {
        copy_core::state state = state::unused;
        bool dropped = false; // the ticket was destroyed: nothing reads the outcome
        std::optional<copy_path> counted;
        // Destroyed without the mutex by the thread that holds the ticket: its destructor may take other
        // locks or hold the last reference to this engine.
        std::shared_ptr<const void> kept;
        std::uint64_t bytes = 0;
        std::optional<error> failure;
        bounce_slab::use bounce;
    };
    // Operations of one kind, at stable addresses.
    template <typename Operation>
    class slots {
    public:
        std::uint32_t take() {
            if (free_.empty()) {
                all_.emplace_back();
                return static_cast<std::uint32_t>(all_.size() - 1);
            }
            const auto slot = free_.back();
            free_.pop_back();
            return slot;
        }
        void release(std::uint32_t slot) {
            all_[slot] = {};
            free_.push_back(slot);
        }
        Operation& operator[](std::uint32_t slot) { return all_[slot]; }
        [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(all_.size()); }

    private:
        std::deque<Operation> all_;
        std::vector<std::uint32_t> free_;
    };

    copy_core(std::shared_ptr<hl_device> device, const address_map* map, bounce_slab slab)
        : device_(std::move(device)), map_(map), slab_(std::move(slab)) {}

    // What an engine provides, in the order of use: write() and read() call check, new_operation, reach_host
    // and start; poll() calls advance, which calls finish for each copy that has ended.
    [[nodiscard]] virtual result<void> check(device_address address, std::uint64_t length) const = 0;
    result<std::uint32_t> start_on_device(device_address to, device_address from, std::uint64_t length,
                                          copy_direction direction, const copy_details& details);
    // All with the mutex held.
    virtual operation& at(std::uint32_t slot) = 0;
    virtual std::uint32_t new_operation() = 0;
    std::uint32_t begin_operation(std::uint64_t bytes, const copy_details& details);
    virtual void release(std::uint32_t slot) = 0;
    // The address at which the engine accesses host memory until the operation ends.
    virtual result<std::uint64_t> reach_host(std::uint32_t slot, std::span<std::byte> memory,
                                             bool to_device) = 0;
    virtual result<std::uint32_t> start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                        std::uint64_t length, copy_direction direction,
                                        const copy_hints& hints) = 0;
    // Collects completions and submits waiting copies, without blocking. Returns how many copies ended.
    virtual std::size_t advance() = 0;
    // Submits the pending batch now: a caller blocks on it.
    virtual void flush_batch() {}
    void finish(operation& done);
    // Without the mutex: sleeps until the operation may have completed, at most this long.
    virtual void sleep(std::uint32_t slot, std::chrono::microseconds limit) = 0;
    // The body of the thread that serves event_fd().
    virtual void watch() = 0;

    const std::shared_ptr<hl_device> device_;
    const address_map* const map_;
    std::mutex mutex_;
    bounce_slab slab_;
    engine_statistics statistics_;
    completion_event event_; // ended or abandoned by the derived classes' destructors
};

// Copies that are steps of a larger one, which counts as a whole.
result<copy_ticket> read_step(const copy_engine& engine, std::span<std::byte> to, device_address from);
result<copy_ticket> write_step(const copy_engine& engine, device_address to, std::span<const std::byte> from);

// Pinned memory as its engine keeps it.
class pin_core {
public:
    pin_core() = default;
    virtual ~pin_core() = default;
    pin_core(const pin_core&) = delete;
    pin_core& operator=(const pin_core&) = delete;
    [[nodiscard]] virtual std::span<std::byte> bytes() const = 0;
    [[nodiscard]] virtual device_address address() const = 0;
};

} // namespace gaudi
