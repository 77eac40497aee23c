// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/transfer.hpp"

#include "src/error/try.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <thread>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

constexpr auto for_ever = std::chrono::hours(1);

} // namespace

bool ipc_transfer::done() {
    if (!outcome_) {
        outcome_ = lease_->forked() ? result<void>(tl::unexpected(lease_->gone_error())) : look();
        if (outcome_)
            lease_->leave();
    }
    return outcome_.has_value();
}

std::optional<result<void>> ipc_transfer::wait(std::chrono::milliseconds limit) {
    const auto deadline = clock::now() + limit;
    while (!done()) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now());
        if (left.count() <= 0)
            return std::nullopt;
        sleep(std::min(left, std::chrono::milliseconds(10)));
    }
    return outcome_;
}

engine_transfer::engine_transfer(std::shared_ptr<lease_core> lease, ipc_way way, copy_ticket ticket,
                                 std::shared_ptr<lease_reach> reach)
    : ipc_transfer(std::move(lease), way), ticket_(std::move(ticket)), reach_(std::move(reach)) {}

engine_transfer::~engine_transfer() {
    (void)wait(for_ever);
}

std::optional<result<void>> engine_transfer::look() {
    if (!ticket_.done())
        return std::nullopt;
    reach_.reset(); // whoever keeps the ticket does not keep the memory
    return ticket_.wait();
}

void engine_transfer::sleep(std::chrono::milliseconds limit) {
    (void)ticket_.wait(limit);
}

nic_transfer::nic_transfer(std::shared_ptr<lease_core> lease, std::shared_ptr<nic_copier> copier,
                           local_region near, std::shared_ptr<lease_reach> reach, std::uint64_t number)
    : ipc_transfer(std::move(lease), ipc_way::nic), copier_(std::move(copier)), near_(std::move(near)),
      reach_(std::move(reach)), number_(number) {}

nic_transfer::~nic_transfer() {
    (void)wait(for_ever);
}

std::optional<result<void>> nic_transfer::look() {
    if (copier_->poll() >= number_) {
        reach_.reset(); // whoever keeps the ticket does not keep the memory
        return result<void>();
    }
    // The queue pair's own timeout and retries end sooner, unless the NIC itself is gone and says nothing
    // more.
    constexpr auto patience = std::chrono::seconds(30);
    if (clock::now() - started_ > patience)
        copier_->end(error(errc::connection_broken, "the NIC says nothing about a transfer to itself"));
    if (auto why = copier_->broken()) {
        reach_.reset();
        return result<void>(tl::unexpected(*why));
    }
    return std::nullopt;
}

void nic_transfer::sleep(std::chrono::milliseconds) {
    std::this_thread::yield();
}

pipeline::pipeline(std::shared_ptr<lease_core> lease, ipc_way way, room slabs_to_use,
                   std::unique_ptr<step> source, std::unique_ptr<step> destination, std::uint64_t length)
    : ipc_transfer(std::move(lease), way), room_(std::move(slabs_to_use)), source_(std::move(source)),
      destination_(std::move(destination)), length_(length) {}

pipeline::~pipeline() {
    (void)wait(for_ever);
    source_.reset();
    destination_.reset();
    if (room_.give_back)
        room_.give_back();
}

void pipeline::sleep(std::chrono::milliseconds limit) {
    if (room_.sleep)
        room_.sleep(limit);
    else
        std::this_thread::yield();
}

// Whether a slab came further.
bool pipeline::advance(unsigned slab) {
    auto& each = pieces_[slab];
    const auto bytes = room_.slab[slab].first(each.length);
    const auto settle = [&](std::optional<result<void>> seen, stage then) {
        if (!seen)
            return false;
        each.stage = then;
        if (!*seen) {
            failure_ = failure_.value_or(seen->error());
            each.stage = stage::empty;
        }
        return true;
    };
    switch (each.stage) {
    case stage::empty: {
        if (begun_ == length_ || failure_)
            return false;
        each.offset = begun_;
        each.length = std::min<std::uint64_t>(length_ - begun_, room_.slab[slab].size());
        begun_ += each.length;
        each.stage = stage::filling;
        if (auto started = source_->start(slab, room_.slab[slab].first(each.length), each.offset); !started)
            return settle(result<void>(tl::unexpected(started.error())), stage::empty);
        return true;
    }
    case stage::filling:
        return settle(source_->look(slab), stage::full);
    case stage::full:
        if (failure_) {
            each.stage = stage::empty;
            return true;
        }
        each.stage = stage::draining;
        if (auto started = destination_->start(slab, bytes, each.offset); !started)
            return settle(result<void>(tl::unexpected(started.error())), stage::empty);
        return true;
    case stage::draining:
        if (!settle(destination_->look(slab), stage::empty))
            return false;
        ended_ += each.length;
        return true;
    }
    return false;
}

