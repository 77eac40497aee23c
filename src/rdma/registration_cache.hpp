// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>

#include "src/memory/heap_core.hpp"
#include "src/rdma/nic_core.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

namespace gaudi {

// The live registrations of a cache, whoever holds them.
struct registration_usage {
    std::atomic<std::uint64_t> regions{0}, bytes{0};
};

// A memory region on a NIC. A child of fork does not deregister it.
class registration {
public:
    // A DMA-BUF with a descriptor of its own, from which parts of it are registered for peers.
    struct descriptor {
        unique_fd fd;
        dmabuf_export whole;
    };
    registration(std::weak_ptr<registration_cache> cache, std::shared_ptr<nic_core> nic,
                 std::shared_ptr<registration_usage> usage, mr_handle region, std::uint64_t serial,
                 std::uint64_t bytes, std::optional<descriptor> own);
    ~registration();
    registration(const registration&) = delete;
    registration& operator=(const registration&) = delete;

    [[nodiscard]] std::uint32_t local_key() const { return local_key_; }
    [[nodiscard]] std::uint32_t remote_key() const { return remote_key_; }
    // Never repeats within a cache.
    [[nodiscard]] std::uint64_t serial() const { return serial_; }
    // The cache that made it, for keys to parts of it.
    [[nodiscard]] std::shared_ptr<registration_cache> cache() const { return cache_.lock(); }
    [[nodiscard]] const std::optional<descriptor>& own() const { return own_; }
    // Deregisters now, although the object is still referenced, because the memory is being freed.
    // Thread-safe.
    void end() const;
    [[nodiscard]] bool ended() const;

private:
    const std::weak_ptr<registration_cache> cache_;
    const std::shared_ptr<nic_core> nic_;
    const std::shared_ptr<registration_usage> usage_;
    const std::optional<descriptor> own_; // before the region, which is destroyed first
    mutable std::mutex mutex_;
    mutable mr_handle region_;
    const std::uint32_t local_key_, remote_key_;
    const std::uint64_t serial_, bytes_;

    void count_ended() const;
};

// The registrations of one NIC. For this process, with local rights: one per chunk of device memory, kept
// until the chunk is released or evicted; one per range of host memory, kept while a region uses it. For
// peers, with the rights they were offered: one per range and rights, kept while a key to it exists.
// Thread-safe.
class registration_cache : public chunk_observer, public std::enable_shared_from_this<registration_cache> {
public:
    // `rights` and `domain` apply to what is registered for this process. Rights beyond local ones are
    // allowed only in a domain that no peer's queue pair can reach.
    registration_cache(std::shared_ptr<nic_core> nic, const registration_limits& limits,
                       remote_access rights = remote_access::none, ibv_pd* domain = nullptr)
        : nic_(std::move(nic)), limits_(limits), rights_(rights), domain_(domain) {}

    result<local_region> find_or_register(const device_buffer& buffer);
    result<local_region> find_or_register(heap_core& heap, device_address address, std::uint64_t length);
    // Memory of SynapseAI's pool, which is registered as a whole.
    result<local_region> find_or_register_pool(device& owner, device_address address, std::uint64_t length);
    result<local_region> find_or_register(std::span<std::byte> memory);
    // Any DMA-BUF; registered while a region of it exists.
    result<local_region> find_or_register(const dmabuf_export& window);
    // A key for peers to exactly the region's bytes. Only callers that name the same holder share a key, so
    // that a connection can end its offers without ending those of others.
    result<remote_key> expose(const local_region& region, remote_access rights, std::uint64_t holder = 0);
    [[nodiscard]] registration_statistics statistics();
    void trim();
    void chunk_goes(std::uint64_t serial) override;
    void buffer_freed(device_address base, std::uint64_t length) override;

private:
    struct kept {
        std::shared_ptr<const registration> what;
        std::uint64_t last_use = 0;
        dmabuf_export whole = {}; // the chunk owns the descriptor, open until chunk_goes()
    };
    using host_range = std::pair<const std::byte*, std::size_t>;
    // `registration`: the serial of the local one. Addresses do not identify memory: two DMA-BUFs may have
    // the same one, and host memory may have been mapped anew.
    struct exposed_range {
        std::uint64_t address = 0, length = 0, generation = 0, registration = 0, holder = 0;
        remote_access rights = remote_access::none;
        auto operator<=>(const exposed_range&) const = default;
    };

    struct exposed {
        // Valid while the entry exists: drop() removes the entry before the object is deleted.
        const registration* what = nullptr;
        std::weak_ptr<const registration> held;
        std::uint64_t chunk = 0; // serial; 0: not in a chunk of a heap
    };
    // The last key was dropped: deregisters under the mutex, so that freeing the buffer waits for it.
    void drop(const exposed_range& range, const registration* last);

    result<local_region> find_or_register_chunk(heap_core& heap, const chunk_view& chunk,
                                                std::uint64_t address, std::uint64_t length,
                                                std::uint64_t generation);
    // Fast path: the chunk of the previous lookup.
    [[nodiscard]] std::optional<local_region> find_in_last_chunk(heap_core& heap, device_address address,
                                                                 std::uint64_t length);
    void forget_last_chunk() { last_ = {}; }
    // A region of a chunk that is registered already; with the mutex held.
    [[nodiscard]] local_region reuse(kept& found, std::uint64_t address, std::uint64_t length,
                                     std::uint64_t generation);
    static local_region region_of(std::shared_ptr<const registration> what, std::uint64_t address,
                                  std::uint64_t length, memory_path path, std::uint64_t generation = 0);
    // The range of a region within its DMA-BUF, and its chunk. None where the chunk was released. With the
    // mutex held.
    struct chunk_window {
        dmabuf_export range;
        std::uint64_t chunk = 0;
    };
    [[nodiscard]] std::optional<chunk_window> window_of(const local_region& region) const;
    // With the mutex held.
    result<void> make_room(std::uint64_t bytes);
    // A new registration; unused ones are evicted to make room for it.
    template <typename Register>
    result<std::unique_ptr<const registration>> add(std::uint64_t bytes, Register&& register_it,
                                                    std::optional<registration::descriptor> own = {});
    void forget_expired();
    void forget_chunk(std::uint64_t serial);
    // The pools of devices that were closed or lost.
    void forget_lost_pools();
    bool evict_one();

    const std::shared_ptr<nic_core> nic_;
    const registration_limits limits_;
    const remote_access rights_;
    ibv_pd* const domain_;
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, kept> chunks_; // by serial
    std::map<host_range, std::weak_ptr<const registration>> host_;
    // SynapseAI's pools, each registered as a whole: the serial in chunks_ by the device's context.
    std::map<std::weak_ptr<hl_device>, std::uint64_t, std::owner_less<>> pools_;
    std::map<exposed_range, exposed> exposed_;
    struct last_chunk {
        std::uint64_t base = 0, length = 0;
        kept* what = nullptr;
    };
    last_chunk last_;
    std::uint64_t uses_ = 0, serials_ = 0;
    registration_statistics counts_; // regions and bytes are in usage_
    const std::shared_ptr<registration_usage> usage_ = std::make_shared<registration_usage>();
};

} // namespace gaudi
