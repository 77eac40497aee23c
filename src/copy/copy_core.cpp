// SPDX-License-Identifier: BSD-3-Clause
#include "src/copy/copy_core.hpp"

#include "src/copy/packet.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>

namespace gaudi {
namespace {

constexpr std::size_t bounce_bytes = 16 * 1024;
constexpr unsigned bounces = 64;
// Whether every page of it exists.
bool is_mapped(std::span<const std::byte> memory) {
    constexpr std::uintptr_t page = 4096;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) / page * page;
    const auto length = reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() - begin;
    std::vector<unsigned char> residency((length + page - 1) / page);
    return ::mincore(reinterpret_cast<void*>(begin), length, residency.data()) == 0;
}

constexpr unsigned most_slots = 64; // more in flight gains nothing and costs pinned memory

} // namespace

result<std::shared_ptr<copy_core>> copy_core::make(const std::shared_ptr<hl_device>& device,
                                                   const address_map& known, const copy_options& options) {
    const auto& traits = device->traits();
    if (!device->owned())
        return tl::unexpected(
            error(errc::copies_absent,
                  fmt::format("the queues of {} belong to SynapseAI in this process", device->who().bus_id)));
    if (traits.down_queues.empty())
        return tl::unexpected(error(errc::copies_absent,
                                    fmt::format("the driver of {} ({}) offers no queue for user submissions",
                                                device->who().bus_id, name_of(traits.generation))));
    if (device->api().command_submission == nullptr || device->api().wait_for_cs == nullptr)
        return tl::unexpected(
            error(errc::copies_absent, fmt::format("{} has no submission functions", device->api().path())));
    auto chosen = options;
    chosen.batch = std::clamp(chosen.batch, 1U, 4096U);
    chosen.queues = std::max(chosen.queues, 1U);
    chosen.stripe_bytes = std::max<std::uint64_t>(chosen.stripe_bytes, 64 * 1024);
    const auto limit =
        std::min({chosen.in_flight != 0 ? chosen.in_flight : most_slots, traits.max_in_flight, most_slots});
    chosen.in_flight = limit;
    auto ring = command_ring::make(
        device, limit,
        static_cast<std::uint32_t>((chosen.batch * sizeof(lin_dma_packet) + 4095) / 4096 * 4096));
    if (!ring)
        return tl::unexpected(ring.error());
    auto slab_memory = mapping::anonymous(bounces * bounce_bytes);
    if (!slab_memory)
        return tl::unexpected(slab_memory.error());
    auto slab = device->map_host(slab_memory->bytes());
    if (!slab)
        return tl::unexpected(slab.error());
    auto core = std::make_shared<copy_core>(device, known, chosen, std::move(*ring));
    core->slab_memory_ = std::move(*slab_memory);
    core->slab_ = std::move(*slab);
    return core;
}

copy_core::copy_core(std::shared_ptr<hl_device> device, const address_map& known, const copy_options& options,
                     command_ring ring)
    : device_(std::move(device)), known_(known), options_(options), limit_(options.in_flight),
      ring_(std::move(ring)) {
    for (unsigned i = 0; i < bounces; ++i)
        free_bounces_.push_back(static_cast<int>(i));
    for (unsigned i = 0; i < limit_; ++i)
        free_slots_.push_back(i);
}

copy_core::~copy_core() {
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
        watch_.notify_all();
    }
    if (watcher_.joinable())
        watcher_.join();
    // Buffers of the device must not be unmapped under a copy that nobody waited for.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (device_->ours() && !device_->lost() && std::chrono::steady_clock::now() < deadline) {
        poll();
        std::unique_lock lock(mutex_);
        if (flights_.empty() && waiting_.empty())
            break;
        const auto sequence = flights_.empty() ? 0 : flights_.front().sequence;
        lock.unlock();
        std::uint32_t status = 0;
        if (sequence != 0)
            device_->api().wait_for_cs(device_->fd(), sequence, 100000, &status);
    }
}

std::span<const std::uint32_t> copy_core::queues_of(copy_direction direction) const {
    const auto& traits = device_->traits();
    return direction == copy_direction::down ? traits.down_queues
           : direction == copy_direction::up ? traits.up_queues
                                             : traits.device_queues;
}

