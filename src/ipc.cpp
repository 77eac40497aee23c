// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/ipc.hpp>

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"
#include "src/ipc/importer.hpp"
#include "src/ipc/settings.hpp"

#include <charconv>
#include <cstdlib>
#include <fmt/format.h>

namespace gaudi {
namespace {

std::mutex settings_mutex;
std::optional<ipc_settings> chosen;

// Where [offset, offset + length) lies in the allocation, if it lies in the buffer.
result<std::uint64_t> place(std::uint64_t begin, std::uint64_t size, std::uint64_t offset,
                            std::uint64_t length) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "copy of 0 bytes"));
    if (!lies_within(offset, length, size))
        return tl::unexpected(
            error(errc::range_leaves_allocation, fmt::format("{} bytes at {} of {}", length, offset, size)));
    return begin + offset;
}

// Pinned in another process's context: the lease, and so the place there, stays as long as the pin.
class leased_pin : public pin_core {
public:
    leased_pin(std::shared_ptr<lease_core> lease, pinned_memory pinned)
        : lease_(std::move(lease)), pinned_(std::move(pinned)) {}
    [[nodiscard]] std::span<std::byte> bytes() const override { return pinned_.bytes(); }
    [[nodiscard]] device_address address() const override { return pinned_.address(); }

private:
    std::shared_ptr<lease_core> lease_; // first: it goes last
    pinned_memory pinned_;
};

result<std::shared_ptr<broker>> sharing(device_address address) {
    auto service = broker::running();
    if (!service)
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("nothing is shared, not {:#x} either", address.value())));
    return service;
}

tl::unexpected<error> still_leased(device_address address, const std::vector<lease_info>& held) {
    std::string who;
    for (const auto& each : held)
        who += fmt::format("{}process {}", who.empty() ? "" : ", ", each.process);
    return tl::unexpected(error(errc::leased, fmt::format("memory at {:#x}: {}", address.value(), who)));
}

} // namespace

result<ipc_settings> parse_ipc(std::string_view give, std::string_view allow) {
    ipc_settings made;
    if (give == "dmabuf")
        made.give = ipc_give::dmabuf;
    else if (give == "nothing")
        made.give = ipc_give::nothing;
    else if (give != "context" && !give.empty())
        return tl::unexpected(
            error(errc::setting_malformed, fmt::format("{}: use context, dmabuf or nothing", give)));
    for (auto left = allow; !left.empty();) {
        std::uint32_t user = 0;
        const auto [end, wrong] = std::from_chars(left.data(), left.data() + left.size(), user);
        left.remove_prefix(static_cast<std::size_t>(end - left.data()));
        if (wrong != std::errc{} || (!left.empty() && left.front() != ','))
            return tl::unexpected(error(errc::setting_malformed,
                                        fmt::format("{}: use numbers of users, separated by commas", allow)));
        made.allow.push_back(user);
        if (!left.empty())
            left.remove_prefix(1);
    }
    return made;
}

result<ipc_settings> ipc_of_environment() {
    const auto value = [](const char* name) {
        const char* text = std::getenv(name);
        return std::string_view(text != nullptr ? text : "");
    };
    const auto give = value("GAUDI_DIRECT_IPC_GIVE"), allow = value("GAUDI_DIRECT_IPC_ALLOW");
    for (const auto& [name, wrong] : {std::pair("GAUDI_DIRECT_IPC_GIVE", parse_ipc(give, "")),
                                      std::pair("GAUDI_DIRECT_IPC_ALLOW", parse_ipc("", allow))})
        if (!wrong)
            return tl::unexpected(
                error(errc::setting_malformed, fmt::format("{}={}", name, wrong.error().observed())));
    return parse_ipc(give, allow);
}

void set_ipc(const ipc_settings& settings) {
    const std::lock_guard guard(settings_mutex);
    chosen = settings;
}

result<ipc_settings> get_ipc() {
    const std::lock_guard guard(settings_mutex);
    if (chosen)
        return *chosen;
    return ipc_of_environment();
}

std::string_view name_of(ipc_way way) {
    constexpr std::string_view names[ipc_ways] = {
        "own memory",        "the owner's context",        "peer DMA-BUF",
        "a NIC in loopback", "staged through host memory", "copied by the owner"};
    return names[static_cast<std::size_t>(way)];
}

result<memory_handle> share(device_address address, std::uint64_t length) {
    GAUDI_TRY(const auto service, broker::self());
    return service->share(address, length, false);
}

result<memory_handle> share(const device_buffer& buffer) {
    if (!buffer)
        return tl::unexpected(error(errc::not_allocated, "sharing of an empty buffer"));
    return share(buffer.address(), buffer.size());
}

result<memory_handle> share_apart(device_address address, std::uint64_t length) {
    GAUDI_TRY(const auto service, broker::self());
    return service->share(address, length, true);
}

