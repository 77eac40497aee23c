// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/transfer/pending_copy.hpp"
#include "src/transfer/slab_pool.hpp"

#include <array>
#include <functional>

namespace gaudi {

// One side of a copy through host memory: copies pieces into slabs, or out of them.
class pipeline_step {
public:
    pipeline_step() = default;
    virtual ~pipeline_step() = default;
    pipeline_step(const pipeline_step&) = delete;
    pipeline_step& operator=(const pipeline_step&) = delete;

    // Starts copying `bytes` between the slab and this side, at `offset` of the whole copy.
    virtual result<void> start(unsigned slab, std::span<std::byte> bytes, std::uint64_t offset) = 0;
    // The result of the piece; nothing while it has not ended.
    virtual std::optional<result<void>> check(unsigned slab) = 0;
};

// A copy in pieces through host memory: while one slab is filled, others are emptied.
class pipeline final : public pending_copy {
public:
    static constexpr unsigned most_slabs = slab_pool::slabs;
    // The host memory of this copy.
    struct slab_set {
        std::array<std::span<std::byte>, most_slabs> memory;
        unsigned count = 0;                                   // slabs in use
        std::function<void()> release;                        // called after the steps are destroyed
        std::function<void(std::chrono::milliseconds)> sleep; // none: yield
    };
    pipeline(copy_path path, std::uint64_t bytes, std::shared_ptr<const void> kept, slab_set slabs,
             std::unique_ptr<pipeline_step> source, std::unique_ptr<pipeline_step> destination);
    ~pipeline() override;

private:
    enum class stage : std::uint8_t { empty, filling, full, draining };
    struct piece {
        pipeline::stage stage = stage::empty;
        std::uint64_t offset = 0, length = 0;
    };
    std::optional<result<void>> check() override;
    void release_resources() override;
    void sleep(std::chrono::milliseconds limit) override;
    bool advance(unsigned slab);
    // Applies the result of a step, if there is one: moves the piece to `then`, or records the failure.
    bool settle(piece& current, const std::optional<result<void>>& seen, stage then);

    slab_set slabs_;
    std::unique_ptr<pipeline_step> source_, destination_;
    std::array<piece, most_slabs> pieces_;
    const std::uint64_t length_;
    std::uint64_t begun_ = 0, ended_ = 0;
    std::optional<error> failure_;
};

// `source`: copies from its side into the slabs; otherwise out of them.
std::unique_ptr<pipeline_step> host_step(std::span<std::byte> memory, bool source);
// The slabs are already pinned for the engine, or pinned by `pins`, which the step owns.
std::unique_ptr<pipeline_step> engine_step(std::shared_ptr<copy_core> engine, device_address base,
                                           bool source, std::vector<pinned_memory> pins = {});

} // namespace gaudi
