// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/ipc.hpp>

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"
#include "src/ipc/importer.hpp"

#include <fmt/format.h>

namespace gaudi {
namespace {

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

} // namespace

std::string_view name_of(ipc_way way) {
    constexpr std::string_view names[ipc_ways] = {
        "own memory",        "the owner's context",        "peer DMA-BUF",
        "a NIC in loopback", "staged through host memory", "copied by the owner"};
    return names[static_cast<std::size_t>(way)];
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