std::optional<result<void>> pipeline::look() {
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned slab = 0; slab < room_.count; ++slab)
            moved = advance(slab) || moved;
    }
    const bool idle = std::all_of(pieces_.begin(), pieces_.end(),
                                  [](const piece& each) { return each.stage == stage::empty; });
    if (!idle)
        return std::nullopt;
    if (failure_)
        return result<void>(tl::unexpected(*failure_));
    if (ended_ < length_)
        return std::nullopt;
    return result<void>();
}

namespace {

class host_side : public step {
public:
    host_side(std::span<std::byte> memory, bool source) : memory_(memory), source_(source) {}
    result<void> start(unsigned, std::span<std::byte> bytes, std::uint64_t offset) override {
        auto* const own = memory_.data() + offset;
        std::memcpy(source_ ? bytes.data() : own, source_ ? own : bytes.data(), bytes.size());
        return {};
    }
    std::optional<result<void>> look(unsigned) override { return result<void>(); }

private:
    std::span<std::byte> memory_;
    bool source_;
};

class engine_side : public step {
public:
    engine_side(copy_engine engine, device_address base, bool source)
        : engine_(std::move(engine)), base_(base), source_(source) {}
    ~engine_side() override {
        for (auto& each : tickets_)
            (void)each.wait();
    }
    result<void> start(unsigned slab, std::span<std::byte> bytes, std::uint64_t offset) override {
        if (pins_[slab].bytes().data() == nullptr) { // once for all the pieces that go through it
            GAUDI_TRY(pins_[slab], engine_.pin(bytes));
        }
        GAUDI_TRY(tickets_[slab],
                  source_ ? engine_.read(bytes, base_ + offset) : engine_.write(base_ + offset, bytes));
        return {};
    }
    std::optional<result<void>> look(unsigned slab) override {
        if (!tickets_[slab].done())
            return std::nullopt;
        return tickets_[slab].wait();
    }

private:
    copy_engine engine_;
    device_address base_;
    bool source_;
    std::array<pinned_memory, pipeline::slabs> pins_;
    std::array<copy_ticket, pipeline::slabs> tickets_; // before the pins: waited for first
};

class proxy_side : public step {
public:
    proxy_side(std::shared_ptr<lease_core> lease, std::uint64_t offset, bool source,
               std::span<const std::uint64_t> slab_offsets)
        : lease_(std::move(lease)), offset_(offset), source_(source) {
        std::copy(slab_offsets.begin(), slab_offsets.end(), slab_offsets_.begin());
    }
    result<void> start(unsigned slab, std::span<std::byte> bytes, std::uint64_t offset) override {
        wire_request request;
        request.head.ask = source_ ? wire_ask::copy_out : wire_ask::copy_in;
        request.lease = lease_->slot();
        request.offset = offset_ + offset;
        request.length = bytes.size();
        request.slab_offset = slab_offsets_[slab];
        GAUDI_TRY(ids_[slab], lease_->link()->post(request));
        asked_[slab] = clock::now();
        return {};
    }
    std::optional<result<void>> look(unsigned slab) override {
        const auto& link = lease_->link();
        auto answer = link->answer_to(ids_[slab]);
        if (!answer) {
            const auto patience = link->settings().patience;
            if (clock::now() - asked_[slab] < patience)
                return std::nullopt;
            link->give_up(); // what it might still write must not meet the next copy
            return result<void>(
                tl::unexpected(error(errc::peer_silent, fmt::format("process {}, waited {} ms",
                                                                    link->owner().pid, patience.count()))));
        }
        if (!*answer)
            return result<void>(tl::unexpected(answer->error()));
        return result<void>();
    }

private:
    std::shared_ptr<lease_core> lease_;
    std::uint64_t offset_;
    bool source_;
    std::array<std::uint64_t, pipeline::slabs> slab_offsets_{}, ids_{};
    std::array<clock::time_point, pipeline::slabs> asked_{};
};

} // namespace

std::unique_ptr<step> host_step(std::span<std::byte> memory, bool source) {
    return std::make_unique<host_side>(memory, source);
}

std::unique_ptr<step> engine_step(copy_engine engine, device_address base, bool source) {
    return std::make_unique<engine_side>(std::move(engine), base, source);
}

std::unique_ptr<step> proxy_step(std::shared_ptr<lease_core> lease, std::uint64_t offset, bool source,
                                 std::span<const std::uint64_t> slab_offsets) {
    return std::make_unique<proxy_side>(std::move(lease), offset, source, slab_offsets);
}

} // namespace gaudi