std::uint32_t copy_core::new_operation() {
    std::uint32_t slot;
    if (free_operations_.empty()) {
        slot = static_cast<std::uint32_t>(operations_.size());
        operations_.emplace_back();
    } else {
        slot = free_operations_.back();
        free_operations_.pop_back();
    }
    operations_[slot].state = state::pending;
    ++statistics_.copies;
    return slot;
}

void copy_core::release(std::uint32_t slot) {
    auto& gone = operations_[slot];
    gone.state = state::unused;
    gone.dropped = false;
    gone.pieces_left = 0;
    gone.last_sequence = 0;
    gone.failure.reset();
    free_operations_.push_back(slot);
}

void copy_core::enqueue(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                        std::uint64_t length, copy_direction direction) {
    const auto queues = std::min<std::size_t>(queues_of(direction).size(), options_.queues);
    const bool striped = length >= options_.stripe_bytes && queues > 1;
    const auto piece_bytes =
        striped
            ? std::min(std::max(length / queues / 4096 * 4096, options_.stripe_bytes / 2), max_packet_bytes)
            : max_packet_bytes;
    // Small copies stay on one queue, so that one command buffer carries them all.
    auto queue = striped ? next_queue_++ : 0;
    for (std::uint64_t done = 0; done < length;) {
        const auto size = std::min(length - done, piece_bytes);
        waiting_.push_back({source + done, destination + done, static_cast<std::uint32_t>(size), slot,
                            static_cast<std::uint8_t>(queue++ % queues), direction});
        ++operations_[slot].pieces_left;
        done += size;
        if (!striped)
            queue = 0;
    }
    statistics_.bytes += length;
}

std::optional<std::uint64_t> copy_core::pinned_address(const void* begin, std::size_t length) const {
    const auto wanted = reinterpret_cast<std::uintptr_t>(begin);
    auto found = pinned_.upper_bound(wanted);
    if (found == pinned_.begin())
        return std::nullopt;
    --found;
    if (wanted + length > found->second.end)
        return std::nullopt;
    return found->second.address + (wanted - found->first);
}

result<host_mapping> copy_core::map_for_copy(operation& owner, std::span<std::byte> memory, bool writes) {
    auto mapped = device_->map_host(memory);
    if (mapped || !writes || mapped.error().code() != errc::host_range_invalid)
        return mapped;
    // The driver pins for writing only. A source that is merely read-only (constants, a mapped file) is
    // copied aside; through the kernel, so that an address that does not exist stays an error and not a
    // crash.
    if (!is_mapped(memory))
        return mapped;
    auto duplicate = mapping::anonymous(memory.size());
    if (!duplicate)
        return tl::unexpected(duplicate.error());
    std::size_t done = 0;
    while (done < memory.size()) {
        const iovec to{duplicate->bytes().data() + done, memory.size() - done},
            from{memory.data() + done, memory.size() - done};
        const auto copied = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
        if (copied <= 0)
            return mapped;
        done += static_cast<std::size_t>(copied);
    }
    owner.duplicate = std::move(*duplicate);
    return device_->map_host(owner.duplicate.bytes());
}

result<std::uint64_t> copy_core::reach_host(operation& owner, std::span<std::byte> memory, bool writes) {
    if (const auto address = pinned_address(memory.data(), memory.size())) {
        ++statistics_.pinned;
        return *address;
    }
    if (memory.size() <= bounce_bytes && !free_bounces_.empty()) {
        ++statistics_.bounced;
        owner.bounce = free_bounces_.back();
        free_bounces_.pop_back();
        const auto offset = static_cast<std::size_t>(owner.bounce) * bounce_bytes;
        if (writes)
            std::memcpy(slab_.bytes().data() + offset, memory.data(), memory.size());
        else
            owner.deliver_to = memory;
        return slab_.address().value() + offset;
    }
    auto mapped = map_for_copy(owner, memory, writes);
    if (!mapped)
        return tl::unexpected(mapped.error());
    ++statistics_.mapped;
    owner.mapped = std::move(*mapped);
    return owner.mapped.address().value();
}

