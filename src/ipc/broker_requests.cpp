// SPDX-License-Identifier: BSD-3-Clause
// What importers ask the broker for, and what it does for them.
#include "src/ipc/broker.hpp"

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/os/round_up.hpp"

#include <cstring>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gaudi {
namespace {

constexpr std::uint64_t largest_slab = 64ULL << 20;
constexpr std::size_t most_copies = 64; // under way for one client

tl::unexpected<error> stale(const handle_record& handle) {
    return tl::unexpected(
        error(errc::handle_stale, fmt::format("{} bytes at {:#x}, generation {}", handle.allocated,
                                              handle.base, handle.generation)));
}

} // namespace

broker::answer broker::carry_out(client& from, const wire_request& asked, received_message& with,
                                 wire_reply& reply) {
    if (asked.head.version != wire_head::current_version)
        return tl::unexpected(
            error(errc::version_mismatch, fmt::format("the importer speaks version {}, the owner {}",
                                                      asked.head.version, wire_head::current_version)));
    from.greeted = true;
    const auto nothing = [](const result<void>& done) -> answer {
        if (!done)
            return tl::unexpected(done.error());
        return std::vector<int>{};
    };
    switch (asked.head.ask) {
    case wire_ask::open_lease:
        return open_lease(from, asked, reply);
    case wire_ask::open_context:
        return open_context(from, asked, reply);
    case wire_ask::open_dmabuf:
        return open_dmabuf(from, asked, reply);
    case wire_ask::open_device:
        return open_device(from, asked, reply);
    case wire_ask::attach_slab:
        return nothing(attach_slab(from, asked, with));
    case wire_ask::copy_out:
    case wire_ask::copy_in:
        return nothing(start_copy(from, asked, reply));
    case wire_ask::close_lease:
    case wire_ask::let_go:
        break;
    }
    return tl::unexpected(
        error(errc::handle_invalid, fmt::format("request {}", static_cast<int>(asked.head.ask))));
}

broker::answer broker::open_lease(client& from, const wire_request& asked, wire_reply& reply) {
    GAUDI_TRY(const auto handle, read_handle(std::as_bytes(std::span(&asked.handle, 1))));
    if (handle.owner() != own_identity())
        return tl::unexpected(error(errc::handle_invalid, "a handle of another process"));
    const auto known = shared_.find(handle.base);
    if (known == shared_.end())
        return stale(handle);
    const auto piece = known->second.pieces.find(handle.secret);
    if (piece == known->second.pieces.end() || piece->second.offset != handle.offset ||
        piece->second.length != handle.length || known->second.generation != handle.generation ||
        known->second.length != handle.allocated)
        return stale(handle);
    if (from.leases.size() >= leases_per_client)
        return tl::unexpected(
            error(errc::leases_exhausted, fmt::format("one process may hold {} leases", leases_per_client)));
    if (from.board.data() == nullptr) {
        GAUDI_TRY(from.board,
                  shared_memory::make("gaudi-direct leases", leases_per_client * sizeof(lease_word)));
    }
    std::vector<int> passed;
    while (from.leases.contains(from.next_slot))
        from.next_slot = (from.next_slot + 1) % leases_per_client;
    auto& fresh = from.leases[from.next_slot];
    fresh.base = handle.base;
    fresh.generation = handle.generation;
    fresh.secret = handle.secret;
    from.word(from.next_slot).revoked.store(0);
    from.word(from.next_slot).in_flight.store(0);
    reply.lease = from.next_slot;
    ++leases_given_;
    from.next_slot = (from.next_slot + 1) % leases_per_client;
    if ((asked.wants & wants_board) != 0) {
        reply.given |= wants_board;
        passed.push_back(from.board.descriptor());
        int ends[2];
        if (!from.bell &&
            ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0) {
            from.bell = lone_fd(unique_fd(ends[0]));
            from.parked.emplace_back(ends[1]); // until it is passed
            reply.given |= gives_bell;
            passed.push_back(ends[1]);
        }
    }
    return passed;
}

