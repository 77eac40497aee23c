// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/region.hpp>

#include "src/memory/heap_core.hpp"
#include "src/rdma/control_channel.hpp"
#include "src/rdma/slab_memory.hpp"
#include "src/rdma/staging_source.hpp"

#include <deque>
#include <functional>
#include <mutex>

namespace gaudi {

// One-sided access to memory that no NIC can reach, on the side that owns it. The peer asks over TCP; slabs
// of host memory are lent to it part by part, which its NIC writes or reads; the copy engine carries them to
// or from the device. Several slabs at a time, so that copies and network overlap.

// The frames of it.
struct ask_frame {
    std::uint64_t id = 0; // the asker's
    bool writing = false;
    std::uint32_t key = 0;
    std::uint64_t address = 0, length = 0;

    [[nodiscard]] std::vector<std::byte> encode() const;
    static std::optional<ask_frame> decode(std::span<const std::byte> body);
};
struct lend_frame {
    std::uint64_t id = 0, offset = 0, address = 0;
    std::uint32_t bytes = 0, key = 0, slab = 0;

    [[nodiscard]] std::vector<std::byte> encode() const;
    static std::optional<lend_frame> decode(std::span<const std::byte> body);
};
// The asker has written or read the slab.
struct back_frame {
    std::uint64_t id = 0;
    std::uint32_t slab = 0;

    [[nodiscard]] std::vector<std::byte> encode() const;
    static std::optional<back_frame> decode(std::span<const std::byte> body);
};
// All of it is done, or refused.
struct over_frame {
    std::uint64_t id = 0;
    std::string refusal;

    [[nodiscard]] std::vector<std::byte> encode() const;
    static std::optional<over_frame> decode(std::span<const std::byte> body);
};

// Lends slabs for the memory of one device.
class lender {
public:
    static constexpr std::uint32_t slabs = 8;
    static constexpr std::size_t most_jobs = 64; // a peer of our making has one
    using sender = std::function<result<void>(frame_kind, std::span<const std::byte>)>;
    // Whether the peer may still touch the memory, asked before each copy from or to the device.
    using permission = std::function<result<void>(const ask_frame&)>;

    static result<std::unique_ptr<lender>> make(const nic_core& card, const staging_source& source,
                                                std::uint32_t slab_bytes, sender send, permission permitted);
    ~lender();
    lender(const lender&) = delete;
    lender& operator=(const lender&) = delete;

    [[nodiscard]] const slab_memory& memory() const { return memory_; }
    // Waits for the copies from and to these bytes of the device: from any thread.
    void wait_for_copies(std::uint64_t address, std::uint64_t length);
    // The range has been checked. False where this id is under way already, or too many are.
    [[nodiscard]] bool begin(const ask_frame& asked);
    // False where the slab was not lent for this.
    [[nodiscard]] result<bool> give_back(const back_frame& returned);
    [[nodiscard]] bool busy() const { return !jobs_.empty(); }
    [[nodiscard]] bool copying() const;
    // Waits for every copy, whose outcome nobody wants.
    void settle();
    // How much happened.
    result<std::size_t> progress();

private:
    enum class state : std::uint8_t { free, filling, lent, landing };
    struct slab {
        lender::state state = state::free;
        std::uint64_t id = 0, offset = 0;
        std::uint32_t bytes = 0;
        copy_ticket copy;
        // The peer's keys to this slab alone, each made when it is first needed.
        mr_handle for_reading, for_writing;

        [[nodiscard]] bool copying() const { return state == state::filling || state == state::landing; }
    };
    struct job {
        ask_frame asked;
        std::uint64_t begun = 0, done = 0;
    };

    lender(const nic_core& card, slab_memory memory, sender send, permission permitted);
    result<std::uint32_t> key_to(std::uint32_t index, bool writing);
    [[nodiscard]] std::span<std::byte> bytes_of(std::uint32_t index) const {
        return memory_.of(index, slabs_[index].bytes);
    }
    job* find(std::uint64_t id);
    result<void> lend(std::uint32_t index);
    result<void> start_parts();
    result<void> part_done(std::uint32_t index);

    const nic_core& card_;
    // Held while slabs change: a free of the memory looks at them from another thread.
    mutable std::mutex mutex_;
    std::shared_ptr<chunk_observer> frees_;
    slab_memory memory_;
    const sender send_;
    const permission permitted_;
    std::vector<slab> slabs_;
    std::deque<job> jobs_;
};

} // namespace gaudi
