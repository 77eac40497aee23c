// SPDX-License-Identifier: BSD-3-Clause
// What a copy passes through: checked, split into pieces, batched into submissions, in flight, collected.
// No submission blocks under the engine's mutex: room in the driver's table is counted here,
// because hl-thunk spins instead of failing when the table is full (gotcha 20).
#include "src/copy/queue_core.hpp"

#include "src/copy/packet.hpp"
#include "src/error/try.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gaudi {
namespace {

// Whether every page is mapped in this process. mincore() fails with ENOMEM where one is not, and does not
// touch the memory.
bool is_mapped(std::span<const std::byte> memory) {
    constexpr std::uintptr_t page = 4096;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) / page * page;
    const auto length = reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() - begin;
    std::vector<unsigned char> residency((length + page - 1) / page);
    return ::mincore(reinterpret_cast<void*>(begin), length, residency.data()) == 0;
}

} // namespace

result<void> queue_core::check(device_address address, std::uint64_t length) const {
    if (map_ == nullptr)
        return {};
    // The driver would accept a wrong address; the copy would end with EIO and the device would reset (gotcha
    // 18).
    GAUDI_TRY(const auto allocation, map_->find(address, length));
    if (allocation.device_index != device_->identity().index)
        return tl::unexpected(
            error(errc::wrong_device,
                  fmt::format("{} bytes at {:#x} belong to device {}, this engine to {}", length,
                              address.value(), allocation.device_index, device_->identity().index)));
    return {};
}

std::uint32_t queue_core::new_operation() {
    const auto slot = operations_.take();
    operations_[slot].state = state::pending;
    ++statistics_.copies;
    return slot;
}

// ---- host memory: pinned before, through the slab, or mapped for one copy ----

std::optional<std::uint64_t> queue_core::pinned_address(const void* begin, std::size_t length) const {
    // Only the range that begins nearest below is tried. Where pins overlap, a miss costs one mapping.
    const auto wanted = reinterpret_cast<std::uintptr_t>(begin);
    auto range = pinned_.upper_bound(wanted);
    if (range == pinned_.begin())
        return std::nullopt;
    --range;
    if (wanted + length > range->second.end)
        return std::nullopt;
    return range->second.address + (wanted - range->first);
}

result<host_mapping> queue_core::map_for_copy(queue_operation& begun, std::span<std::byte> memory,
                                              bool to_device) {
    auto mapped = device_->map_host(memory);
    if (mapped || !to_device || mapped.error().code() != errc::host_range_invalid)
        return mapped;
    // The driver pins host memory for writing. A source that is only read-only (constants, a mapped file) is
    // duplicated. The kernel copies it, so that an address that is not mapped remains an error and does not
    // crash.
    if (!is_mapped(memory))
        return mapped;
    GAUDI_TRY(auto duplicate, mapping::anonymous(memory.size()));
    std::size_t done = 0;
    while (done < memory.size()) {
        const iovec to{duplicate.bytes().data() + done, memory.size() - done},
            from{memory.data() + done, memory.size() - done};
        const auto copied = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
        if (copied <= 0)
            return mapped;
        done += static_cast<std::size_t>(copied);
    }
    begun.duplicate = std::move(duplicate);
    return device_->map_host(begun.duplicate.bytes());
}

result<std::uint64_t> queue_core::reach_host(std::uint32_t slot, std::span<std::byte> memory,
                                             bool to_device) {
    // In the order of cost: a pinned range costs nothing, the slab a memcpy, a mapping two driver calls.
    if (const auto address = pinned_address(memory.data(), memory.size())) {
        ++statistics_.pinned;
        return *address;
    }
    auto& begun = operations_[slot];
    if (const auto offset = slab_.take(begun.bounce, memory, to_device)) {
        ++statistics_.bounced;
        return mapped_slab_.address().value() + *offset;
    }
    GAUDI_TRY(auto mapped, map_for_copy(begun, memory, to_device));
    ++statistics_.mapped;
    begun.mapped = std::move(mapped);
    return begun.mapped.address().value();
}

// ---- submission ----

