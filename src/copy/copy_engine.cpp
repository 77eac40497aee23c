// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/copy_engine.hpp>

#include "src/copy/copy_core.hpp"
#include "src/os/internals.hpp"

#include <utility>

namespace gaudi {
namespace {

result<copy_ticket> ticket_of(const std::shared_ptr<copy_core>& core, const result<std::uint32_t>& started,
                              std::uint64_t bytes) {
    if (!started)
        return tl::unexpected(started.error());
    return internals::wrap<copy_ticket>(core, *started, copy_path::engine, bytes);
}

} // namespace

result<copy_ticket> read_step(const copy_engine& engine, std::span<std::byte> to, device_address from) {
    return ticket_of(core_of(engine), core_of(engine)->read(to, from, {{}, std::nullopt}), to.size());
}

result<copy_ticket> write_step(const copy_engine& engine, device_address to,
                               std::span<const std::byte> from) {
    return ticket_of(core_of(engine), core_of(engine)->write(to, from, {{}, std::nullopt}), from.size());
}

pinned_memory::pinned_memory() = default;
pinned_memory::pinned_memory(std::unique_ptr<pin_core> core) : core_(std::move(core)) {}
pinned_memory::pinned_memory(pinned_memory&&) noexcept = default;
pinned_memory& pinned_memory::operator=(pinned_memory&&) noexcept = default;
pinned_memory::~pinned_memory() = default;

std::span<std::byte> pinned_memory::bytes() const {
    return core_ ? core_->bytes() : std::span<std::byte>{};
}

device_address pinned_memory::address() const {
    return core_ ? core_->address() : device_address{};
}

bool copy_engine::lost() const {
    return core_->device().lost();
}

result<copy_ticket> copy_engine::write(device_address to, std::span<const std::byte> from,
                                       const copy_hints& hints) {
    return ticket_of(core_, core_->write(to, from, {hints}), from.size());
}

result<copy_ticket> copy_engine::read(std::span<std::byte> to, device_address from, const copy_hints& hints) {
    return ticket_of(core_, core_->read(to, from, {hints}), to.size());
}

result<copy_ticket> copy_engine::copy(device_address to, device_address from, std::uint64_t length,
                                      const copy_hints& hints) {
    return ticket_of(core_, core_->copy(to, from, length, {hints}), length);
}

std::size_t copy_engine::poll() {
    return core_->poll();
}

result<int> copy_engine::event_fd(event_when when) {
    return core_->event_fd(when);
}

void copy_engine::arm() {
    core_->arm();
}

result<pinned_memory> copy_engine::pin(std::span<std::byte> memory) {
    return core_->pin(memory);
}

std::vector<queue_use> copy_engine::queues() const {
    return core_->queues();
}

std::optional<copy_engine> weak_copy_engine::lock() const {
    auto core = core_.lock();
    return core ? std::optional(internals::wrap<copy_engine>(std::move(core))) : std::nullopt;
}

engine_statistics copy_engine::statistics() const {
    return core_->statistics();
}

} // namespace gaudi
