// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/region.hpp>

#include "src/connection/control_channel.hpp"
#include "src/connection/slab_memory.hpp"
#include "src/connection/staging_protocol.hpp"
#include "src/memory/heap_core.hpp"
#include "src/rdma/staging_source.hpp"

#include <deque>
#include <functional>
#include <mutex>

namespace gaudi {

// One-sided access to the memory of one device that no NIC can reach, on the side that owns it. It grants
// slabs of host memory to the peer part by part; the copy engine copies between them and the device. Several
// slabs are in use at a time, so that copies and network overlap.
class remote_staging {
public:
    static constexpr std::uint32_t slabs = 8;
    static constexpr std::size_t most_accesses = 64; // our own initiator opens one at a time
    using frame_sender = std::function<result<void>(frame_kind, std::span<const std::byte>)>;
    // Whether the peer may still access the memory; called before each copy from or to the device.
    using permission = std::function<result<void>(const access_request&)>;

    static result<std::unique_ptr<remote_staging>> make(const nic_core& nic, const staging_source& source,
                                                        std::uint32_t slab_bytes, frame_sender send,
                                                        permission permitted);
    ~remote_staging();
    remote_staging(const remote_staging&) = delete;
    remote_staging& operator=(const remote_staging&) = delete;

    [[nodiscard]] const slab_memory& memory() const { return memory_; }
    // Waits for the copies from and to these bytes of the device. Any thread may call it.
    void wait_for_copies(std::uint64_t address, std::uint64_t length);
    // The caller has checked the range. False where an access with this id is open, or too many are.
    [[nodiscard]] bool open_access(const access_request& request);
    // False where the slab is not granted to the access that the frame names.
    [[nodiscard]] result<bool> return_slab(const slab_return& returned);
    [[nodiscard]] bool busy() const { return !accesses_.empty(); }
    [[nodiscard]] bool copying() const;
    // Waits for every copy and ignores its result.
    void settle();
    // Returns how many copies completed.
    result<std::size_t> progress();

private:
    enum class state : std::uint8_t { free, filling, granted, delivering };
    struct slab_entry {
        remote_staging::state state = state::free;
        std::uint64_t id = 0, offset = 0;
        std::uint32_t bytes = 0;
        copy_ticket copy;
        // The peer's keys to this slab alone, each registered when it is first needed.
        mr_handle for_reading, for_writing;

        [[nodiscard]] bool copying() const { return state == state::filling || state == state::delivering; }
    };
    struct access {
        access_request request;
        std::uint64_t started = 0, done = 0; // bytes
    };

    remote_staging(const nic_core& nic, slab_memory memory, frame_sender send, permission permitted);
    result<std::uint32_t> key_to(std::uint32_t index, bool writing);
    [[nodiscard]] std::span<std::byte> bytes_of(std::uint32_t index) const {
        return memory_.of(index, slabs_[index].bytes);
    }
    access* find(std::uint64_t id);
    result<void> grant(std::uint32_t index);
    result<void> start_parts();
    void part_done(std::uint32_t index);
    result<std::size_t> advance();

    const nic_core& nic_;
    // Held while slabs change: a thread that frees device memory reads them.
    mutable std::mutex mutex_;
    std::shared_ptr<chunk_observer> frees_;
    slab_memory memory_;
    const frame_sender send_;
    const permission permitted_;
    std::vector<slab_entry> slabs_;
    std::deque<access> accesses_;
    std::deque<frame> unsent_; // of the thread that calls progress()
};

} // namespace gaudi
