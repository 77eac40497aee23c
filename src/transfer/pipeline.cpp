// SPDX-License-Identifier: BSD-3-Clause
// Each slab passes through empty, filling, full, draining. Both sides only start and check: neither ever
// blocks the other, and slabs at different stages overlap.
#include "src/transfer/pipeline.hpp"
#include "src/os/internals.hpp"

#include "src/error/try.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace gaudi {

pipeline::pipeline(copy_path path, std::uint64_t bytes, std::shared_ptr<const void> kept, slab_set slabs,
                   std::unique_ptr<pipeline_step> source, std::unique_ptr<pipeline_step> destination)
    : pending_copy(path, bytes, std::move(kept)), slabs_(std::move(slabs)), source_(std::move(source)),
      destination_(std::move(destination)), length_(bytes) {}

pipeline::~pipeline() {
    pipeline::release_resources();
}

void pipeline::release_resources() {
    // Steps first: an engine's step waits for its copies, which use the slabs.
    source_.reset();
    destination_.reset();
    if (const auto release = std::exchange(slabs_.release, nullptr))
        release();
}

void pipeline::sleep(std::chrono::milliseconds limit) {
    if (slabs_.sleep)
        slabs_.sleep(limit);
    else
        std::this_thread::yield();
}

bool pipeline::settle(piece& current, const std::optional<result<void>>& seen, stage then) {
    if (!seen)
        return false;
    current.stage = then;
    if (!*seen) {
        // The first failure is reported. No slab is filled after it, and those in progress are waited for:
        // their copies must not write into slabs that the next copy uses.
        failure_ = failure_.value_or(seen->error());
        current.stage = stage::empty;
    }
    return true;
}

// Moves a slab to its next stage; false where it cannot advance yet.
bool pipeline::advance(unsigned slab) {
    auto& current = pieces_[slab];
    switch (current.stage) {
    case stage::empty: {
        if (begun_ == length_ || failure_)
            return false;
        current.offset = begun_;
        current.length = std::min<std::uint64_t>(length_ - begun_, slabs_.memory[slab].size());
        begun_ += current.length;
        current.stage = stage::filling;
        if (auto started = source_->start(slab, slabs_.memory[slab].first(current.length), current.offset);
            !started)
            return settle(current, started, stage::empty);
        return true;
    }
    case stage::filling:
        return settle(current, source_->check(slab), stage::full);
    case stage::full:
        if (failure_) {
            current.stage = stage::empty;
            return true;
        }
        current.stage = stage::draining;
        if (auto started =
                destination_->start(slab, slabs_.memory[slab].first(current.length), current.offset);
            !started)
            return settle(current, started, stage::empty);
        return true;
    case stage::draining:
        if (!settle(current, destination_->check(slab), stage::empty))
            return false;
        ended_ += current.length;
        return true;
    }
    return false;
}

std::optional<result<void>> pipeline::check() {
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned slab = 0; slab < slabs_.count; ++slab)
            moved = advance(slab) || moved;
    }
    const bool idle = std::all_of(pieces_.begin(), pieces_.end(),
                                  [](const piece& each) { return each.stage == stage::empty; });
    if (!idle)
        return std::nullopt;
    if (failure_)
        return result<void>(tl::unexpected(*failure_));
    return ended_ < length_ ? std::nullopt : std::optional(result<void>());
}

namespace {

class host_side : public pipeline_step {
public:
    host_side(std::span<std::byte> memory, bool source) : memory_(memory), source_(source) {}
    result<void> start(unsigned, std::span<std::byte> bytes, std::uint64_t offset) override {
        auto* const own = memory_.data() + offset;
        std::memcpy(source_ ? bytes.data() : own, source_ ? own : bytes.data(), bytes.size());
        return {};
    }
    std::optional<result<void>> check(unsigned) override { return result<void>(); }

private:
    std::span<std::byte> memory_;
    bool source_;
};

class engine_side : public pipeline_step {
public:
    engine_side(std::shared_ptr<copy_core> engine, device_address base, bool source,
                std::vector<pinned_memory> pins)
        : engine_(std::move(engine)), base_(base), source_(source), pins_(std::move(pins)) {}
    ~engine_side() override {
        // The device may still be writing to the slab, or reading from it.
        for (auto& ticket : tickets_)
            (void)ticket.wait();
    }
    result<void> start(unsigned slab, std::span<std::byte> bytes, std::uint64_t offset) override {
        const copy_details details{{}, std::nullopt, nullptr, false};
        GAUDI_TRY(const auto slot, source_ ? engine_->read(bytes, base_ + offset, details)
                                           : engine_->write(base_ + offset, bytes, details));
        tickets_[slab] = internals::wrap<copy_ticket>(engine_, slot, copy_path::staged, bytes.size());
        return {};
    }
    std::optional<result<void>> check(unsigned slab) override {
        if (!tickets_[slab].done())
            return std::nullopt;
        return tickets_[slab].wait();
    }

private:
    std::shared_ptr<copy_core> engine_;
    device_address base_;
    bool source_;
    std::vector<pinned_memory> pins_;
    std::array<copy_ticket, pipeline::most_slabs> tickets_;
};

} // namespace

std::unique_ptr<pipeline_step> host_step(std::span<std::byte> memory, bool source) {
    return std::make_unique<host_side>(memory, source);
}

std::unique_ptr<pipeline_step> engine_step(std::shared_ptr<copy_core> engine, device_address base,
                                           bool source, std::vector<pinned_memory> pins) {
    return std::make_unique<engine_side>(std::move(engine), base, source, std::move(pins));
}

} // namespace gaudi
