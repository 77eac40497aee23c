// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>
#include <gaudi/ipc.hpp>

#include "src/ipc/lease_core.hpp"

#include <deque>

namespace gaudi {

// A copy between memory of this process and leased memory, under way. The lease is counted as in use until it
// has landed.
class ipc_transfer {
public:
    ipc_transfer(std::shared_ptr<lease_core> lease, ipc_way way) : lease_(std::move(lease)), way_(way) {}
    virtual ~ipc_transfer() = default;
    ipc_transfer(const ipc_transfer&) = delete;
    ipc_transfer& operator=(const ipc_transfer&) = delete;

    [[nodiscard]] ipc_way way() const { return way_; }
    // Drives it; never blocks.
    bool done();
    // Waits for it; nothing where the time is over.
    std::optional<result<void>> wait(std::chrono::milliseconds limit);

protected:
    // Nothing: not yet.
    virtual std::optional<result<void>> look() = 0;
    // Sleeps a little, at most this long, until there might be something to see.
    virtual void sleep(std::chrono::milliseconds limit) = 0;
    [[nodiscard]] lease_core& lease() { return *lease_; }

private:
    std::shared_ptr<lease_core> lease_;
    ipc_way way_;
    std::optional<result<void>> outcome_;
};

// One engine does it all.
class engine_transfer : public ipc_transfer {
public:
    engine_transfer(std::shared_ptr<lease_core> lease, ipc_way way, copy_ticket ticket,
                    std::shared_ptr<lease_reach> reach);
    ~engine_transfer() override;

private:
    std::optional<result<void>> look() override;
    void sleep(std::chrono::milliseconds limit) override;
    copy_ticket ticket_;
    std::shared_ptr<lease_reach> reach_;
};

// A NIC in loopback does.
class nic_transfer : public ipc_transfer {
public:
    nic_transfer(std::shared_ptr<lease_core> lease, std::shared_ptr<nic_copier> copier, local_region near,
                 std::shared_ptr<lease_reach> reach, std::uint64_t number);
    ~nic_transfer() override;

private:
    std::optional<result<void>> look() override;
    void sleep(std::chrono::milliseconds limit) override;
    std::shared_ptr<nic_copier> copier_;
    local_region near_;
    std::shared_ptr<lease_reach> reach_;
    std::uint64_t number_;
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// In pieces through host memory: each is brought by the source's step and taken away by the destination's.
class step {
public:
    virtual ~step() = default;
    // Moves `bytes` between the slab and its own side, from `offset` of the whole copy on.
    virtual result<void> start(unsigned slab, std::span<std::byte> bytes, std::uint64_t offset) = 0;
    virtual std::optional<result<void>> look(unsigned slab) = 0;
};

class pipeline : public ipc_transfer {
public:
    static constexpr unsigned slabs = 4;
    struct room {
        std::array<std::span<std::byte>, slabs> slab;
        unsigned count = 0;              // how many of them there are
        std::function<void()> give_back; // after the steps
        std::function<void(std::chrono::milliseconds)> sleep;
    };
    pipeline(std::shared_ptr<lease_core> lease, ipc_way way, room slabs_to_use, std::unique_ptr<step> source,
             std::unique_ptr<step> destination, std::uint64_t length);
    ~pipeline() override;

private:
    enum class stage : std::uint8_t { empty, filling, full, draining };
    struct piece {
        pipeline::stage stage = stage::empty;
        std::uint64_t offset = 0, length = 0;
    };
    std::optional<result<void>> look() override;
    void sleep(std::chrono::milliseconds limit) override;
    bool advance(unsigned slab);

    room room_;
    std::unique_ptr<step> source_, destination_;
    std::array<piece, slabs> pieces_;
    std::uint64_t length_, begun_ = 0, ended_ = 0;
    std::optional<error> failure_;
};

// The ways a step can go.
std::unique_ptr<step> host_step(std::span<std::byte> memory, bool source);
std::unique_ptr<step> engine_step(copy_engine engine, device_address base, bool source);
std::unique_ptr<step> proxy_step(std::shared_ptr<lease_core> lease, std::uint64_t offset, bool source,
                                 std::span<const std::uint64_t> slab_offsets);

} // namespace gaudi
