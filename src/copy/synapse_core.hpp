// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/copy/copy_core.hpp"
#include "src/hl/synapse.hpp"
#include "src/os/mapping.hpp"

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace gaudi {

// Copies on a device whose queues are SynapseAI's, by SynapseAI's own call: one stream a direction, an event
// for each copy.
class synapse_core : public copy_core, public std::enable_shared_from_this<synapse_core> {
public:
    static result<std::shared_ptr<copy_core>> make(const std::shared_ptr<hl_device>& device,
                                                   const address_map* known);
    synapse_core(std::shared_ptr<hl_device> device, const address_map* known, synapse_copies api,
                 std::uint32_t id);
    ~synapse_core() override;

    result<std::uint32_t> write(device_address to, std::span<const std::byte> from,
                                const copy_hints& hints) override;
    result<std::uint32_t> read(std::span<std::byte> to, device_address from,
                               const copy_hints& hints) override;
    result<std::uint32_t> copy(device_address to, device_address from, std::uint64_t length,
                               const copy_hints& hints) override;
    result<std::uint32_t> copy_unchecked(device_address to, device_address from, std::uint64_t length,
                                         copy_direction direction, const copy_hints& hints) override;
    result<std::uint32_t> write_unchecked(device_address to, std::span<const std::byte> from,
                                          const copy_hints& hints) override;
    result<std::uint32_t> read_unchecked(std::span<std::byte> to, device_address from,
                                         const copy_hints& hints) override;
    std::size_t poll() override;
    [[nodiscard]] bool done(std::uint32_t slot) override;
    [[nodiscard]] bool finished(std::uint32_t slot) override;
    result<void> wait(std::uint32_t slot, std::chrono::milliseconds limit) override;
    void drop(std::uint32_t slot) override;
    result<int> event_fd() override;
    result<pinned_memory> pin(std::span<std::byte> memory) override;
    [[nodiscard]] copy_statistics statistics() override;
    [[nodiscard]] std::vector<queue_use> queues() override { return {}; } // they are not ours to see
    [[nodiscard]] hl_device& device() override { return *device_; }
    void unpin(std::span<std::byte> memory);

private:
    static constexpr std::size_t bounce_bytes = 16 * 1024, bounces = 32;
    enum class state : std::uint8_t { unused, pending, finished };
    struct operation {
        synapse_core::state state = state::unused;
        bool dropped = false;
        synapse_copies::handle event = nullptr;
        std::optional<error> failure;
        const void* mapped = nullptr; // for this copy alone
        int bounce = -1;
        std::span<std::byte> deliver_to;
    };

    [[nodiscard]] result<void> check(device_address address, std::uint64_t length) const;
    // All with the mutex held.
    result<std::uint32_t> start(std::uint32_t slot, std::uint64_t from, std::uint64_t to,
                                std::uint64_t length, copy_direction direction);
    std::uint32_t new_operation();
    result<std::uint64_t> reach_host(operation& owner, std::span<std::byte> memory, bool writes);
    void finish(operation& done);
    void release(std::uint32_t slot);
    std::size_t collect();
    [[nodiscard]] error failed(std::string_view call, int status) const;
    void watch();

    const std::shared_ptr<hl_device> device_;
    const address_map* const known_;
    const synapse_copies api_;
    const std::uint32_t id_;
    std::array<synapse_copies::handle, 3> streams_{}; // by direction
    mapping slab_;
    bool slab_mapped_ = false;

    std::mutex mutex_;
    std::vector<int> free_bounces_;
    std::deque<operation> operations_; // stable places
    std::vector<std::uint32_t> free_operations_;
    std::vector<synapse_copies::handle> spare_events_;
    std::size_t pending_ = 0;
    std::multimap<std::uintptr_t, std::size_t> pinned_; // begin, length
    copy_statistics statistics_;
    unique_fd event_;
    std::thread watcher_;
    bool ending_ = false;
};

} // namespace gaudi
