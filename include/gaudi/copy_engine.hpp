// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/copy_ticket.hpp>
#include <gaudi/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gaudi {

class copy_core;
class pin_core;

// Host memory pinned and mapped for the device: copies from and to it need no preparation. Unmapped by the
// destructor, which must not run before the copies have finished. The memory itself stays the caller's.
class pinned_memory {
public:
    pinned_memory();
    explicit pinned_memory(std::unique_ptr<pin_core> core);
    pinned_memory(pinned_memory&&) noexcept;
    pinned_memory& operator=(pinned_memory&&) noexcept;
    ~pinned_memory();

    [[nodiscard]] std::span<std::byte> bytes() const;
    // Where the device sees it.
    [[nodiscard]] device_address address() const;

private:
    std::unique_ptr<pin_core> core_;
};

struct copy_options {
    unsigned queues = 2;                     // that copies take turns on, and large ones are spread over
    std::uint64_t stripe_bytes = 8ULL << 20; // a copy this large is spread over several queues
    unsigned batch = 256;                    // packets that one submission may carry
    unsigned eager = 4;                      // submissions in flight before small copies are batched
    unsigned in_flight = 0;                  // 0: the driver's limit; never more than that
};

// How one copy is spread; 0: as the engine's options say.
struct copy_hints {
    unsigned queues = 0;
    std::uint64_t stripe_bytes = 0;
    unsigned batch = 0; // packets in its submission, its own and others'; never more than the engine's
};

enum class event_when : std::uint8_t { always, armed };

// One of the device's queues, as this engine uses it.
struct queue_use {
    std::uint32_t queue = 0; // the driver's number
    std::uint64_t bytes = 0;
    std::uint64_t busy_ns = 0; // something of ours was on it, as far as was noticed
    unsigned depth = 0;        // packets on it now
};

struct copy_statistics {
    std::uint64_t copies = 0, bytes = 0;
    std::uint64_t landed = 0, failed = 0; // finished, well or not; those that did not go well
    std::uint64_t submissions = 0, packets = 0;
    std::uint64_t most_in_flight = 0;
    std::uint64_t pinned = 0, bounced = 0, mapped = 0; // how host memory was reached
};

// Copies on the device's own DMA engines. Any size, any alignment; no order between copies unless one is
// waited for before the next is submitted. Device ranges must lie within one live allocation. Thread-safe.
//
// Host memory that is not pinned is reached through a small pinned slab (up to 16 KiB; the source may be
// reused at once) or is mapped for the time of the copy. A source or destination must stay valid until the
// ticket is done.
class copy_engine {
public:
    explicit copy_engine(std::shared_ptr<copy_core> core) : core_(std::move(core)) {}

    [[nodiscard]] result<copy_ticket> write(device_address to, std::span<const std::byte> from,
                                            const copy_hints& hints = {});
    [[nodiscard]] result<copy_ticket> read(std::span<std::byte> to, device_address from,
                                           const copy_hints& hints = {});
    [[nodiscard]] result<copy_ticket> copy(device_address to, device_address from, std::uint64_t length,
                                           const copy_hints& hints = {});

    // Submits what waits and collects what finished, without blocking. Returns how many copies finished.
    std::size_t poll();
    // Readable when copies finished since it was last read (8 bytes, as an eventfd). The engine's; do not
    // close it. A thread waits for them from now on, beside whoever polls; with event_when::armed it sleeps
    // until arm(), if nobody wants to hear of all of them.
    [[nodiscard]] result<int> event_fd(event_when when = event_when::always);
    // The next copy that finishes makes event_fd() readable. Look, after this and before you sleep, whether
    // one has.
    void arm();
    [[nodiscard]] result<pinned_memory> pin(std::span<std::byte> memory);
    [[nodiscard]] copy_statistics statistics() const;
    [[nodiscard]] std::vector<queue_use> queues() const;
    // The device failed or was reset: everything fails from now on.
    [[nodiscard]] bool lost() const;

    [[nodiscard]] const std::shared_ptr<copy_core>& core() const { return core_; }

private:
    std::shared_ptr<copy_core> core_;
};

} // namespace gaudi
