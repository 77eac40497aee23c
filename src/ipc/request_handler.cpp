// SPDX-License-Identifier: BSD-3-Clause
// Every number in a request is the importer's: it is checked against the table of what was shared, never
// against what the request itself says. Nothing here waits for the importer.
#include "src/ipc/request_handler.hpp"

#include "src/copy/copy_core.hpp"
#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/os/internals.hpp"
#include "src/os/round_up.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace gaudi {
namespace {

constexpr std::uint64_t largest_slab = 64ULL << 20;
constexpr std::size_t most_copies = 64; // of one client at a time

tl::unexpected<error> no_such_lease(errc code, lease_set::slot_number slot) {
    return tl::unexpected(error(code, fmt::format("lease {}", slot)));
}

} // namespace

bool request_handler::serve(client& from) {
    for (int messages = 0; messages < 16; ++messages) { // then the broker serves other clients
        std::array<std::byte, longest_request> bytes;
        auto received = receive_message(from.socket.get(), bytes, {});
        if (!received)
            return received.error().code() == errc::peer_silent; // no further message for now
        const auto message = std::span<const std::byte>(bytes).first(received->bytes);
        if (message.size() < sizeof(request_head))
            return false;
        const auto head = *read_as<request_head>(message.first(sizeof(request_head)));
        if (head.magic != request_head::magic_value)
            return false;
        from.parked.clear(); // the client's next request implies that it has fetched them
        from.unresponsive = false;
        if (!answer(from, head, message.subspan(sizeof(request_head)), *received))
            return false;
    }
    return true;
}

bool request_handler::answer(client& from, const request_head& head, std::span<const std::byte> body,
                             received_message& with) {
    answer_head reply;
    reply.id = head.id;
    const auto refuse = [&](const error& why) {
        reply.set_failure(why);
        return from.send(reply, nothing_more{});
    };
    if (head.version != request_head::current_version)
        return refuse(
            {errc::version_mismatch, fmt::format("the importer has protocol version {}, the owner {}",
                                                 head.version, request_head::current_version)});
    // Only with a request of this version: a client that cannot be served must not hold a place for long.
    from.greeted = true;
    const auto request = read_request(head.kind, body);
    if (!request)
        return refuse(
            {errc::protocol_violated, fmt::format("request {} of {} bytes", head.kind, body.size())});
    return std::visit(
        [&](const auto& wanted) {
            using type = std::remove_cvref_t<decltype(wanted)>;
            if constexpr (std::is_void_v<typename type::answer>) {
                carry_out(from, wanted);
                return true;
            } else if constexpr (std::is_same_v<type, copy_request>) {
                const auto started = start_copy(from, wanted, head.id);
                return started ? true : refuse(started.error()); // answered when the copy has completed
            } else {
                const auto done = carry_out(from, wanted, with);
                return done ? from.send(reply, done->body, done->descriptors) : refuse(done.error());
            }
        },
        *request);
}

result<request_handler::outgoing<opened_lease>>
request_handler::carry_out(client& from, const open_lease_request& request, received_message&) {
    GAUDI_TRY(const auto handle, read_handle(std::as_bytes(std::span(&request.handle, 1))));
    if (handle.owner() != own_identity())
        return tl::unexpected(error(errc::handle_invalid, "a handle of another process"));
    GAUDI_CHECK(shares_.find(handle));
    GAUDI_TRY(const auto slot, from.leases.open(handle));
    ++leases_opened_;
    outgoing<opened_lease> made{{slot, 0}};
    // The table is passed on request only: the kernel limits a user's descriptors in flight.
    if (request.wants_table == 0)
        return made;
    made.body.passed |= opened_lease::table;
    made.descriptors.push_back(from.leases.table_descriptor());
    if (auto socket = from.leases.open_revoke_socket()) {
        made.body.passed |= opened_lease::revoke_socket;
        made.descriptors.push_back(socket.get());
        from.parked.push_back(std::move(socket)); // until it is passed
    }
    return made;
}

