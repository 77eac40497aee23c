// SPDX-License-Identifier: BSD-3-Clause
// A slot is freed only when its operation has finished and its ticket is dropped, whichever comes last: the
// NIC and the peer name operations by their slots.
#include "src/connection/operation.hpp"
#include "src/os/internals.hpp"

namespace gaudi {

operation_table::operation_table(unsigned slots) : slots_(slots) {
    free_.reserve(slots);
    for (unsigned slot = slots; slot > 0; --slot)
        free_.push_back(slot - 1);
}

std::uint32_t operation_table::add(const transfer_request& request, staging* stage) {
    const auto slot = free_.back();
    free_.pop_back();
    auto& added = slots_[slot];
    added = {};
    added.kind = request.kind;
    added.state = operation::state::pending;
    added.stage = stage;
    added.immediate = request.immediate;
    added.operand = request.operand;
    added.compare = request.compare;
    if (request.local != nullptr) {
        added.path = request.local->path();
        added.local_device = added.path == memory_path::zero_copy;
        // The caller may destroy its region while the NIC still uses the key.
        added.registration_ref = internals::registration(*request.local);
        added.address = request.local->address();
        added.length = request.local->length();
        added.local_key = request.local->local_key();
    }
    if (request.remote != nullptr) {
        added.remote_address = request.remote->address;
        added.remote_key = request.remote->key;
        added.remote_staged = request.remote->path == memory_path::staged && added.length != 0;
    }
    if (added.remote_staged) {
        added.path = memory_path::staged;
        // Only these operations are named in frames, which may arrive after the slot has been used again.
        added.serial = ++last_serial_;
    }
    if (stage != nullptr)
        why_staged_ = request.local->reason();
    else if (added.remote_staged)
        why_staged_ = "the peer's memory is staged";
    return slot;
}

std::optional<std::uint32_t> operation_table::find(std::uint64_t id) const {
    const auto slot = static_cast<std::uint32_t>(id);
    if (slot >= slots_.size() || id_of(slot) != id || slots_[slot].state != operation::state::pending)
        return {};
    return slot;
}

void operation_table::part_completed(std::uint32_t slot, std::uint64_t bytes) {
    auto& operation = slots_[slot];
    operation.completed += bytes;
    // The count also falls to 0 between two parts: only a fully posted operation is finished then.
    if (--operation.outstanding == 0 && operation.fully_posted)
        finish(slot);
}

void operation_table::mark_fully_posted(std::uint32_t slot) {
    slots_[slot].fully_posted = true;
    if (slots_[slot].outstanding == 0)
        finish(slot);
}

void operation_table::finish(std::uint32_t slot) {
    auto& finished = slots_[slot];
    // A receive counts what the completions report: a message may be shorter than it.
    if (finished.kind != transfer_kind::receive)
        finished.outcome.bytes = finished.completed;
    if (!finished.failure) {
        auto& count = traffic_.by(finished.path);
        ++count.operations;
        count.bytes += finished.completed;
    }
    // Now, not with the ticket: a ticket that is kept must not keep the memory registered.
    finished.registration_ref.reset();
    finished.state = operation::state::finished;
    free_if_abandoned(slot);
}

void operation_table::fail_pending(const error& why) {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
        if (auto& entry = slots_[slot]; entry.state == operation::state::pending) {
            entry.failure = why;
            entry.registration_ref.reset();
            entry.state = operation::state::finished;
            free_if_abandoned(slot);
        }
}

void operation_table::drop(std::uint32_t slot) {
    slots_[slot].abandoned = true;
    free_if_abandoned(slot);
}

void operation_table::free_if_abandoned(std::uint32_t slot) {
    if (!slots_[slot].abandoned || slots_[slot].state != operation::state::finished)
        return;
    slots_[slot].state = operation::state::unused;
    free_.push_back(slot);
}

} // namespace gaudi