broker::answer broker::open_dmabuf(client& from, const wire_request& asked, wire_reply& reply) {
    std::uint64_t base = 0;
    auto* known = leased(from, asked.lease, base);
    if (known == nullptr)
        return tl::unexpected(error(errc::handle_stale, fmt::format("lease {}", asked.lease)));
    if (settings_.give == ipc_give::nothing)
        return tl::unexpected(error(errc::not_given, "the owner gives no DMA-BUF away"));
    auto& held = from.leases[asked.lease];
    auto& piece = known->pieces.at(held.secret);
    GAUDI_CHECK(open_window(base, *known, piece));
    from.given = held.given = true;
    reply.skip = piece.skip;
    reply.window = piece.window_length;
    return std::vector<int>{piece.window.get()};
}

result<void> broker::open_window(std::uint64_t base, const shared_allocation& of,
                                 shared_allocation::piece& piece) {
    if (piece.window)
        return {};
    const auto device = find_open_device(of.device_index);
    if (!device)
        return tl::unexpected(error(errc::not_allocated, "the device was closed"));
    used_.push_back(device);
    GAUDI_TRY(const auto exported, device->export_pages(device_address(base + piece.offset), piece.length));
    piece.window = unique_fd(exported.fd);
    piece.skip = exported.offset;
    piece.window_length = round_up(exported.offset + piece.length, 4096);
    return {};
}

broker::answer broker::open_context(client& from, const wire_request& asked, wire_reply& reply) {
    std::uint64_t base = 0;
    const auto* known = leased(from, asked.lease, base);
    if (known == nullptr)
        return tl::unexpected(error(errc::handle_stale, fmt::format("lease {}", asked.lease)));
    if (from.who.uid != ::geteuid()) // who has a context can do anything with the device
        return tl::unexpected(
            error(errc::not_given, "a device's descriptor is given to the owner's own user alone"));
    if (settings_.give != ipc_give::context)
        return tl::unexpected(error(errc::not_given, "the owner does not give its device's descriptor away"));
    const auto device = find_open_device(known->device_index);
    if (device)
        used_.push_back(device);
    if (!device || device->core()->whose() != tenancy::opened)
        return tl::unexpected(error(errc::copies_absent, "the device's context is not the owner's to give"));
    return admit(from, device->core(), reply);
}

broker::answer broker::open_device(client& from, const wire_request& asked, wire_reply& reply) {
    if (from.who.uid != ::geteuid()) // the list of further users is for memory that was shared
        return tl::unexpected(error(
            errc::peer_refused, fmt::format("user {}, the device is user {}'s", from.who.uid, ::geteuid())));
    const auto known = offered_.find(asked.offset);
    const auto context = known != offered_.end() ? known->second.context.lock() : nullptr;
    if (!context || context->lost())
        return tl::unexpected(error(errc::device_unknown, "the device is not offered"));
    return admit(from, context, reply);
}

broker::answer broker::admit(client& from, const std::shared_ptr<hl_device>& context, wire_reply& reply) {
    GAUDI_TRY(const auto ledger, context->open_ledger());
    from.given = true;
    for (const auto& each : from.guests)
        if (each.context == context) { // it has a place there already
            reply.place = each.place;
            return std::vector<int>{context->fd(), ledger->descriptor()};
        }
    const auto place = ledger->admit();
    if (!place)
        return tl::unexpected(
            error(errc::leases_exhausted, fmt::format("a context serves {} guests", context_ledger::guests)));
    from.guests.push_back({context, *place});
    reply.place = *place;
    return std::vector<int>{context->fd(), ledger->descriptor()};
}

result<void> broker::attach_slab(client& from, const wire_request& asked, received_message& with) {
    if (with.descriptors != 1 || asked.length == 0 || asked.length > largest_slab || !from.copies.empty())
        return tl::unexpected(error(
            errc::handle_invalid, fmt::format("a slab of {} bytes, at most {}", asked.length, largest_slab)));
    GAUDI_TRY(auto slab, shared_memory::of(std::move(with.passed[0]), asked.length));
    slab.drop_descriptor();
    from.slab_pins.clear();
    from.slab = std::move(slab);
    return {};
}

