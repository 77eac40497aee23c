// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copier.hpp>
#include <gaudi/device.hpp>

#include "src/copy/copy_core.hpp"
#include "src/transfer/copy_job.hpp"

#include <functional>
#include <mutex>

namespace gaudi {

// The open devices of this process and their engines, as a copier uses them. Thread-safe.
class device_table {
public:
    explicit device_table(const copier_options& options) : options_(options) {}

    // errc::not_allocated: the device is not open; copies_absent.
    result<std::shared_ptr<copy_core>> engine_of(unsigned index);
    // An engine on the context of leased memory: that of this process's own device, if it has that context
    // open, or one on the context that the owner lets this process join. errc::not_granted, copies_absent.
    result<std::shared_ptr<copy_core>> engine_on_context(const lease_core& lease);
    // The device of an end. An error where the range is not allocated memory of that device.
    result<std::shared_ptr<device>> device_of(const copy_end& end, std::uint64_t length);
    void forget(unsigned index);
    void drop_lost();
    // Visits the engines that were used and still exist. `visit` must not call back into the table.
    template <typename F>
    void for_each_engine(F&& visit) {
        const std::lock_guard guard(mutex_);
        for (const auto& entry_of_device : entries_)
            if (entry_of_device.kept)
                visit(*entry_of_device.kept);
            else if (const auto core = entry_of_device.engine.lock())
                visit(*core);
        for (const auto& joined : joined_)
            if (const auto core = joined.engine.lock())
                visit(*core);
    }
    // `visit` is called for each engine that is used for the first time after this call.
    void when_new(std::function<void(copy_core&)> visit);

private:
    struct entry {
        std::shared_ptr<copy_core> kept;
        std::weak_ptr<copy_core> engine;
        std::weak_ptr<hl_device> without_engine; // the device has no engine: not asked again
        std::optional<error> why_none;
    };
    // An engine on a context that this process has joined. The link keeps it.
    struct joined_engine {
        const owner_link* link;
        std::uint64_t node;
        std::weak_ptr<copy_core> engine;
    };
    entry& at(unsigned index);
    [[nodiscard]] std::shared_ptr<copy_core> find_joined(const owner_link* link, std::uint64_t node);

    const copier_options options_;
    std::mutex mutex_;
    std::vector<entry> entries_; // by index
    std::vector<joined_engine> joined_;
    std::function<void(copy_core&)> when_new_;
};

} // namespace gaudi
