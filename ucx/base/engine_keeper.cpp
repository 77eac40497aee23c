// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/engine_keeper.hpp"

#include <gaudi/device.hpp>

namespace gaudi_ucx {

std::shared_ptr<engine_keeper> engine_keeper::of(uct_gaudi_module& module) {
    static std::mutex mutex;
    const std::lock_guard guard(mutex);
    auto keeper = module.engines.lock();
    if (!keeper)
        module.engines = keeper = std::make_shared<engine_keeper>(module);
    return keeper;
}

engine_keeper::engine_keeper(uct_gaudi_module& module) : module_(module) {
    module.holders.add(*this);
}

engine_keeper::~engine_keeper() {
    module_.holders.remove(*this);
}

gaudi::result<gaudi::copy_engine> engine_keeper::engine_of(unsigned index,
                                                           const gaudi::copy_options& options) {
    const std::lock_guard guard(mutex_);
    if (const auto known = engines_.find(index); known != engines_.end() && !known->second.lost())
        return known->second;
    const auto device = gaudi::find_open_device(index);
    if (!device)
        return tl::unexpected(
            gaudi::error(gaudi::errc::not_allocated, fmt::format("device {} is not open here", index)));
    auto engine = device->copies(options);
    if (engine)
        engines_.insert_or_assign(index, *engine);
    return engine;
}

void engine_keeper::forget(unsigned index) {
    const std::lock_guard guard(mutex_);
    engines_.erase(index);
}

void engine_keeper::let_go_of_lost() {
    const std::lock_guard guard(mutex_);
    std::erase_if(engines_, [](const auto& each) { return each.second.lost(); });
}

} // namespace gaudi_ucx