result<void> broker::start_copy(client& from, const wire_request& asked, const wire_reply& reply) {
    std::uint64_t base = 0;
    const auto* known = leased(from, asked.lease, base);
    if (known == nullptr)
        return tl::unexpected(error(errc::lease_revoked, fmt::format("lease {}", asked.lease)));
    auto& held = from.leases[asked.lease];
    const auto& opened = known->pieces.at(held.secret);
    if (asked.offset < opened.offset ||
        !lies_within(asked.offset - opened.offset, asked.length, opened.length) ||
        !lies_within(asked.slab_offset, asked.length, from.slab.bytes().size()))
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("{} bytes at {} with a handle of {} at {}, {} of the slab", asked.length,
                              asked.offset, opened.length, opened.offset, asked.slab_offset)));
    if (from.copies.size() >= most_copies)
        return tl::unexpected(
            error(errc::too_many_operations, fmt::format("{} copies are under way", most_copies)));
    const auto device = find_open_device(known->device_index);
    if (!device)
        return tl::unexpected(error(errc::not_allocated, "the device was closed"));
    used_.push_back(device);
    GAUDI_TRY(auto engine, device->copies());
    if (const auto pin = from.slab_pins.find(known->device_index);
        pin == from.slab_pins.end() || pin->second.engine.core() != engine.core()) {
        if (pin != from.slab_pins.end())
            from.slab_pins.erase(pin); // of a context that is no more
        GAUDI_TRY(auto pinned, engine.pin(from.slab.bytes()));
        from.slab_pins.emplace(known->device_index, client::slab_pin{engine, std::move(pinned)});
    }
    const auto piece = from.slab.bytes().subspan(asked.slab_offset, asked.length);
    const auto address = device_address(base + asked.offset);
    GAUDI_TRY(auto ticket, asked.head.ask == wire_ask::copy_out ? read_step(engine, piece, address)
                                                                : write_step(engine, address, piece));
    ++held.copies;
    from.copies.push_back({std::move(ticket), reply, asked.lease});
    return {};
}

void broker::finish_copies(client& of) {
    for (auto each = of.copies.begin(); each != of.copies.end();) {
        if (!each->ticket.done()) {
            // In the order of submission: nothing behind it is likely to be ready.
            if (each == of.copies.begin() && each->ticket.wait(std::chrono::milliseconds(1)))
                continue;
            return;
        }
        if (const auto done = each->ticket.wait(); !done) {
            each->reply.failed = static_cast<std::uint32_t>(done.error().code()) + 1;
            std::strncpy(each->reply.observed, done.error().observed().c_str(),
                         sizeof(each->reply.observed) - 1);
        }
        if (const auto held = of.leases.find(each->lease);
            held != of.leases.end() && --held->second.copies == 0 && held->second.closing)
            close_lease(of, each->lease);
        if (!of.dead && !send_reply(of, each->reply, {}))
            condemn(of);
        each = of.copies.erase(each);
    }
}

void broker::close_lease(client& from, std::uint32_t slot) {
    const auto held = from.leases.find(slot);
    if (held == from.leases.end())
        return;
    if (held->second.copies != 0) {
        held->second.closing = true;
        return;
    }
    const auto ended = held->second;
    from.leases.erase(held);
    close_window_if_unused(ended);
}

void broker::close_window_if_unused(const lease& ended) {
    const auto known = shared_.find(ended.base);
    if (known == shared_.end() || !ended.is_of(known->first, known->second))
        return;
    bool leased = false;
    for (const auto& each : clients_)
        for (const auto& [slot, held] : each.leases)
            if (held.is_of(known->first, known->second)) {
                if (held.secret == ended.secret)
                    return;
                leased = true;
            }
    if (const auto piece = known->second.pieces.find(ended.secret); piece != known->second.pieces.end())
        piece->second.window.reset();
    if (known->second.pieces.empty() && !leased) // revoked, and now no importer has it any more
        shared_.erase(known);
}

broker::shared_allocation* broker::leased(const client& by, std::uint32_t slot, std::uint64_t& base) {
    const auto held = by.leases.find(slot);
    if (held == by.leases.end())
        return nullptr;
    base = held->second.base;
    if (held->second.revoked || held->second.closing)
        return nullptr;
    const auto known = shared_.find(base);
    return known != shared_.end() && held->second.is_of(base, known->second) &&
                   known->second.pieces.contains(held->second.secret)
               ? &known->second
               : nullptr;
}

} // namespace gaudi
