// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/staging.hpp"

namespace gaudi {

staging::staging(const copy_engine& engine, std::uint32_t slab_bytes)
    : engine_(engine), slab_bytes_(slab_bytes), free_out_(slabs_each_way), free_in_(slabs_each_way),
      filling_(slabs_each_way), landing_(2ULL * slabs_each_way) {
    for (unsigned i = 0; i < slabs_each_way; ++i) {
        free_out_.push(i);
        free_in_.push(slabs_each_way + i);
    }
}

result<std::unique_ptr<staging>> staging::make(const nic_core& card, const copy_engine& engine,
                                               std::uint32_t slab_bytes) {
    std::unique_ptr<staging> made(new staging(engine, slab_bytes));
    auto memory = mapping::anonymous(2ULL * slabs_each_way * slab_bytes);
    if (!memory)
        return tl::unexpected(memory.error());
    made->memory_ = std::move(*memory);
    auto pinned = made->engine_.pin(made->memory_.bytes());
    if (!pinned)
        return tl::unexpected(pinned.error());
    made->pinned_ = std::move(*pinned);
    auto region = card.register_host(made->memory_.bytes());
    if (!region)
        return tl::unexpected(region.error());
    made->region_ = std::move(*region);
    return made;
}

staging::~staging() {
    settle(); // copies still use the memory
}

void staging::settle() {
    for (auto* queue : {&filling_, &landing_})
        while (!queue->empty())
            (void)queue->pop().copy.wait();
}

std::uint64_t staging::address_of(unsigned slab) const {
    return reinterpret_cast<std::uintptr_t>(memory_.bytes().data()) + std::uint64_t{slab} * slab_bytes_;
}

result<void> staging::fill(std::uint32_t operation, device_address from, std::uint32_t bytes) {
    const auto slab = free_out_.pop();
    auto ticket = engine_.read(memory_.bytes().subspan(std::size_t{slab} * slab_bytes_, bytes), from);
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

result<void> staging::land(unsigned slab, std::uint32_t operation, device_address to, std::uint32_t bytes) {
    auto ticket = engine_.write(to, memory_.bytes().subspan(std::size_t{slab} * slab_bytes_, bytes));
    if (!ticket)
        return tl::unexpected(ticket.error());
    landing_.push({slab, operation, bytes, std::move(*ticket)});
    return {};
}

bool staging::landed() {
    return !landing_.empty() && landing_.front().copy.done();
}

result<staging::part> staging::take_landed() {
    auto taken = landing_.pop();
    (taken.slab < slabs_each_way ? free_out_ : free_in_).push(taken.slab);
    if (auto outcome = taken.copy.wait(); !outcome)
        return tl::unexpected(outcome.error());
    return taken;
}

} // namespace gaudi
