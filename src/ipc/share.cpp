// SPDX-License-Identifier: BSD-3-Clause
// The owner's side: sharing memory, waiting for importers, revoking leases.
#include <gaudi/device.hpp>
#include <gaudi/ipc.hpp>

#include "src/error/try.hpp"
#include "src/ipc/broker.hpp"
#include "src/os/internals.hpp"

#include <fmt/format.h>

namespace gaudi {
namespace {

result<std::shared_ptr<broker>> sharing(device_address address) {
    auto service = broker::running();
    if (!service)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("nothing is shared, not {:#x} either", address.value())));
    return service;
}

tl::unexpected<error> still_leased(device_address address, const std::vector<lease_info>& held) {
    std::string holders;
    for (const auto& each : held)
        holders += fmt::format("{}process {}", holders.empty() ? "" : ", ", each.process);
    return tl::unexpected(error(errc::leased, fmt::format("memory at {:#x}: {}", address.value(), holders)));
}

} // namespace

result<memory_handle> share(device_address address, std::uint64_t length) {
    GAUDI_TRY(const auto service, broker::self());
    return service->share(address, length, false);
}

result<memory_handle> share(const device_buffer& buffer) {
    if (!buffer)
        return tl::unexpected(error(errc::not_allocated, "sharing of an empty buffer"));
    return share(buffer.address(), buffer.size());
}

result<memory_handle> share_separately(device_address address, std::uint64_t length) {
    GAUDI_TRY(const auto service, broker::self());
    return service->share(address, length, true);
}

bool is_shared(const memory_handle& handle) {
    const auto record = read_handle(handle.bytes);
    const auto service = broker::running();
    return record && service && service->is_shared(*record);
}

result<void> revoke_handle(const memory_handle& handle, std::chrono::milliseconds limit) {
    GAUDI_TRY(const auto record, read_handle(handle.bytes));
    const auto address = device_address(record.base);
    GAUDI_TRY(const auto service, sharing(address));
    if (!service->revoke(address, record.secret))
        return tl::unexpected(error(
            errc::handle_invalid, "not a handle of share_separately(); revoke_leases() revokes the others"));
    if (!service->wait(address, broker::until::quiet, limit, record.secret))
        return still_leased(address, service->leases_of(address, record.secret));
    return {};
}

result<void> offer_device(device& shared) {
    GAUDI_TRY(const auto service, broker::self());
    return service->offer(core_of(shared));
}

std::vector<lease_info> leases_of(device_address address) {
    const auto service = broker::running();
    return service ? service->leases_of(address) : std::vector<lease_info>{};
}

result<void> wait_for_leases(device_address address, std::chrono::milliseconds limit) {
    GAUDI_TRY(const auto service, sharing(address));
    if (!service->wait(address, broker::until::closed, limit))
        return still_leased(address, service->leases_of(address));
    return {};
}

result<void> revoke_leases(device_address address, std::chrono::milliseconds limit) {
    GAUDI_TRY(const auto service, sharing(address));
    if (!service->revoke(address))
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("nothing is shared at {:#x}", address.value())));
    if (!service->wait(address, broker::until::quiet, limit))
        return still_leased(address, service->leases_of(address));
    return {};
}

result<void> free_shared(device_buffer& buffer, if_leased choice, std::chrono::milliseconds limit) {
    if (!buffer)
        return tl::unexpected(error(errc::not_allocated, "freeing of an empty buffer"));
    if (const auto service = broker::running()) {
        const auto wait = choice == if_leased::wait ? limit : std::chrono::milliseconds(0);
        if (!service->wait(buffer.address(), broker::until::closed, wait))
            return still_leased(buffer.address(), service->leases_of(buffer.address()));
    }
    const device_buffer gone = std::move(buffer);
    buffer = {};
    return {};
}

} // namespace gaudi
