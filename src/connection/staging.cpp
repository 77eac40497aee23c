// SPDX-License-Identifier: BSD-3-Clause
// Slabs are used in the order of the calls, so that only the front of a list is ever asked about.
#include "src/connection/staging.hpp"

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"

#include <algorithm>

namespace gaudi {

staging::staging(slab_memory memory)
    : memory_(std::move(memory)), free_out_(slabs_per_direction), free_in_(slabs_per_direction),
      filling_(slabs_per_direction), delivering_(2ULL * slabs_per_direction) {
    for (unsigned i = 0; i < slabs_per_direction; ++i) {
        free_out_.push(i);
        free_in_.push(slabs_per_direction + i);
    }
}

result<std::unique_ptr<staging>> staging::make(const nic_core& nic, const copy_engine& engine,
                                               std::uint32_t slab_bytes) {
    GAUDI_TRY(auto memory, slab_memory::make(nic, engine, 2 * slabs_per_direction, slab_bytes));
    return std::unique_ptr<staging>(new staging(std::move(memory)));
}

staging::~staging() {
    settle(); // copies in flight use the slabs
}

void staging::settle() {
    // The slabs do not return to their lists: this runs when the connection ends.
    for (auto* queue : {&filling_, &delivering_})
        while (!queue->empty())
            (void)queue->pop().copy.wait();
}

result<void> staging::fill(std::uint32_t operation, device_address from, std::uint32_t bytes) {
    const auto slab = free_out_.pop();
    auto ticket = read_step(memory_.engine(), memory_.of(slab, bytes), from);
    if (!ticket) {
        free_out_.push(slab);
        return tl::unexpected(ticket.error());
    }
    filling_.push({slab, operation, bytes, std::move(*ticket)});
    return {};
}

bool staging::filled() {
    return !filling_.empty() && filling_.front().copy.done();
}

result<staging::part> staging::take_filled() {
    auto taken = filling_.pop();
    if (auto outcome = taken.copy.wait(); !outcome) {
        free_out_.push(taken.slab);
        return tl::unexpected(outcome.error());
    }
    return taken;
}

result<void> staging::start_delivery(unsigned slab, std::uint32_t operation, device_address to,
                                     std::uint32_t bytes) {
    GAUDI_TRY(auto ticket, write_step(memory_.engine(), to, memory_.of(slab, bytes)));
    delivering_.push({slab, operation, bytes, std::move(ticket)});
    return {};
}

bool staging::delivered() {
    return !delivering_.empty() && delivering_.front().copy.done();
}

result<staging::part> staging::take_delivered() {
    auto taken = delivering_.pop();
    // RDMA Reads take their slabs from the outgoing ones, receives from the incoming ones.
    (taken.slab < slabs_per_direction ? free_out_ : free_in_).push(taken.slab);
    GAUDI_CHECK(taken.copy.wait());
    return taken;
}

result<staging*> staging_set::find_or_make(const nic_core& nic, const copy_engine& engine,
                                           std::uint32_t slab_bytes) {
    for (const auto& entry : stagings_)
        if (entry->memory().serves(engine))
            return entry.get();
    GAUDI_TRY(auto added, staging::make(nic, engine, slab_bytes));
    return stagings_.emplace_back(std::move(added)).get();
}

result<std::size_t> staging_set::collect(operation_table& operations) {
    std::size_t collected = 0;
    for (const auto& staging : stagings_)
        for (; staging->delivered(); ++collected) {
            GAUDI_TRY(const auto part, staging->take_delivered());
            operations.part_completed(part.operation, part.bytes);
        }
    return collected;
}

bool staging_set::delivering() const {
    return std::any_of(stagings_.begin(), stagings_.end(),
                       [](const auto& entry) { return entry->delivering(); });
}

bool staging_set::copying() const {
    return std::any_of(stagings_.begin(), stagings_.end(),
                       [](const auto& entry) { return entry->copying(); });
}

void staging_set::settle() {
    for (const auto& staging : stagings_)
        staging->settle();
}

void staging_set::abandon() {
    // Leaked: the destructor would wait for copies that only the parent's engine completes.
    for (auto& staging : stagings_)
        (void)staging.release();
}

} // namespace gaudi
