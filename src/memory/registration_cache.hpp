// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>

#include "src/memory/heap_core.hpp"
#include "src/rdma/nic_core.hpp"

#include <map>
#include <mutex>
#include <unordered_map>

namespace gaudi {

// A memory region on a NIC. A child of fork leaves it alone.
class registration {
public:
    registration(std::shared_ptr<nic_core> card, mr_handle made, std::uint64_t bytes);
    ~registration();
    registration(const registration&) = delete;
    registration& operator=(const registration&) = delete;

    [[nodiscard]] std::uint32_t local_key() const { return made_->lkey; }
    [[nodiscard]] std::uint32_t remote_key() const { return made_->rkey; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

private:
    std::shared_ptr<nic_core> card_;
    mr_handle made_;
    std::uint64_t bytes_;
};

// The registrations of one NIC: one a chunk of device memory, kept until the chunk goes or the room is
// needed; one a range of host memory, kept while somebody uses it. Thread-safe.
class registration_cache : public chunk_observer, public std::enable_shared_from_this<registration_cache> {
public:
    registration_cache(std::shared_ptr<nic_core> card, const registration_limits& limits)
        : card_(std::move(card)), limits_(limits) {}

    result<local_region> of(const device_buffer& buffer);
    result<local_region> of(heap_core& heap, device_address address, std::uint64_t length);
    // Memory of SynapseAI's pool, which is registered as a whole.
    result<local_region> of_foreign(device& card, device_address address, std::uint64_t length);
    result<local_region> of(std::span<std::byte> memory);
    [[nodiscard]] registration_statistics statistics();
    void trim();
    void chunk_goes(std::uint64_t serial) override;

private:
    struct kept {
        std::shared_ptr<const registration> what;
        std::uint64_t last_use = 0;
    };
    using host_range = std::pair<const std::byte*, std::size_t>;

    result<local_region> of_chunk(heap_core& heap, const chunk_view& chunk, std::uint64_t address,
                                  std::uint64_t length);
    // The chunk that was asked for last, which is often asked for again.
    [[nodiscard]] std::optional<local_region> of_last_chunk(heap_core& heap, device_address address,
                                                            std::uint64_t length);
    void forget_last_chunk() { last_ = {}; }
    // Once more; with the mutex held.
    [[nodiscard]] local_region again(kept& found, std::uint64_t address, std::uint64_t length);
    static local_region lease(std::shared_ptr<const registration> what, std::uint64_t address,
                              std::uint64_t length, memory_way way);
    // With the mutex held.
    result<void> make_room(std::uint64_t bytes);
    // A new one; others that nobody uses give way to it.
    template <typename Register>
    result<std::shared_ptr<const registration>> add(std::uint64_t bytes, Register&& ask_the_nic);
    void forget_unused_host_memory();
    [[nodiscard]] std::uint64_t held_bytes() const;
    bool evict_one();

    const std::shared_ptr<nic_core> card_;
    const registration_limits limits_;
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, kept> chunks_; // by serial
    std::map<host_range, std::weak_ptr<const registration>> host_;
    std::map<std::uint64_t, std::shared_ptr<const registration>> pools_; // by base
    struct last_chunk {
        std::uint64_t base = 0, length = 0;
        kept* what = nullptr;
    };
    last_chunk last_;
    std::uint64_t uses_ = 0;
    registration_statistics counts_;
};

} // namespace gaudi