result<std::uint32_t> copy_core::start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                       std::uint64_t length, copy_direction direction) {
    enqueue(slot, source, destination, length, direction);
    submit_waiting(false);
    return slot;
}

result<std::uint32_t> copy_core::write(device_address to, std::span<const std::byte> from) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy to the device"));
    if (from.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes to the device"));
    if (const auto known = known_.find(to, from.size()); !known)
        return tl::unexpected(known.error());
    const std::lock_guard guard(mutex_);
    const auto slot = new_operation();
    // The engine only reads the source; the driver pins it for writing all the same.
    const auto source =
        reach_host(operations_[slot], {const_cast<std::byte*>(from.data()), from.size()}, true);
    if (!source) {
        release(slot);
        return tl::unexpected(source.error());
    }
    return start(slot, *source, to.value(), from.size(), copy_direction::down);
}

result<std::uint32_t> copy_core::read(std::span<std::byte> to, device_address from) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy from the device"));
    if (to.empty())
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes from the device"));
    if (const auto known = known_.find(from, to.size()); !known)
        return tl::unexpected(known.error());
    const std::lock_guard guard(mutex_);
    const auto slot = new_operation();
    const auto destination = reach_host(operations_[slot], to, false);
    if (!destination) {
        release(slot);
        return tl::unexpected(destination.error());
    }
    return start(slot, from.value(), *destination, to.size(), copy_direction::up);
}

result<std::uint32_t> copy_core::copy(device_address to, device_address from, std::uint64_t length) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes within the device"));
    for (const auto address : {to, from}) {
        const auto known = known_.find(address, length);
        if (!known)
            return tl::unexpected(known.error());
        if (known->device_index != device_->who().index)
            return tl::unexpected(
                error(errc::not_allocated,
                      fmt::format("{} bytes at {:#x} belong to device {}, this engine to {}", length,
                                  address.value(), known->device_index, device_->who().index)));
    }
    if (to < from + length && from < to + length)
        return tl::unexpected(error(errc::ranges_overlap, fmt::format("copy of {} bytes from {:#x} to {:#x}",
                                                                      length, from.value(), to.value())));
    return copy_unchecked(to, from, length, copy_direction::within);
}

result<std::uint32_t> copy_core::copy_unchecked(device_address to, device_address from, std::uint64_t length,
                                                copy_direction direction) {
    if (device_->lost())
        return tl::unexpected(device_->lost_error("copy"));
    const std::lock_guard guard(mutex_);
    return start(new_operation(), from.value(), to.value(), length, direction);
}

bool copy_core::room_in_flight() const {
    if (free_slots_.empty())
        return false;
    // The driver's table is a ring: what counts is the distance to the oldest unfinished submission.
    return flights_.empty() ||
           flights_.back().sequence + 1 - flights_.front().sequence < device_->traits().max_in_flight;
}

void copy_core::submit_waiting(bool all) {
    while (!waiting_.empty() && room_in_flight() &&
           (all || flights_.size() < options_.eager || waiting_.size() >= options_.batch))
        if (!submit_one())
            return;
}

// Takes pieces off the queue, as many as fit, and writes their packets grouped by queue.
std::size_t copy_core::gather(flight& into, std::vector<hl_cs_chunk>& chunks) {
    const auto kind = device_->who().generation;
    const bool single = !device_->traits().user_command_buffers; // a driver's buffer serves one queue
    const auto count = std::min<std::size_t>(waiting_.size(), options_.batch);
    auto* const bytes = ring_.bytes(into.slot);
    std::size_t taken = 0;
    std::uint32_t offset = 0;
    std::vector<bool> used(count, false);
    for (std::size_t first = 0; first < count; ++first) {
        if (used[first])
            continue;
        const auto group = waiting_[first];
        const auto begin = offset;
        for (std::size_t i = first; i < count; ++i) {
            const auto& next = waiting_[i];
            if (used[i] || next.direction != group.direction || next.queue != group.queue)
                continue;
            const auto packet = make_lin_dma(kind, next.source, next.destination, next.size);
            std::memcpy(bytes + offset, &packet, sizeof(packet));
            offset += sizeof(packet);
            into.operations.push_back(next.operation);
            used[i] = true;
            ++taken;
        }
        chunks.push_back(
            ring_.chunk(into.slot, begin, offset - begin, queues_of(group.direction)[group.queue]));
        if (single)
            break;
    }
    std::size_t index = 0;
    std::erase_if(waiting_, [&](const piece&) {
        const bool gone = index < count && used[index];
        ++index;
        return gone;
    });
    return taken;
}

