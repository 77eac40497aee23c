// SPDX-License-Identifier: BSD-3-Clause
// What imported memory needs of the layer above: copies.
#include <gaudi/ipc.hpp>

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"
#include "src/ipc/broker.hpp"
#include "src/ipc/importer.hpp"
#include "src/os/internals.hpp"
#include "src/transfer/copier_core.hpp"

namespace gaudi {
namespace {

// Host memory pinned in another process's context. The lease, and with it the membership in that context,
// lasts as long as the pin.
class leased_pin : public pin_core {
public:
    leased_pin(std::shared_ptr<lease_core> lease, pinned_memory pinned)
        : lease_(std::move(lease)), pinned_(std::move(pinned)) {}
    [[nodiscard]] std::span<std::byte> bytes() const override { return pinned_.bytes(); }
    [[nodiscard]] device_address address() const override { return pinned_.address(); }

private:
    std::shared_ptr<lease_core> lease_; // declared first, destroyed last
    pinned_memory pinned_;
};

} // namespace

copy_policy imported_buffer::policy() const {
    return {options_.only, options_.zero_copy, {}};
}

result<copy_ticket> imported_buffer::read(std::span<std::byte> to, std::uint64_t offset) {
    return copier_core::of_process()->copy(to, place(*this, offset, to.size()), policy());
}

result<copy_ticket> imported_buffer::write(std::uint64_t offset, std::span<const std::byte> from) {
    return copier_core::of_process()->copy(place(*this, offset, from.size()), from, policy());
}

result<copy_ticket> imported_buffer::read(device_address to, std::uint64_t offset, std::uint64_t length) {
    return copier_core::of_process()->copy(place(to, length), place(*this, offset, length), policy());
}

result<copy_ticket> imported_buffer::write(std::uint64_t offset, device_address from, std::uint64_t length) {
    return copier_core::of_process()->copy(place(*this, offset, length), place(from, length), policy());
}

result<pinned_memory> imported_buffer::pin(std::span<std::byte> memory) {
    GAUDI_TRY(const auto engine, copier_core::of_process()->devices().engine_on_context(*lease_));
    GAUDI_TRY(auto pinned, engine->pin(memory));
    return internals::wrap<pinned_memory>(std::make_unique<leased_pin>(lease_, std::move(pinned)));
}

void stop_ipc() {
    // Leases first: where a socket is full, the broker's thread sends the message that closes a lease.
    importer::self().drop_all();
    copier_core::drop_of_process();
    broker::stop();
}

} // namespace gaudi
