// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>
#include <gaudi/copy_ticket.hpp>
#include <gaudi/error.hpp>
#include <gaudi/statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace gaudi {

class copy_core;
class pin_core;
struct internals;

/// Host memory that is pinned and mapped for the device: copies from and to it need no preparation. The
/// destructor unmaps it and must not run before these copies have completed. The caller owns the memory
/// itself.
class pinned_memory {
public:
    pinned_memory();
    pinned_memory(pinned_memory&&) noexcept;
    pinned_memory& operator=(pinned_memory&&) noexcept;
    ~pinned_memory();

    /// The host memory.
    [[nodiscard]] std::span<std::byte> bytes() const;
    /// The address at which the device accesses it.
    [[nodiscard]] device_address address() const;

private:
    friend struct internals;
    explicit pinned_memory(std::unique_ptr<pin_core> core);

    std::unique_ptr<pin_core> core_;
};

/// How an engine spreads copies over queues and batches them.
struct copy_options {
    unsigned queues = 2;                     ///< copies alternate between them, and large ones are spread
    std::uint64_t stripe_bytes = 8ULL << 20; ///< a copy of this size or more is spread over several queues
    unsigned batch = 256;                    ///< most packets in one submission
    unsigned eager = 4;                      ///< submissions in flight before small copies are batched
    unsigned in_flight = 0;                  ///< 0: the driver's limit, which is never exceeded
};

/// How one copy is spread; 0: as the engine's options say.
struct copy_hints {
    unsigned queues = 0;
    std::uint64_t stripe_bytes = 0;
    unsigned batch = 0; ///< most packets in its submission, of all copies; at most the engine's
};

/// Whether every completion makes event_fd() readable, or only the next one after arm().
enum class event_when : std::uint8_t { always, armed };

/// One of the device's queues, as this engine uses it.
struct queue_use {
    std::uint32_t queue = 0; ///< the driver's number
    std::uint64_t bytes = 0;
    std::uint64_t busy_ns = 0; ///< time with packets of this engine on it, as far as the engine noticed
    unsigned depth = 0;        ///< packets on it now
};

/// Copies on the device's own DMA engines, of any size and any alignment. Copies are not ordered unless the
/// caller waits for one before it starts the next. A device range must lie within one live allocation.
/// Thread-safe.
///
/// Host memory that is not pinned is reached through a small pinned slab (up to `longest_bounced` bytes,
/// while the slab has room; the source may then be reused at once) or is mapped for the duration of the copy.
/// Sources and destinations must stay valid until the ticket is done.
class copy_engine {
public:
    static constexpr std::size_t longest_bounced = 16 * 1024; ///< shorter copies need no pinned memory

    /// Copies host memory to the device. The caller owns the ticket. errc::size_zero, not_allocated,
    /// range_leaves_allocation, wrong_device, host_range_invalid, device_lost; the same for read() and
    /// copy().
    [[nodiscard]] result<copy_ticket> write(device_address to, std::span<const std::byte> from,
                                            const copy_hints& hints = {});
    /// Copies device memory to the host.
    [[nodiscard]] result<copy_ticket> read(std::span<std::byte> to, device_address from,
                                           const copy_hints& hints = {});
    /// Copies within the device. errc::ranges_overlap.
    [[nodiscard]] result<copy_ticket> copy(device_address to, device_address from, std::uint64_t length,
                                           const copy_hints& hints = {});

    /// Submits waiting copies and collects completions, without blocking. Returns how many copies completed.
    std::size_t poll();
    /// A descriptor that is readable when copies have completed since it was last read (8 bytes, as an
    /// eventfd). The engine owns it: do not close it. From now on a thread of the engine waits for
    /// completions, in addition to callers that poll. With event_when::armed the thread sleeps until arm(),
    /// unless another caller asked for event_when::always.
    [[nodiscard]] result<int> event_fd(event_when when = event_when::always);
    /// Makes event_fd() readable when the next copy completes. After this call and before sleeping, check
    /// whether a copy has completed already.
    void arm();
    /// Pins host memory for copies on this engine. errc::host_range_invalid, map_failed, device_lost.
    [[nodiscard]] result<pinned_memory> pin(std::span<std::byte> memory);
    /// What the engine counted since it was created.
    [[nodiscard]] engine_statistics statistics() const;
    /// The queues that the engine submits to; empty for SynapseAI's copy call, which does not show them.
    [[nodiscard]] std::vector<queue_use> queues() const;
    /// Whether the device failed or was reset: every call fails from then on.
    [[nodiscard]] bool lost() const;

private:
    friend class weak_copy_engine;
    friend struct internals;
    explicit copy_engine(std::shared_ptr<copy_core> core) : core_(std::move(core)) {}
    [[nodiscard]] const std::shared_ptr<copy_core>& core() const { return core_; }

    std::shared_ptr<copy_core> core_;
};

/// Refers to an engine without keeping it, as std::weak_ptr does.
class weak_copy_engine {
public:
    weak_copy_engine() = default;
    /// Refers to that engine.
    weak_copy_engine(const copy_engine& engine) // NOLINT(google-explicit-constructor): as std::weak_ptr
        : core_(engine.core_) {}

    /// The engine, if anything still keeps it.
    [[nodiscard]] std::optional<copy_engine> lock() const;
    /// Whether the engine is gone: lock() returns none.
    [[nodiscard]] bool expired() const { return core_.expired(); }

private:
    std::weak_ptr<copy_core> core_;
};

} // namespace gaudi
