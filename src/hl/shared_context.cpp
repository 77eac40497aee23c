// SPDX-License-Identifier: BSD-3-Clause
// Shared memory that every member writes without locks: a process may die at any instruction. The order of
// the stores below lets the owner undo what a dead member has left.
#include "src/hl/shared_context.hpp"

#include "src/error/try.hpp"

#include <algorithm>

namespace gaudi {

result<std::shared_ptr<shared_context>> shared_context::make() {
    GAUDI_TRY(auto memory, shared_memory::make("gaudi-direct context", sizeof(contents)));
    auto context = std::make_shared<shared_context>(std::move(memory));
    context->shared().participants = 1;
    return context;
}

result<std::shared_ptr<shared_context>> shared_context::of(unique_fd descriptor) {
    GAUDI_TRY(auto memory, shared_memory::of(std::move(descriptor), sizeof(contents)));
    memory.drop_descriptor();
    return std::make_shared<shared_context>(std::move(memory));
}

void shared_context::submitted(std::uint64_t sequence) {
    auto& latest = shared().latest;
    auto seen = latest.load(std::memory_order_relaxed);
    while (seen < sequence && !latest.compare_exchange_weak(seen, sequence)) {
    }
}

std::uint64_t shared_context::latest() const {
    return shared().latest.load();
}

unsigned shared_context::participants() const {
    // A member may have written anything here.
    return std::clamp<unsigned>(shared().participants.load(), 1, members + 1);
}

std::optional<unsigned> shared_context::admit() {
    // Only the owner takes numbers; a member's record is free again once it has been reaped.
    for (unsigned member = 0; member < members; ++member)
        if (shared().records[member].taken.exchange(1) == 0) {
            shared().participants.fetch_add(1);
            return member;
        }
    return std::nullopt;
}

bool shared_context::holds_nothing(unsigned member) const {
    const auto& mappings = shared().records[member].mappings;
    return std::all_of(std::begin(mappings), std::end(mappings),
                       [](const mapped_range& each) { return each.address.load() == 0; });
}

bool shared_context::reap(const hlthunk_api& api, int fd, unsigned member, std::uint64_t most_in_flight) {
    // Unmapping under a submission in flight would be a page fault and reset the device for all members.
    // Which member made a submission is not known: all up to the latest must have completed.
    const auto last = latest();
    const auto busy = [&](std::uint64_t sequence) {
        std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
        return api.wait_for_cs(fd, sequence, 0, &status) == 0 && status == HL_WAIT_CS_STATUS_BUSY;
    };
    finished_ = std::max(finished_,
                         last > most_in_flight ? last - most_in_flight : 0); // the driver accepted the latest
    for (; finished_ < last; ++finished_)
        if (busy(finished_ + 1))
            return false;
    for (unsigned i = 1; i <= participants(); ++i) // a member may die before it records its submission
        if (busy(last + i))
            return false;
    auto& left = shared().records[member];
    for (auto& mapped : left.mappings)
        if (const auto address = mapped.address.exchange(0); address != 0) {
            api.memory_unmap(fd, address);
            if (const auto handle = mapped.handle.exchange(0); handle != 0)
                api.device_memory_free(fd, handle);
        }
    left.taken.store(0);
    shared().participants.fetch_sub(1);
    return true;
}

bool shared_context::note_mapping(unsigned member, std::uint64_t address, std::uint64_t handle) {
    for (auto& mapped : shared().records[member].mappings)
        if (std::uint64_t none = 0; mapped.address.load(std::memory_order_relaxed) == 0 &&
                                    mapped.address.compare_exchange_strong(none, address)) {
            // The address claims the entry. A member that dies before the handle is stored leaves memory that
            // the driver frees with the context.
            mapped.handle.store(handle);
            return true;
        }
    return false;
}

void shared_context::forget_mapping(unsigned member, std::uint64_t address) {
    for (auto& mapped : shared().records[member].mappings)
        if (mapped.address.load(std::memory_order_relaxed) == address) {
            // Before the address: with address 0 the entry is free, and its next user must not inherit a
            // handle.
            mapped.handle.store(0);
            mapped.address.store(0);
            return;
        }
}

result<shared_context*> context_membership::open() {
    const std::lock_guard guard(mutex_);
    if (auto* open = shared(); open != nullptr)
        return open;
    GAUDI_TRY(kept_, shared_context::make());
    // Submissions from before the context was shared may still be in flight: members must count them. Both
    // sides store first and load then, sequentially consistent: one of them sees the other's store.
    shared_.store(kept_.get());
    kept_->submitted(last_sequence_.load());
    return kept_.get();
}

void context_membership::join(std::shared_ptr<shared_context> context, unsigned member,
                              std::shared_ptr<void> host) {
    const std::lock_guard guard(mutex_);
    host_ = std::move(host);
    is_member_ = true;
    member_ = member;
    kept_ = std::move(context);
    shared_.store(kept_.get(), std::memory_order_release);
}

void context_membership::submitted(std::uint64_t sequence) {
    last_sequence_.store(sequence);
    if (auto* context = shared_.load(); context != nullptr) // see open()
        context->submitted(sequence);
}

bool context_membership::note_mapping(std::uint64_t address, std::uint64_t handle) {
    return !is_member_ || shared()->note_mapping(member_, address, handle);
}

void context_membership::forget_mapping(std::uint64_t address) {
    if (is_member_)
        shared()->forget_mapping(member_, address);
}

} // namespace gaudi