result<void> revoke_handle(const memory_handle& handle, std::chrono::milliseconds limit) {
    GAUDI_TRY(const auto record, read_handle(handle.bytes));
    const auto address = device_address(record.base);
    GAUDI_TRY(const auto service, sharing(address));
    if (!service->revoke(address, record.secret))
        return tl::unexpected(
            error(errc::handle_invalid, "no handle of share_apart(): revoke_leases() takes back the others"));
    if (!service->wait(address, broker::until::quiet, limit, record.secret))
        return still_leased(address, service->leases_of(address, record.secret));
    return {};
}

result<void> offer_device(device& shared) {
    GAUDI_TRY(const auto service, broker::self());
    return service->offer(shared.core());
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

void stop_ipc() {
    importer::self().drop_all();
    broker::stop();
}

process_name own_process() {
    const auto& self = own_identity();
    return {self.machine, self.random, self.start_time, self.pid_namespace, self.pid};
}

bool has_ended(const process_name& process) {
    if (importer::self().lost(process.random))
        return true;
    const auto self = own_process();
    return process.machine == self.machine && process.pid_namespace == self.pid_namespace &&
           start_time_of(static_cast<std::uint32_t>(process.pid)) != process.start_time;
}

ipc_statistics ipc_counters() {
    ipc_statistics counted;
    if (const auto service = broker::running())
        service->count(counted);
    importer::self().count(counted);
    return counted;
}

ipc_ticket::ipc_ticket() = default;
ipc_ticket::ipc_ticket(std::unique_ptr<ipc_transfer> started) : transfer_(std::move(started)) {}
ipc_ticket::ipc_ticket(ipc_ticket&&) noexcept = default;
ipc_ticket& ipc_ticket::operator=(ipc_ticket&&) noexcept = default;
ipc_ticket::~ipc_ticket() = default;

ipc_way ipc_ticket::way() const {
    return transfer_ ? transfer_->way() : ipc_way::local;
}

bool ipc_ticket::done() {
    return !transfer_ || transfer_->done();
}

result<void> ipc_ticket::wait(std::chrono::milliseconds limit) {
    if (!transfer_)
        return {};
    auto outcome = transfer_->wait(limit);
    if (!outcome)
        return tl::unexpected(
            error(errc::copy_timeout,
                  fmt::format("copy by {}, waited {} ms", name_of(transfer_->way()), limit.count())));
    return *outcome;
}

imported_buffer::imported_buffer() = default;
imported_buffer::imported_buffer(std::shared_ptr<lease_core> lease, std::uint64_t offset,
                                 std::uint64_t length, const import_options& options)
    : lease_(std::move(lease)), offset_(offset), length_(length), options_(options) {}
imported_buffer::imported_buffer(imported_buffer&&) noexcept = default;
imported_buffer& imported_buffer::operator=(imported_buffer&&) noexcept = default;
imported_buffer::~imported_buffer() = default;

bool imported_buffer::gone() const {
    return !lease_ || lease_->gone();
}

result<ipc_ticket> imported_buffer::read(std::span<std::byte> to, std::uint64_t offset) {
    GAUDI_TRY(const auto at, place(offset_, length_, offset, to.size()));
    return importer::self().start(lease_, options_, false, {to, {}, false}, at, to.size());
}

result<pinned_memory> imported_buffer::pin(std::span<std::byte> memory) {
    GAUDI_TRY(auto engine, importer::self().context_engine(lease_));
    GAUDI_TRY(auto pinned, engine.pin(memory));
    return pinned_memory(std::make_unique<leased_pin>(lease_, std::move(pinned)));
}

result<ipc_ticket> imported_buffer::write(std::uint64_t offset, std::span<const std::byte> from) {
    GAUDI_TRY(const auto at, place(offset_, length_, offset, from.size()));
    // Only read: the type is that of both directions.
    const std::span<std::byte> source(const_cast<std::byte*>(from.data()), from.size());
    return importer::self().start(lease_, options_, true, {source, {}, false}, at, from.size());
}

result<ipc_ticket> imported_buffer::read(device_address to, std::uint64_t offset, std::uint64_t length) {
    GAUDI_TRY(const auto at, place(offset_, length_, offset, length));
    return importer::self().start(lease_, options_, false, {{}, to, true}, at, length);
}

result<ipc_ticket> imported_buffer::write(std::uint64_t offset, device_address from, std::uint64_t length) {
    GAUDI_TRY(const auto at, place(offset_, length_, offset, length));
    return importer::self().start(lease_, options_, true, {{}, from, true}, at, length);
}

result<void> check_handle(const memory_handle& handle) {
    return read_handle(handle.bytes).map([](const handle_record&) {});
}

result<imported_buffer> import_memory(std::span<const std::byte> handle, const import_options& options) {
    GAUDI_TRY(const auto record, read_handle(handle));
    GAUDI_TRY(auto lease, importer::self().open(record));
    return imported_buffer(std::move(lease), record.offset, record.length, options);
}

} // namespace gaudi
