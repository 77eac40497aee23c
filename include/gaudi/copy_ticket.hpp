// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_path.hpp>
#include <gaudi/error.hpp>
#include <gaudi/unique_handle.hpp>

#include <chrono>
#include <memory>

namespace gaudi {

class copy_tracker;
struct internals;

/// The ticket of one copy. Destroying a ticket does not cancel the copy: a copy on the device's own engine
/// continues by itself; for a copy by any other path the destructor waits until it has completed.
class copy_ticket {
public:
    copy_ticket() = default; ///< of no copy; it is done

    /// Whether the copy has completed. Never blocks; drives the copy.
    [[nodiscard]] bool done();
    /// Whether the copy has completed, as far as is known without driving it: poll the engine or the copier
    /// first.
    [[nodiscard]] bool finished() const;
    /// Blocks until the copy has completed and returns its outcome. errc::device_lost, peer_gone,
    /// copy_timeout (the copy continues).
    result<void> wait(std::chrono::milliseconds limit = no_limit);
    /// The path that the copy takes.
    [[nodiscard]] copy_path path() const { return path_; }
    /// The length of the copy.
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

private:
    friend struct internals;
    // `slot`: the number of the copy at `tracker`; a copy that has already completed has no tracker.
    copy_ticket(std::shared_ptr<copy_tracker> tracker, std::uint32_t slot, copy_path path,
                std::uint64_t bytes)
        : copy_({std::move(tracker), slot}), bytes_(bytes), path_(path) {}

    struct tracked_copy {
        std::shared_ptr<copy_tracker> tracker;
        std::uint32_t slot = 0;
        explicit operator bool() const { return tracker != nullptr; }
        void close() noexcept;
    };
    unique_handle<tracked_copy> copy_;
    std::uint64_t bytes_ = 0;
    copy_path path_ = copy_path::engine;
};

} // namespace gaudi
