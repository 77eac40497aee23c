// SPDX-License-Identifier: BSD-3-Clause
#include "src/transfer/slab_pool.hpp"

#include "src/error/try.hpp"

namespace gaudi {
namespace {

constexpr std::size_t most_spare = 4;

} // namespace

result<void> slab_pool::set::pin(unsigned index, const std::shared_ptr<copy_core>& engine, bool keep) {
    // The pin keeps the engine alive, so that its address names no other engine.
    if (pins_.contains({engine.get(), index}))
        return {};
    GAUDI_TRY(auto pinned, engine->pin(slab(index)));
    pins_.emplace(std::pair(engine.get(), index), kept_pin{std::move(pinned), keep});
    return {};
}

result<std::shared_ptr<slab_pool::set>> slab_pool::take() {
    std::shared_ptr<set> taken;
    {
        const std::lock_guard guard(mutex_);
        if (!spare_.empty()) {
            taken = std::move(spare_.back());
            spare_.pop_back();
            taken->drops_ = drops_;
            return taken;
        }
    }
    GAUDI_TRY(auto memory, mapping::anonymous(slabs * slab_bytes));
    taken = std::make_shared<set>(std::move(memory));
    const std::lock_guard guard(mutex_);
    taken->drops_ = drops_;
    return taken;
}

void slab_pool::release(const std::shared_ptr<set>& used) {
    std::erase_if(used->pins_, [](const auto& each) { return !each.second.keep; });
    const std::lock_guard guard(mutex_);
    // drop_pins() ran while the copy had the set: which engines it meant is not known any more.
    if (used->drops_ != drops_)
        used->pins_.clear();
    if (spare_.size() < most_spare)
        spare_.push_back(used);
}

} // namespace gaudi