result<request_handler::outgoing<opened_dmabuf>>
request_handler::carry_out(client& from, const open_dmabuf_request& request, received_message&) {
    const auto leased = find_leased(from, request.lease);
    if (!leased)
        return no_such_lease(errc::handle_stale, request.lease);
    if (settings_.give == ipc_give::nothing)
        return tl::unexpected(error(errc::not_granted, "the owner passes no DMA-BUF"));
    auto& piece = *leased.piece;
    if (!piece.dmabuf) {
        GAUDI_TRY(const auto device, use_device(leased.allocation->device_index));
        // A DMA-BUF of these pages alone, made once for all leases of this handle: the chunk's own would open
        // its neighbours as well.
        GAUDI_TRY(const auto exported,
                  device->export_pages(device_address(leased.allocation->base + piece.offset), piece.length));
        piece.dmabuf = unique_fd(exported.fd);
        piece.skip = exported.offset;
        piece.window = round_up(exported.offset + piece.length, 4096);
    }
    from.leases.importer_has_descriptors();
    // Noted before the answer is sent: from here on a free waits for the importer, whatever becomes of the
    // answer.
    from.leases.find_usable(request.lease)->dmabuf_given = true;
    return outgoing<opened_dmabuf>{{piece.skip, piece.window}, {piece.dmabuf.get()}};
}

result<request_handler::outgoing<opened_context>>
request_handler::carry_out(client& from, const open_context_request& request, received_message&) {
    const auto leased = find_leased(from, request.lease);
    if (!leased)
        return no_such_lease(errc::handle_stale, request.lease);
    if (from.credentials.uid != ::geteuid()) // a context gives full control over the device
        return tl::unexpected(error(
            errc::not_granted, "the owner passes its device's descriptor only to processes of its own user"));
    if (settings_.give != ipc_give::context)
        return tl::unexpected(error(errc::not_granted, "the owner does not pass its device's descriptor"));
    // Only the process that opened the context can undo what a member has mapped when it dies (gotcha I3).
    const auto owner = use_device(leased.allocation->device_index);
    if (!owner || core_of(**owner)->owner() != context_owner::this_process)
        return tl::unexpected(
            error(errc::copies_absent, "the device's context belongs to another process than the owner"));
    return admit(from, core_of(**owner));
}

result<request_handler::outgoing<opened_context>>
request_handler::carry_out(client& from, const open_device_request& request, received_message&) {
    // The setting that allows further users applies to shared memory only.
    if (from.credentials.uid != ::geteuid())
        return tl::unexpected(error(errc::peer_refused, fmt::format("user {}, the device is user {}'s",
                                                                    from.credentials.uid, ::geteuid())));
    const auto context = offers_.find(request.node);
    if (!context)
        return tl::unexpected(error(errc::device_unknown, "the device is not offered"));
    return admit(from, context);
}

result<request_handler::outgoing<opened_context>>
request_handler::admit(client& from, const std::shared_ptr<hl_device>& context) {
    GAUDI_TRY(const auto shared, context->sharing().open());
    from.leases.importer_has_descriptors();
    const auto passed = [&](unsigned member) {
        return outgoing<opened_context>{{member}, {context->fd(), shared->descriptor()}};
    };
    // One number per client and context, however often it asks: the owner undoes its mappings by that number.
    for (const auto& each : from.memberships)
        if (each.context == context)
            return passed(each.member);
    const auto member = shared->admit();
    if (!member)
        return tl::unexpected(error(errc::leases_exhausted, fmt::format("a context has at most {} members",
                                                                        shared_context::members)));
    from.memberships.push_back({context, *member});
    return passed(*member);
}

result<request_handler::outgoing<nothing_more>>
request_handler::carry_out(client& from, const attach_slab_request& request, received_message& with) {
    if (with.descriptors != 1 || request.length == 0 || request.length > largest_slab || !from.copies.empty())
        return tl::unexpected(error(errc::protocol_violated, fmt::format("a slab of {} bytes, at most {}",
                                                                         request.length, largest_slab)));
    // shared_memory::of refuses memory that could shrink: an access beyond its end would end this process.
    GAUDI_TRY(auto slab, shared_memory::of(std::move(with.passed[0]), request.length));
    slab.drop_descriptor();
    // Before the memory: the engine must not have pages pinned that are unmapped.
    from.slab_pins.clear();
    from.slab = std::move(slab);
    return outgoing<nothing_more>{};
}

