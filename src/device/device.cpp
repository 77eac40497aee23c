// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device.hpp>

#include "src/copy/copy_core.hpp"
#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/hl/discovery.hpp"
#include "src/hl/synapse.hpp"
#include "src/memory/editable_address_map.hpp"
#include "src/memory/heap_core.hpp"
#include "src/os/internals.hpp"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>

namespace gaudi {

device::device(std::shared_ptr<hl_device> opened, std::shared_ptr<heap_core> heap)
    : core_(std::move(opened)), heap_(std::move(heap)) {}

device::~device() = default;

device_info device::info() const {
    const auto& identity = core_->identity();
    device_info description;
    description.index = identity.index;
    description.generation = identity.generation;
    description.bus_id = identity.bus_id;
    if (auto all = discover(core_->api()))
        for (auto& info : *all)
            if (info.bus_id == identity.bus_id)
                description = std::move(info);
    return description;
}

result<copy_engine> device::copies(const copy_options& options) {
    const std::lock_guard guard(core_->engine.mutex);
    // One engine for each context and process: two would not count each other's submissions (gotcha 20).
    auto core = core_->engine.core.lock();
    if (!core) {
        GAUDI_TRY(core, copy_core::make(core_, &registry::self().map(), options));
        core_->engine.core = core;
    }
    return internals::wrap<copy_engine>(core);
}

std::optional<copy_engine> device::copies_in_use() const {
    const std::lock_guard guard(core_->engine.mutex);
    auto core = core_->engine.core.lock();
    return core ? std::optional(internals::wrap<copy_engine>(std::move(core))) : std::nullopt;
}

int device::descriptor() const {
    return core_->fd();
}

bool device::attached() const {
    return !core_->owned();
}

result<gaudi::synapse_pool> device::synapse_pool() const {
    return core_->synapse_pool();
}

bool device::lost() const {
    return core_->lost();
}

result<dmabuf_export> device::export_memory(device_address address, std::uint64_t length) {
    if (attached())
        return export_foreign(address, length);
    auto exported = heap_.dmabuf(address, length);
    if (!exported)
        return exported;
    exported->fd = ::fcntl(exported->fd, F_DUPFD_CLOEXEC, 0);
    if (exported->fd < 0)
        return tl::unexpected(error(errc::descriptors_exhausted, "dup of a DMA-BUF", errno));
    return exported;
}

result<dmabuf_export> device::export_pages(device_address address, std::uint64_t length) {
    return attached() ? export_pool(address, length, true) : core_of(heap_)->window(address, length);
}

result<dmabuf_export> device::export_foreign(device_address address, std::uint64_t length) {
    return export_pool(address, length, false);
}

result<dmabuf_export> device::export_pool(device_address address, std::uint64_t length, bool pages_alone) {
    if (is_pytorch_handle(address))
        return tl::unexpected(no_allocation(address, length));
    // Asked each time: SynapseAI may have released the device, and its pool with it, without notice.
    const auto synapse = core_->synapse_side();
    if (!synapse)
        return tl::unexpected(
            error(errc::not_allocated,
                  fmt::format("{} bytes at {:#x}: {}", length, address.value(), synapse.error().observed())));
    GAUDI_TRY(const auto pool, core_->synapse_pool());
    GAUDI_TRY(auto plan, core_->plan_export_of(pool, address, length));
    if (!pages_alone)
        plan = core_->widen_for_driver(plan, pool);
    GAUDI_TRY(auto fd, core_->export_dmabuf(plan));
    return dmabuf_export{fd.release(), plan.dmabuf_offset, plan.iova, plan.length};
}

std::span<const memory_window> address_spaces() {
    static const auto spaces = [] {
        std::vector<memory_window> all;
        for (const auto value : {generation::gaudi, generation::gaudi2, generation::gaudi3})
            if (const auto& traits = traits_of(value); traits.space_size != 0)
                all.push_back({device_address(traits.space_base), traits.space_size, 0});
        return all;
    }();
    return spaces;
}

bool synapse_copies_here() {
    return find_synapse_copies().has_value();
}

bool may_have_engine(const device_info& info) {
    return info.generation && (has_user_queues(*info.generation) || synapse_copies_here());
}

} // namespace gaudi