result<std::uint32_t> queue_core::start(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                                        std::uint64_t length, copy_direction direction,
                                        const copy_hints& hints) {
    // The operation exists from here on: a refused submission is reported by the ticket, not by this
    // function.
    enqueue(slot, source, destination, length, direction, hints);
    submit_waiting(false);
    if (!waiting_.empty())
        event_.wake(); // no room in flight, or the batch is not full: the thread submits later
    // A submission that the driver refused has ended its copies already.
    event_.signal();
    return slot;
}

std::span<const std::uint32_t> queue_core::queues_of(copy_direction direction) const {
    const auto& traits = device_->traits();
    return direction == copy_direction::down ? traits.down_queues
           : direction == copy_direction::up ? traits.up_queues
                                             : traits.device_queues;
}

void queue_core::enqueue(std::uint32_t slot, std::uint64_t source, std::uint64_t destination,
                         std::uint64_t length, copy_direction direction, const copy_hints& hints) {
    auto queues = queues_of(direction);
    queues = queues.first(
        std::min<std::size_t>(queues.size(), hints.queues != 0 ? hints.queues : options_.queues));
    const auto stripe = hints.stripe_bytes != 0 ? std::max<std::uint64_t>(hints.stripe_bytes, 64 * 1024)
                                                : options_.stripe_bytes;
    // A slot of the command ring has room for options_.batch packets: a hint can only lower the number.
    const auto batch =
        static_cast<std::uint16_t>(hints.batch != 0 ? std::min(hints.batch, options_.batch) : options_.batch);
    const bool striped = length >= stripe && queues.size() > 1;
    const auto piece_bytes =
        striped
            ? std::min(std::max<std::uint64_t>(length / queues.size() / 4096 * 4096, 4096), max_packet_bytes)
            : max_packet_bytes;
    // Small copies use one queue, so that one command buffer carries them all; larger ones alternate.
    constexpr std::uint64_t small = 64 * 1024;
    auto queue = length < small ? 0 : next_queue_++;
    for (std::uint64_t done = 0; done < length;) {
        const auto size = std::min(length - done, piece_bytes);
        waiting_.push_back({source + done, destination + done, static_cast<std::uint32_t>(size), slot, batch,
                            static_cast<std::uint16_t>(queues[(striped ? queue++ : queue) % queues.size()])});
        ++operations_[slot].pieces_left;
        done += size;
    }
    // The caller holds the mutex until submit_waiting() has run: no thread sees an operation with only some
    // pieces.
    statistics_.bytes += length;
}

bool queue_core::room_in_flight() {
    if (free_slots_.empty())
        return false;
    if (const auto* shared = device_->sharing().shared(); shared != nullptr)
        return room_among_members(*shared);
    // The driver's table of submissions is a ring: its limit is the distance to the oldest unfinished one.
    // flights_ is in the order of the sequences, which only this engine of the process takes from an unshared
    // context (hl_device::engine), so that front and back bound the distance.
    return flights_.empty() ||
           flights_.back().sequence + 1 - flights_.front().sequence < device_->traits().max_in_flight;
}

// Other processes submit on the same context. Room is left for one submission of each, which may be imminent.
bool queue_core::room_among_members(const shared_context& shared) {
    // finished_ advances over sequences of every member: the driver answers for any submission of the
    // context, and says "completed" for those whose record it has recycled.
    const auto latest = shared.latest();
    const std::uint64_t limit = device_->traits().max_in_flight;
    finished_ = std::max(finished_, latest > limit ? latest - limit : 0); // the driver accepted the latest
    while (latest + 1 + shared.participants() - finished_ > limit) {
        std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
        if (device_->api().wait_for_cs(device_->fd(), finished_ + 1, 0, &status) == 0 &&
            status == HL_WAIT_CS_STATUS_BUSY)
            return false;
        ++finished_;
    }
    return true;
}

void queue_core::submit_waiting(bool all) {
    // Up to options_.eager submissions go out at once, for latency. With more in flight the device is busy in
    // any case, and a full batch saves driver calls.
    while (!waiting_.empty() && room_in_flight() &&
           (all || flights_.size() < options_.eager || waiting_.size() >= waiting_.front().batch))
        if (!submit_one())
            return;
}