result<void> request_handler::start_copy(client& from, const copy_request& request, std::uint64_t id) {
    const auto leased = find_leased(from, request.lease);
    if (!leased)
        return no_such_lease(errc::lease_revoked, request.lease);
    // The handle's bytes, not the allocation's: a handle opens no more than what it was made for.
    const auto& piece = *leased.piece;
    if (request.offset < piece.offset ||
        !lies_within(request.offset - piece.offset, request.length, piece.length) ||
        !lies_within(request.slab_offset, request.length, from.slab.bytes().size()))
        return tl::unexpected(
            error(errc::range_leaves_allocation,
                  fmt::format("{} bytes at {} with a handle of {} at {}, {} of the slab", request.length,
                              request.offset, piece.length, piece.offset, request.slab_offset)));
    if (from.copies.size() >= most_copies)
        return tl::unexpected(
            error(errc::too_many_operations, fmt::format("{} copies are in flight", most_copies)));
    const auto index = leased.allocation->device_index;
    GAUDI_TRY(const auto owner, use_device(index));
    GAUDI_TRY(auto* const engine, pin_slab(from, *owner, index));
    const auto slab = from.slab.bytes().subspan(request.slab_offset, request.length);
    const auto address = device_address(leased.allocation->base + request.offset);
    GAUDI_TRY(auto ticket,
              request.to_slab != 0 ? read_step(*engine, slab, address) : write_step(*engine, address, slab));
    from.leases.copy_started(request.lease);
    from.copies.push_back({std::move(ticket), id, request.lease});
    return {};
}

// The engine of the device, with the client's slab pinned for it.
result<copy_engine*> request_handler::pin_slab(client& from, device& owner, unsigned index) {
    GAUDI_TRY(auto engine, owner.copies());
    auto pin = from.slab_pins.find(index);
    if (pin != from.slab_pins.end() && core_of(pin->second.engine) != core_of(engine)) {
        from.slab_pins.erase(pin); // the pin belongs to a context that was closed
        pin = from.slab_pins.end();
    }
    if (pin == from.slab_pins.end()) {
        GAUDI_TRY(auto pinned, engine.pin(from.slab.bytes()));
        pin = from.slab_pins.emplace(index, client::slab_pin{engine, std::move(pinned)}).first;
    }
    return &pin->second.engine;
}

void request_handler::finish_copies(client& of) {
    for (auto each = of.copies.begin(); each != of.copies.end();) {
        if (!each->ticket.done()) {
            // Copies complete in the order of submission: the later ones have hardly completed.
            if (each == of.copies.begin() && each->ticket.wait(std::chrono::milliseconds(1)))
                continue;
            return;
        }
        answer_head reply;
        reply.id = each->request_id;
        if (const auto done = each->ticket.wait(); !done)
            reply.set_failure(done.error());
        // The client may have closed the lease while the owner copied for it.
        if (const auto closed = of.leases.copy_ended(each->lease))
            lease_closed(*closed);
        if (!of.disconnected && !of.send(reply, nothing_more{}))
            clients_.disconnect(of);
        each = of.copies.erase(each);
    }
}

void request_handler::close_lease(client& from, lease_set::slot_number slot) {
    if (const auto closed = from.leases.close(slot))
        lease_closed(*closed);
}

void request_handler::lease_closed(const lease_record& closed) {
    // Several clients may lease one allocation: what is kept for it goes with the last lease.
    bool of_piece = false, of_allocation = false;
    for (const auto& each : clients_.all())
        for (const auto& [slot, lease] : each.leases.all())
            if (lease.base == closed.base && lease.length == closed.length &&
                lease.generation == closed.generation) {
                of_allocation = true;
                of_piece = of_piece || lease.secret == closed.secret;
            }
    shares_.lease_closed(closed, !of_piece, !of_allocation);
}

share_table::leased request_handler::find_leased(client& by, lease_set::slot_number slot) {
    const auto* lease = by.leases.find_usable(slot);
    return lease != nullptr ? shares_.find(*lease) : share_table::leased{};
}

result<std::shared_ptr<device>> request_handler::use_device(unsigned index) {
    auto found = find_open_device(index);
    if (!found)
        return tl::unexpected(error(errc::not_allocated, "the device was closed"));
    used_.push_back(found);
    return found;
}

} // namespace gaudi
