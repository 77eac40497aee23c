// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/connection.hpp>

#include "src/error/try.hpp"
#include "src/memory/registration_cache.hpp"
#include "src/os/byte_order.hpp"
#include "src/rdma/connection_core.hpp"
#include "src/rdma/staging_source.hpp"

#include <fmt/format.h>
#include <utility>

namespace gaudi {

std::string_view name_of(memory_way way) {
    constexpr std::string_view names[] = {"host", "zero-copy", "staged"};
    return names[static_cast<std::size_t>(way)];
}

std::string name_of(remote_access rights) {
    std::string text;
    for (const auto& [right, name] :
         {std::pair{remote_access::read, "read"}, std::pair{remote_access::write, "write"},
          std::pair{remote_access::atomic, "atomic"}})
        if (allows(rights, right))
            text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    return text.empty() ? "nothing" : text;
}

std::array<std::byte, remote_region::encoded_bytes> remote_region::encode() const {
    std::array<std::byte, encoded_bytes> bytes{};
    packer(bytes)
        .put(address)
        .put(length)
        .put(key)
        .put(static_cast<std::uint16_t>(rights))
        .put(static_cast<std::uint16_t>(way));
    return bytes;
}

result<remote_region> remote_region::decode(std::span<const std::byte> bytes) {
    if (bytes.size() != encoded_bytes)
        return tl::unexpected(error(errc::handshake_refused, fmt::format("a region in {} bytes instead of {}",
                                                                         bytes.size(), encoded_bytes)));
    unpacker in(bytes);
    remote_region region;
    region.address = in.get<std::uint64_t>();
    region.length = in.get<std::uint64_t>();
    region.key = in.get<std::uint32_t>();
    const auto rights = in.get<std::uint16_t>();
    const auto way = in.get<std::uint16_t>();
    if (way > static_cast<std::uint16_t>(memory_way::staged) ||
        rights > static_cast<std::uint16_t>(remote_access::all) ||
        region.address + region.length < region.address)
        return tl::unexpected(
            error(errc::handshake_refused, fmt::format("a region of {} bytes at {:#x}, way {}, rights {}",
                                                       region.length, region.address, way, rights)));
    region.way = static_cast<memory_way>(way);
    region.rights = static_cast<remote_access>(rights);
    return region;
}

namespace {

result<void> check_part(std::uint64_t whole, std::uint64_t offset, std::uint64_t length) {
    if (offset <= whole && length <= whole - offset)
        return {};
    return tl::unexpected(
        error(errc::range_leaves_allocation,
              fmt::format("{} bytes at offset {} of a region of {}", length, offset, whole)));
}

} // namespace

result<remote_region> remote_region::part(std::uint64_t offset, std::uint64_t bytes) const {
    GAUDI_CHECK(check_part(length, offset, bytes));
    auto taken = *this;
    taken.address += offset;
    taken.length = bytes;
    return taken;
}

std::string_view local_region::reason() const {
    return source_ ? std::string_view(source_->reason()) : std::string_view{};
}

result<local_region> local_region::part(std::uint64_t offset, std::uint64_t bytes) const {
    GAUDI_CHECK(check_part(length_, offset, bytes));
    auto taken = *this;
    taken.address_ += offset;
    taken.length_ = bytes;
    return taken;
}

result<remote_key> local_region::expose(remote_access rights) const {
    if (way_ == memory_way::staged)
        return tl::unexpected(error(errc::remote_staged, std::string(reason())));
    const auto cache = lease_ ? lease_->cache() : nullptr;
    if (!cache)
        return tl::unexpected(error(errc::not_allocated, "a key to a region of a NIC that was closed"));
    return cache->expose(*this, rights);
}

const path_report::count& path_report::by(memory_way way) const {
    return way == memory_way::host ? host : way == memory_way::zero_copy ? zero_copy : staged;
}

transfer::transfer(connection_core* core, std::uint32_t slot) : operation_({core, slot}) {
    core->retain();
}

void transfer::operation::close() noexcept {
    core->drop(slot);
    core->release();
}

bool transfer::done() {
    return !operation_ || operation_->core->done(operation_->slot);
}

result<completion> transfer::wait(std::chrono::milliseconds limit) {
    if (!operation_)
        return completion{};
    return operation_->core->wait(operation_->slot, limit);
}

void connection::open_connection::close() noexcept {
    core->close();
    core->release();
}

namespace {

result<transfer> begin(connection_core* core, const transfer_request& wanted) {
    GAUDI_TRY(const auto slot, core->start(wanted));
    return transfer(core, slot);
}

} // namespace

result<transfer> connection::send(const local_region& from, std::optional<std::uint32_t> immediate) {
    return begin(core(), {.kind = transfer_kind::send, .local = &from, .immediate = immediate});
}

result<transfer> connection::receive(const local_region& into) {
    return begin(core(), {.kind = transfer_kind::receive, .local = &into});
}

result<transfer> connection::write(const local_region& from, const remote_region& to) {
    return begin(core(), {.kind = transfer_kind::write, .local = &from, .remote = &to});
}

result<transfer> connection::write_with_immediate(const local_region& from, const remote_region& to,
                                                  std::uint32_t immediate) {
    return begin(core(),
                 {.kind = transfer_kind::write, .local = &from, .remote = &to, .immediate = immediate});
}

result<transfer> connection::read(const local_region& into, const remote_region& from) {
    return begin(core(), {.kind = transfer_kind::read, .local = &into, .remote = &from});
}

result<transfer> connection::fetch_add(const remote_region& where, std::uint64_t add) {
    return begin(core(), {.kind = transfer_kind::fetch_add, .remote = &where, .operand = add});
}

result<transfer> connection::compare_swap(const remote_region& where, std::uint64_t expected,
                                          std::uint64_t desired) {
    return begin(
        core(),
        {.kind = transfer_kind::compare_swap, .remote = &where, .operand = desired, .compare = expected});
}

bool connection::atomics() const {
    return core()->atomics();
}

std::size_t connection::poll() {
    return core()->progress();
}

result<void> connection::tell(std::span<const std::byte> note) {
    return core()->tell(frame_kind::note, note);
}

result<std::vector<std::byte>> connection::hear(std::chrono::milliseconds limit) {
    return core()->hear(frame_kind::note, limit);
}

result<void> connection::offer(const local_region& region, remote_access rights) {
    GAUDI_TRY(const auto remote, core()->offer(region, rights));
    return core()->tell(frame_kind::offer, remote.encode());
}

void connection::withdraw(const local_region& region) {
    core()->withdraw(region);
}

result<remote_region> connection::take_offer(std::chrono::milliseconds limit) {
    GAUDI_TRY(const auto body, core()->hear(frame_kind::offer, limit));
    return remote_region::decode(body);
}

void connection::close() {
    if (open_)
        core()->close();
}

bool connection::alive() const {
    return open_ && core()->alive();
}

path_report connection::report() const {
    return core()->report();
}

const std::string& connection::peer() const {
    return core()->peer();
}

namespace {

result<connection> made(result<connection_core*> core) {
    if (!core)
        return tl::unexpected(core.error());
    return connection(*core);
}

} // namespace

result<connection> connect(const std::shared_ptr<nic>& card, const std::string& peer,
                           const connection_options& options) {
    const auto deadline = std::chrono::steady_clock::now() + options.deadline;
    GAUDI_TRY(auto joined, stream::connect(peer, default_port, deadline));
    return made(
        connection_core::join(card, std::move(joined), connection_core::role::client, options, deadline));
}

result<listener> listener::open(std::uint16_t port, const std::string& address) {
    GAUDI_TRY(auto opened, listen_on(address, port));
    return listener(socket{opened.fd.release(), opened.port});
}

void listener::socket::close() noexcept {
    unique_fd{fd};
}

result<caller> listener::next(std::chrono::milliseconds limit) const {
    GAUDI_TRY(auto joined, accept_from(socket_->fd, std::chrono::steady_clock::now() + limit));
    return caller(std::make_unique<stream>(std::move(joined)));
}

result<connection> listener::accept(const std::shared_ptr<nic>& card, std::chrono::milliseconds limit,
                                    const connection_options& options) const {
    GAUDI_TRY(auto knocking, next(limit));
    return knocking.welcome(card, options);
}

caller::caller(std::unique_ptr<stream> joined) : joined_(std::move(joined)), peer_(joined_->peer()) {}
caller::caller(caller&&) noexcept = default;
caller& caller::operator=(caller&&) noexcept = default;
caller::~caller() = default;

const std::string& caller::peer() const {
    return peer_;
}

result<connection> caller::welcome(const std::shared_ptr<nic>& card, const connection_options& options) {
    return made(connection_core::join(card, std::move(*joined_), connection_core::role::server, options,
                                      std::chrono::steady_clock::now() + options.deadline));
}

} // namespace gaudi