bool copy_core::submit_one() {
    flight next{};
    if (!spare_flights_.empty()) {
        next = std::move(spare_flights_.back());
        spare_flights_.pop_back();
    }
    next.slot = free_slots_.back();
    next.operations.clear();
    std::vector<hl_cs_chunk> chunks;
    statistics_.packets += gather(next, chunks);
    hlthunk_cs_in in{};
    hlthunk_cs_out out{};
    in.chunks_execute = chunks.data();
    in.num_chunks_execute = static_cast<std::uint32_t>(chunks.size());
    if (const int rc = device_->api().command_submission(device_->fd(), &in, &out); rc != 0) {
        const auto why = device_->failed(errc::copy_refused,
                                         fmt::format("hlthunk_command_submission of {} chunks on {}",
                                                     chunks.size(), device_->who().bus_id),
                                         -rc);
        if (device_->lost()) {
            flights_.push_back(std::move(next)); // fails with the rest
            free_slots_.pop_back();
            fail_all(why);
            return false;
        }
        for (const auto slot : next.operations) {
            operations_[slot].failure = why;
            if (--operations_[slot].pieces_left == 0)
                finish(slot);
        }
        return true;
    }
    free_slots_.pop_back();
    next.sequence = out.seq;
    for (const auto slot : next.operations)
        operations_[slot].last_sequence = out.seq;
    flights_.push_back(std::move(next));
    ++statistics_.submissions;
    statistics_.most_in_flight = std::max<std::uint64_t>(statistics_.most_in_flight, flights_.size());
    watch_.notify_one();
    return true;
}

std::size_t copy_core::finish(std::uint32_t slot) {
    auto& done = operations_[slot];
    if (done.bounce >= 0) {
        if (!done.deliver_to.empty() && !done.failure)
            std::memcpy(done.deliver_to.data(),
                        slab_.bytes().data() + static_cast<std::size_t>(done.bounce) * bounce_bytes,
                        done.deliver_to.size());
        free_bounces_.push_back(done.bounce);
        done.bounce = -1;
        done.deliver_to = {};
    }
    done.mapped = {};
    done.duplicate = {};
    done.state = state::finished;
    if (done.failure)
        ++statistics_.failed;
    if (done.dropped)
        release(slot);
    return 1;
}

void copy_core::land(flight& landed) {
    free_slots_.push_back(landed.slot);
    spare_flights_.push_back(std::move(landed));
}

std::size_t copy_core::fail_all(const error& why) {
    std::size_t finished = 0;
    const auto fail = [&](std::uint32_t slot) {
        operations_[slot].failure = why;
        if (--operations_[slot].pieces_left == 0)
            finished += finish(slot);
    };
    for (auto& lost : flights_) {
        for (const auto slot : lost.operations)
            fail(slot);
        land(lost);
    }
    flights_.clear();
    for (const auto& lost : waiting_)
        fail(lost.operation);
    waiting_.clear();
    return finished;
}

std::size_t copy_core::collect() {
    std::size_t finished = 0;
    constexpr unsigned patience =
        8; // queues are independent: look past a slow one, but not at everything each time
    unsigned busy = 0;
    for (auto next = flights_.begin(); next != flights_.end() && busy < patience;) {
        std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
        const int rc = device_->api().wait_for_cs(device_->fd(), next->sequence, 0, &status);
        if (rc == 0 && status == HL_WAIT_CS_STATUS_BUSY) {
            ++busy;
            ++next;
            continue;
        }
        if (rc != 0) {
            device_->mark_lost(fmt::format("hlthunk_wait_for_cs of submission {}: {} ({})", next->sequence,
                                           std::strerror(-rc),
                                           rc == -EIO         ? "aborted"
                                           : rc == -ETIMEDOUT ? "timed out"
                                                              : "refused"));
            return finished + fail_all(device_->lost_error("copy"));
        }
        for (const auto slot : next->operations)
            if (--operations_[slot].pieces_left == 0)
                finished += finish(slot);
        land(*next);
        next = flights_.erase(next);
    }
    return finished;
}

