// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/copy/copy_core.hpp"
#include "src/os/mapping.hpp"

#include <map>
#include <mutex>
#include <vector>

namespace gaudi {

// Host memory that staged copies go through, pinned for the engines that use it. Thread-safe.
class slab_pool {
public:
    static constexpr unsigned slabs = 4;
    static constexpr std::size_t slab_bytes = 1 << 20;

    // The slabs of one copy.
    class set {
    public:
        explicit set(mapping memory) : memory_(std::move(memory)) {}
        [[nodiscard]] std::span<std::byte> slab(unsigned index) const {
            return memory_.bytes().subspan(index * slab_bytes, slab_bytes);
        }
        // Pins a slab for an engine, once. `keep`: the pin stays after this copy.
        result<void> pin(unsigned index, const std::shared_ptr<copy_core>& engine, bool keep);

    private:
        friend class slab_pool;
        struct kept_pin {
            pinned_memory pinned;
            bool keep;
        };
        mapping memory_;
        std::uint64_t drops_ = 0; // the pool's count when the set was taken
        // By engine, which each pin keeps alive, and slab. Declared after the memory, so that it is unpinned
        // first.
        std::map<std::pair<copy_core*, unsigned>, kept_pin> pins_;
    };

    result<std::shared_ptr<set>> take();
    // Copies from and to the set must have completed.
    void release(const std::shared_ptr<set>& used);
    // Drops the pins of the selected engines.
    template <typename F>
    void drop_pins(F&& of_engine) {
        const std::lock_guard guard(mutex_);
        ++drops_;
        for (const auto& each : spare_)
            std::erase_if(each->pins_, [&](const auto& pin) { return of_engine(*pin.first.first); });
    }

private:
    std::mutex mutex_;
    std::uint64_t drops_ = 0; // counts drop_pins(): sets in use then drop their pins when they are returned
    std::vector<std::shared_ptr<set>> spare_;
};

} // namespace gaudi
