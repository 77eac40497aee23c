// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/copier.hpp>

#include "src/transfer/copier_core.hpp"

namespace gaudi {

copier::copier(const copier_options& options) : core_(std::make_shared<copier_core>(options)) {}
copier::~copier() = default;
copier::copier(copier&&) noexcept = default;
copier& copier::operator=(copier&&) noexcept = default;

result<copy_ticket> copier::copy(const place& to, const place& from, const copy_policy& policy) {
    return core_->copy(to, from, policy);
}

std::vector<path_verdict> copier::paths(const place& to, const place& from) {
    return core_->paths(to, from);
}

void copier::poll() {
    core_->poll();
}

result<int> copier::event_fd() {
    return core_->event_fd();
}

void copier::arm() {
    core_->arm();
}

result<copy_engine> copier::engine_of(unsigned device_index) {
    return core_->devices().engine_of(device_index).map([](auto core) {
        return copy_engine(std::move(core));
    });
}

void copier::forget(unsigned device_index) {
    core_->forget(device_index);
}

void copier::drop_lost() {
    core_->drop_lost();
}

} // namespace gaudi