// Moves as many waiting pieces as fit into a submission and writes their packets grouped by queue.
std::size_t queue_core::gather(flight& into, std::vector<hl_cs_chunk>& chunks) {
    // A chunk of a submission names one queue and one command buffer. Pieces of one queue therefore form one
    // chunk, in the order in which they wait; between queues there is no order to keep (gotcha 22).
    const auto kind = device_->identity().generation;
    const bool single = !device_->traits().user_command_buffers; // the driver's buffer serves one queue
    const std::size_t most = waiting_.front().batch;
    const auto count = std::min<std::size_t>(waiting_.size(), options_.batch);
    auto* const bytes = ring_.bytes(into.slot);
    std::size_t taken = 0;
    std::uint32_t offset = 0;
    std::vector<bool> used(count, false);
    for (std::size_t first = 0; first < count && taken < most; ++first) {
        // A piece with another batch limit waits for a submission of its own: the limit bounds the whole
        // submission.
        if (used[first] || waiting_[first].batch != most)
            continue;
        const auto group = waiting_[first];
        const auto begin = offset;
        for (std::size_t i = first; i < count && taken < most; ++i) {
            const auto& next = waiting_[i];
            if (used[i] || next.queue != group.queue || next.batch != most)
                continue;
            const auto packet = make_lin_dma(kind, next.source, next.destination, next.size);
            std::memcpy(bytes + offset, &packet, sizeof(packet));
            offset += sizeof(packet);
            into.operations.push_back(next.operation);
            into.queues.push_back(next.queue);
            queues_.enter(next.queue, next.size);
            used[i] = true;
            ++taken;
        }
        chunks.push_back(ring_.chunk(into.slot, begin, offset - begin, group.queue));
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

bool queue_core::submit_one() {
    flight next{};
    if (!spare_flights_.empty()) {
        next = std::move(spare_flights_.back());
        spare_flights_.pop_back();
    }
    next.slot = free_slots_.back();
    next.operations.clear();
    next.queues.clear();
    std::vector<hl_cs_chunk> chunks;
    statistics_.packets += gather(next, chunks);
    next.queue = chunks.size() == 1 ? chunks.front().queue_index : several;
    // The packets lie in a slot that no submission in flight uses: retire() returns a slot only after
    // completion.
    hlthunk_cs_in in{};
    hlthunk_cs_out out{};
    in.chunks_execute = chunks.data();
    in.num_chunks_execute = static_cast<std::uint32_t>(chunks.size());
    // EAGAIN never arrives here: hl-thunk repeats the call itself while the kernel returns it.
    if (const int rc = device_->api().command_submission(device_->fd(), &in, &out); rc != 0) {
        const auto why = device_->failed(errc::copy_refused,
                                         fmt::format("hlthunk_command_submission of {} chunks on {}",
                                                     chunks.size(), device_->identity().bus_id),
                                         -rc);
        if (device_->lost()) {
            flights_.push_back(std::move(next)); // fails with the others
            free_slots_.pop_back();
            fail_all(why);
            return false;
        }
        // The ring's slot was not taken from free_slots_ yet, so that only the meter and the operations are
        // undone.
        for (const auto queue : next.queues)
            queues_.leave(queue);
        for (const auto slot : next.operations) {
            operations_[slot].failure = why;
            if (--operations_[slot].pieces_left == 0)
                end_operation(slot);
        }
        return true;
    }
    free_slots_.pop_back();
    next.sequence = out.seq;
    // At once: the other processes on this context compute their room from it (gotcha I4).
    device_->sharing().submitted(out.seq);
    for (const auto slot : next.operations)
        operations_[slot].last_sequence = out.seq;
    flights_.push_back(std::move(next));
    ++statistics_.submissions;
    statistics_.most_in_flight = std::max<std::uint64_t>(statistics_.most_in_flight, flights_.size());
    event_.wake();
    return true;
}

std::size_t queue_core::end_operation(std::uint32_t slot) {
    auto& done = operations_[slot];
    // Before finish(): from then on the caller may free the memory. The mapping goes before the duplicate
    // that it maps; unmapping under a copy in flight would be a page fault of the device.
    done.mapped = {};
    done.duplicate = {};
    finish(done);
    if (done.dropped)
        release(slot);
    return 1;
}

void queue_core::retire(flight& completed) {
    for (const auto queue : completed.queues)
        queues_.leave(queue);
    free_slots_.push_back(completed.slot);
    spare_flights_.push_back(std::move(completed));
}

std::size_t queue_core::fail_all(const error& why) {
    // After a reset the driver completes no submission any more, and every later call fails: all operations
    // end now, those that wait included.
    std::size_t finished = 0;
    const auto fail = [&](std::uint32_t slot) {
        operations_[slot].failure = why;
        if (--operations_[slot].pieces_left == 0)
            finished += end_operation(slot);
    };
    for (auto& lost : flights_) {
        for (const auto slot : lost.operations)
            fail(slot);
        retire(lost);
    }
    flights_.clear();
    for (const auto& lost : waiting_)
        fail(lost.operation);
    waiting_.clear();
    return finished;
}

std::size_t queue_core::collect() {
    std::size_t finished = 0;
    // Queues are independent: polling goes on past a busy submission, but skips later ones on the same queue
    // and stops after a few busy ones, because each poll is a system call.
    constexpr std::size_t most_busy = 8;
    std::array<std::uint32_t, most_busy> busy{};
    auto busy_end = busy.begin();
    for (auto next = flights_.begin(); next != flights_.end() && busy_end != busy.end();) {
        if (next->queue != several && std::find(busy.begin(), busy_end, next->queue) != busy_end) {
            ++next;
            continue;
        }
        std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
        // A timeout of 0 polls. BUSY comes with return code 0; with any other code the status is meaningless
        // (gotcha 19).
        const int rc = device_->api().wait_for_cs(device_->fd(), next->sequence, 0, &status);
        if (rc == 0 && status == HL_WAIT_CS_STATUS_BUSY) {
            *busy_end++ = next->queue; // on several queues, one of them may be past it already
            ++next;
            continue;
        }
        if (rc != 0) {
            // The submission was aborted, or was never issued here: in both cases nothing is known of the
            // later ones.
            device_->loss().mark(fmt::format("hlthunk_wait_for_cs of submission {}: {} ({})", next->sequence,
                                             std::strerror(-rc),
                                             rc == -EIO         ? "aborted"
                                             : rc == -ETIMEDOUT ? "timed out"
                                                                : "refused"));
            return finished + fail_all(device_->loss().describe("copy"));
        }
        for (const auto slot : next->operations)
            if (--operations_[slot].pieces_left == 0)
                finished += end_operation(slot);
        retire(*next);
        next = flights_.erase(next);
    }
    return finished;
}

std::size_t queue_core::advance() {
    const auto finished = collect();
    // A thread polls or waits here: nothing is gained by waiting for a full batch.
    submit_waiting(true);
    return finished;
}

void queue_core::sleep(std::uint32_t slot, std::chrono::microseconds limit) {
    std::uint64_t sequence = 0;
    {
        const std::lock_guard guard(mutex_);
        // If no piece was submitted yet, for lack of room, the oldest submission in flight must complete
        // first.
        const auto own = operations_[slot].last_sequence;
        sequence = own != 0 ? own : flights_.empty() ? 0 : flights_.front().sequence;
    }
    std::uint32_t status = 0;
    // Without the mutex, so that other threads submit and collect meanwhile. In steps of at most 100 ms: the
    // loss of the device is noticed, and timeouts from 2^32 us on would wrap (gotcha 19).
    if (sequence != 0) // poll() collects the outcome
        device_->api().wait_for_cs(device_->fd(), sequence,
                                   static_cast<std::uint64_t>(std::min<std::int64_t>(limit.count(), 100000)),
                                   &status);
    else
        std::this_thread::yield();
}

void queue_core::watch() {
    std::unique_lock lock(mutex_);
    while (!event_.ending()) {
        // Where no reader wants events the thread sleeps: callers that poll must not compete with it for the
        // mutex.
        if (!event_.wanted() || (flights_.empty() && waiting_.empty())) {
            event_.sleep(lock);
            continue;
        }
        if (flights_.empty()) { // other processes on this context use all the room
            event_.sleep_for(lock, std::chrono::milliseconds(1));
        } else {
            // Only the oldest submission is waited for. A later one on another queue may complete first; the
            // event for it comes up to 10 ms late. The same limit lets the thread see that the engine is
            // ending.
            const auto sequence = flights_.front().sequence;
            lock.unlock();
            std::uint32_t status = 0;
            device_->api().wait_for_cs(device_->fd(), sequence, 10000, &status);
            lock.lock();
        }
        advance();
        event_.signal();
    }
}

} // namespace gaudi