void copy_core::signal() {
    const std::uint64_t one = 1;
    if (event_ && ::write(event_.get(), &one, sizeof(one)) < 0)
        return; // the counter is full: it is readable all the same
}

std::size_t copy_core::poll() {
    const std::lock_guard guard(mutex_);
    if (!device_->ours())
        return 0;
    const auto finished = collect();
    submit_waiting(true);
    if (finished != 0)
        signal();
    return finished;
}

bool copy_core::done(std::uint32_t slot) {
    {
        const std::lock_guard guard(mutex_);
        if (operations_[slot].state == state::finished)
            return true;
    }
    poll();
    const std::lock_guard guard(mutex_);
    return operations_[slot].state == state::finished;
}

result<void> copy_core::wait(std::uint32_t slot, std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
        poll();
        std::uint64_t sequence = 0;
        {
            const std::lock_guard guard(mutex_);
            auto& asked = operations_[slot];
            if (asked.state == state::finished) {
                if (asked.failure)
                    return tl::unexpected(*asked.failure);
                return {};
            }
            // Not submitted for lack of room: then the oldest in flight is what it waits for.
            sequence = asked.last_sequence != 0 ? asked.last_sequence
                       : flights_.empty()       ? 0
                                                : flights_.front().sequence;
        }
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
            deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0)
            return tl::unexpected(
                error(errc::copy_timeout,
                      fmt::format("copy on {}, waited {} ms", device_->who().bus_id, limit.count())));
        std::uint32_t status = 0;
        if (sequence != 0) // the outcome is collected by poll()
            device_->api().wait_for_cs(
                device_->fd(), sequence,
                static_cast<std::uint64_t>(std::min<std::int64_t>(left.count(), 100000)), &status);
        else
            std::this_thread::yield();
    }
}

void copy_core::drop(std::uint32_t slot) {
    const std::lock_guard guard(mutex_);
    if (operations_[slot].state == state::finished)
        release(slot);
    else
        operations_[slot].dropped = true;
}

result<int> copy_core::event_fd() {
    const std::lock_guard guard(mutex_);
    if (!event_) {
        event_ = unique_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!event_)
            return tl::unexpected(error(errno == EMFILE || errno == ENFILE ? errc::descriptors_exhausted
                                                                           : errc::system_call_failed,
                                        "eventfd", errno));
        watcher_ = std::thread([this] { watch(); });
    }
    return event_.get();
}

void copy_core::watch() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
        if (flights_.empty() && waiting_.empty()) {
            watch_.wait(lock);
            continue;
        }
        const auto sequence = flights_.empty() ? 0 : flights_.front().sequence;
        lock.unlock();
        std::uint32_t status = 0;
        if (sequence != 0)
            device_->api().wait_for_cs(device_->fd(), sequence, 10000, &status);
        lock.lock();
        if (collect() != 0)
            signal();
        submit_waiting(true);
    }
}

result<pinned_memory> copy_core::pin(std::span<std::byte> memory) {
    auto mapped = device_->map_host(memory);
    if (!mapped)
        return tl::unexpected(mapped.error());
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    {
        const std::lock_guard guard(mutex_);
        pinned_.emplace(begin, pinned_range{begin + memory.size(), mapped->address().value()});
    }
    return pinned_memory(std::make_unique<pin_core>(shared_from_this(), std::move(*mapped)));
}

void copy_core::unpin(const host_mapping& gone) {
    const std::lock_guard guard(mutex_);
    const auto [first, last] = pinned_.equal_range(reinterpret_cast<std::uintptr_t>(gone.bytes().data()));
    for (auto entry = first; entry != last; ++entry)
        if (entry->second.address == gone.address().value()) {
            pinned_.erase(entry);
            return;
        }
}

copy_statistics copy_core::statistics() {
    const std::lock_guard guard(mutex_);
    return statistics_;
}

} // namespace gaudi
