// SPDX-License-Identifier: BSD-3-Clause
// The broker's thread: what importers ask, and what happens when they end.
#include "src/ipc/broker.hpp"

#include "src/hl/hl_device.hpp"
#include "src/os/round_up.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t most_clients = 1024;
constexpr auto time_to_greet = std::chrono::seconds(2);
constexpr std::uint64_t largest_slab = 64ULL << 20;
constexpr std::size_t most_copies = 64; // under way for one client

lone_fd open_pidfd(pid_t process) {
    return lone_fd(unique_fd(process > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, process, 0)) : -1));
}

tl::unexpected<error> stale(const handle_record& handle) {
    return tl::unexpected(
        error(errc::handle_stale, fmt::format("{} bytes at {:#x}, generation {}", handle.allocated,
                                              handle.base, handle.generation)));
}

} // namespace

void broker::run() {
    for (;;) {
        int sleep = 0;
        {
            const std::lock_guard guard(mutex_);
            if (ending_) {
                for (auto& each : clients_)
                    condemn(each);
                // A guest's submissions may be in flight still; the driver ends them with the context.
                for (int tries = 0; tries < 100 && !clients_.empty(); ++tries) {
                    bury_the_dead();
                    if (!clients_.empty())
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                clients_.clear();
                shared_.clear();
                offered_.clear();
                return;
            }
            sleep = patience();
        }
        epoll_event ready[32];
        const int count = ::epoll_wait(epoll_.get(), ready, 32, sleep);
        std::vector<std::shared_ptr<hangup_watcher>> hung_up;
        std::vector<std::shared_ptr<device>>
            used; // the last reference to a device is not for us to drop under the lock
        std::unique_lock lock(mutex_);
        std::erase_if(offered_, [](const auto& each) { return each.second.context.expired(); });
        for (int i = 0; i < count; ++i)
            dispatch(ready[i].data.fd, hung_up);
        for (auto& each : clients_) {
            finish_copies(each);
            let_go_of_lost_devices(each);
            if (!each.greeted && clock::now() - each.since > time_to_greet)
                condemn(each);
        }
        bury_the_dead();
        used.swap(used_);
        lock.unlock();
        for (const auto& each : hung_up)
            each->hung_up();
    }
}

int broker::patience() const {
    const auto any = [&](auto&& is) { return std::any_of(clients_.begin(), clients_.end(), is); };
    if (any([](const client& each) { return each.dead || !each.greeted || !each.copies.empty(); }))
        return 1;
    return any([](const client& each) { return !each.guests.empty() || !each.slab_pins.empty(); }) ? 500 : -1;
}

void broker::let_go_of_lost_devices(client& of) {
    if (of.copies.empty())
        std::erase_if(of.slab_pins, [](const auto& each) { return each.second.engine.lost(); });
    if (std::any_of(of.guests.begin(), of.guests.end(),
                    [](const guest& each) { return each.context->lost(); })) {
        std::erase_if(of.guests, [](const guest& each) { return each.context->lost(); });
        condemn(of); // so that it closes its descriptor as well
    }
}

void broker::dispatch(int fd, std::vector<std::shared_ptr<hangup_watcher>>& hung_up) {
    if (fd == wake_.get()) {
        std::uint64_t ignored = 0;
        (void)!::read(fd, &ignored, sizeof(ignored));
        return;
    }
    if (fd == listener_.get())
        return accept_all(fd);
    for (const auto& [node, each] : offered_)
        if (fd == each.listener.get())
            return accept_all(fd);
    if (const auto found = watched_.find(fd); found != watched_.end()) {
        pollfd again{fd, POLLRDHUP, 0}; // the number may be another connection's by now
        if (::poll(&again, 1, 0) <= 0)
            return;
        if (auto watcher = found->second.lock())
            hung_up.push_back(std::move(watcher));
        watched_.erase(found);
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
        return;
    }
    for (auto& each : clients_) {
        if (each.process.get() == fd || (each.socket.get() == fd && !serve(each)))
            condemn(each);
    }
}

void broker::condemn(client& gone) {
    if (std::exchange(gone.dead, true))
        return;
    for (auto* each : {&gone.socket, &gone.process})
        if (*each)
            ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, each->get(), nullptr);
}

bool broker::serves(std::uint32_t user) const {
    return user == ::geteuid() ||
           std::find(settings_.allow.begin(), settings_.allow.end(), user) != settings_.allow.end();
}

void broker::accept_all(int listener) {
    for (;;) {
        unique_fd made(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!made) {
            if (errno == EMFILE || errno == ENFILE) // whoever waits stays ready: not as fast as we can
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return;
        }
        client fresh;
        socklen_t length = sizeof(fresh.who);
        if (clients_.size() >= most_clients ||
            ::getsockopt(made.get(), SOL_SOCKET, SO_PEERCRED, &fresh.who, &length) != 0 ||
            fresh.who.pid == ::getpid())
            continue;
        if (!serves(fresh.who.uid)) {
            wire_reply refusal;
            refusal.failed = static_cast<std::uint32_t>(errc::peer_refused) + 1;
            fmt::format_to_n(refusal.observed, sizeof(refusal.observed) - 1, "user {}, the owner is {}",
                             fresh.who.uid, ::geteuid());
            (void)send_message(made.get(), std::as_bytes(std::span(&refusal, 1)), {}, {});
            continue;
        }
        if (!add(made.get(), EPOLLIN | EPOLLRDHUP))
            continue;
        fresh.socket = lone_fd(std::move(made));
        fresh.process = open_pidfd(fresh.who.pid);
        if (fresh.process)
            (void)add(fresh.process.get(), EPOLLIN);
        fresh.since = clock::now();
        clients_.push_back(std::move(fresh));
    }
}

bool broker::serve(client& from) {
    for (int messages = 0; messages < 16; ++messages) { // then the others get their turn
        wire_request asked;
        auto got = receive_message(from.socket.get(), std::as_writable_bytes(std::span(&asked, 1)), {});
        if (!got)
            return got.error().code() == errc::peer_silent; // nothing more for now
        if (got->bytes != sizeof(asked) || asked.head.magic != wire_head::magic_value)
            return false;
        from.parked.clear(); // whoever asks on has fetched them
        wire_reply reply;
        reply.head = asked.head;
        reply.head.version = wire_head::current_version;
        if (asked.head.ask == wire_ask::close_lease && asked.head.version == wire_head::current_version) {
            close_lease(from, asked.lease);
            continue;
        }
        const auto done = carry_out(from, asked, *got, reply);
        if (!done) {
            reply.failed = static_cast<std::uint32_t>(done.error().code()) + 1;
            reply.system_error = done.error().system_error();
            std::strncpy(reply.observed, done.error().observed().c_str(), sizeof(reply.observed) - 1);
        }
        const bool later =
            done && (asked.head.ask == wire_ask::copy_in || asked.head.ask == wire_ask::copy_out);
        if (!later && !send_reply(from, reply, done ? std::span<const int>(*done) : std::span<const int>()))
            return false;
    }
    return true;
}

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
        break;
    }
    return tl::unexpected(
        error(errc::handle_invalid, fmt::format("request {}", static_cast<int>(asked.head.ask))));
}

broker::answer broker::open_lease(client& from, const wire_request& asked, wire_reply& reply) {
    const auto handle = read_handle(std::as_bytes(std::span(&asked.handle, 1)));
    if (!handle)
        return tl::unexpected(handle.error());
    if (handle->owner() != own_identity())
        return tl::unexpected(error(errc::handle_invalid, "a handle of another process"));
    const auto known = shared_.find(handle->base);
    if (known == shared_.end() || handle->secret == 0 ||
        (known->second.secret != handle->secret && !known->second.apart.contains(handle->secret)) ||
        known->second.generation != handle->generation || known->second.length != handle->allocated)
        return stale(*handle);
    if (from.leases.size() >= leases_per_client)
        return tl::unexpected(
            error(errc::leases_exhausted, fmt::format("one process may hold {} leases", leases_per_client)));
    if (from.board.data() == nullptr) {
        auto board = shared_memory::make("gaudi-direct leases", leases_per_client * sizeof(lease_word));
        if (!board)
            return tl::unexpected(board.error());
        from.board = std::move(*board);
    }
    std::vector<int> passed;
    while (from.leases.contains(from.next_slot))
        from.next_slot = (from.next_slot + 1) % leases_per_client;
    auto& fresh = from.leases[from.next_slot];
    fresh.base = handle->base;
    fresh.generation = handle->generation;
    fresh.secret = handle->secret;
    from.word(from.next_slot).revoked.store(0);
    from.word(from.next_slot).in_flight.store(0);
    reply.lease = from.next_slot;
    ++leases_given_;
    from.next_slot = (from.next_slot + 1) % leases_per_client;
    if ((asked.wants & wants_board) != 0) {
        reply.given |= wants_board;
        passed.push_back(from.board.descriptor());
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
    if (auto opened = open_window(base, *known); !opened)
        return tl::unexpected(opened.error());
    from.given = true;
    reply.skip = known->skip;
    reply.window = known->window_length;
    return std::vector<int>{known->window.get()};
}

result<void> broker::open_window(std::uint64_t base, shared_allocation& of) {
    if (of.window)
        return {};
    const auto device = find_open_device(of.device_index);
    if (!device)
        return tl::unexpected(error(errc::not_allocated, "the device was closed"));
    used_.push_back(device);
    const auto exported = device->export_pages(device_address(base), of.length);
    if (!exported)
        return tl::unexpected(exported.error());
    of.window = unique_fd(exported->fd);
    of.skip = exported->offset;
    of.window_length = round_up(exported->offset + of.length, 4096);
    return {};
}

broker::answer broker::open_context(client& from, const wire_request& asked, wire_reply& reply) {
    std::uint64_t base = 0;
    const auto* known = leased(from, asked.lease, base);
    if (known == nullptr)
        return tl::unexpected(error(errc::handle_stale, fmt::format("lease {}", asked.lease)));
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
    const auto known = offered_.find(asked.offset);
    const auto context = known != offered_.end() ? known->second.context.lock() : nullptr;
    if (!context || context->lost())
        return tl::unexpected(error(errc::device_unknown, "the device is not offered"));
    return admit(from, context, reply);
}

broker::answer broker::admit(client& from, const std::shared_ptr<hl_device>& context, wire_reply& reply) {
    const auto ledger = context->open_ledger();
    if (!ledger)
        return tl::unexpected(ledger.error());
    from.given = true;
    for (const auto& each : from.guests)
        if (each.context == context) { // it has a place there already
            reply.place = each.place;
            return std::vector<int>{context->fd(), (*ledger)->descriptor()};
        }
    const auto place = (*ledger)->admit();
    if (!place)
        return tl::unexpected(
            error(errc::leases_exhausted, fmt::format("a context serves {} guests", context_ledger::guests)));
    from.guests.push_back({context, *place});
    reply.place = *place;
    return std::vector<int>{context->fd(), (*ledger)->descriptor()};
}

result<void> broker::attach_slab(client& from, const wire_request& asked, received_message& with) {
    if (with.descriptors != 1 || asked.length == 0 || asked.length > largest_slab || !from.copies.empty())
        return tl::unexpected(error(
            errc::handle_invalid, fmt::format("a slab of {} bytes, at most {}", asked.length, largest_slab)));
    auto slab = shared_memory::of(std::move(with.passed[0]), asked.length);
    if (!slab)
        return tl::unexpected(slab.error());
    slab->drop_descriptor();
    from.slab_pins.clear();
    from.slab = std::move(*slab);
    return {};
}

result<void> broker::start_copy(client& from, const wire_request& asked, const wire_reply& reply) {
    std::uint64_t base = 0;
    const auto* known = leased(from, asked.lease, base);
    if (known == nullptr)
        return tl::unexpected(error(errc::lease_revoked, fmt::format("lease {}", asked.lease)));
    auto& held = from.leases[asked.lease];
    if (const auto apart = known->apart.find(held.secret);
        apart != known->apart.end() &&
        (asked.offset < apart->second.offset ||
         !lies_within(asked.offset - apart->second.offset, asked.length, apart->second.length)))
        return tl::unexpected(error(errc::range_leaves_allocation, "the handle does not reach there"));
    if (!lies_within(asked.offset, asked.length, known->length) ||
        !lies_within(asked.slab_offset, asked.length, from.slab.bytes().size()))
        return tl::unexpected(error(errc::range_leaves_allocation,
                                    fmt::format("{} bytes at {} of {}, {} of the slab", asked.length,
                                                asked.offset, known->length, asked.slab_offset)));
    if (from.copies.size() >= most_copies)
        return tl::unexpected(
            error(errc::too_many_operations, fmt::format("{} copies are under way", most_copies)));
    const auto device = find_open_device(known->device_index);
    if (!device)
        return tl::unexpected(error(errc::not_allocated, "the device was closed"));
    used_.push_back(device);
    auto engine = device->copies();
    if (!engine)
        return tl::unexpected(engine.error());
    if (const auto pin = from.slab_pins.find(known->device_index);
        pin == from.slab_pins.end() || pin->second.engine.core() != engine->core()) {
        if (pin != from.slab_pins.end())
            from.slab_pins.erase(pin); // of a context that is no more
        auto pinned = engine->pin(from.slab.bytes());
        if (!pinned)
            return tl::unexpected(pinned.error());
        from.slab_pins.emplace(known->device_index, client::slab_pin{*engine, std::move(*pinned)});
    }
    const auto piece = from.slab.bytes().subspan(asked.slab_offset, asked.length);
    const auto address = device_address(base + asked.offset);
    auto ticket =
        asked.head.ask == wire_ask::copy_out ? engine->read(piece, address) : engine->write(address, piece);
    if (!ticket)
        return tl::unexpected(ticket.error());
    ++held.copies;
    from.copies.push_back({std::move(*ticket), reply, asked.lease});
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

bool broker::send_reply(client& to, wire_reply& reply, std::span<const int> passed) {
    const auto bytes = std::as_bytes(std::span(&reply, 1));
    auto sent = send_message(to.socket.get(), bytes, passed, {});
    if (sent || passed.empty())
        return sent.has_value();
    // Descriptors cannot be sent at the moment (too many in flight): the other side may fetch them itself, if
    // the kernel lets it.
    reply.fetch = static_cast<std::uint32_t>(passed.size());
    for (std::size_t i = 0; i < passed.size(); ++i) {
        to.parked.emplace_back(::fcntl(passed[i], F_DUPFD_CLOEXEC, 0));
        reply.numbers[i] = to.parked.back().get();
    }
    return send_message(to.socket.get(), bytes, {}, {}).has_value();
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
    for (const auto& each : clients_)
        for (const auto& [slot, held] : each.leases)
            if (held.is_of(known->first, known->second))
                return;
    known->second.window.reset();
    if (known->second.secret == 0) // revoked, and now nobody has it any more
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
    return known != shared_.end() && held->second.is_of(base, known->second) ? &known->second : nullptr;
}

bool broker::is_harmless(const client& gone) {
    pollfd ended{gone.process.get(), POLLIN, 0};
    if (!gone.process || ::poll(&ended, 1, 0) > 0) // a process has closed everything when its pidfd says so
        return true;
    // It lives, and only its connection is gone: what it has mapped and begun is still its own.
    return std::all_of(gone.guests.begin(), gone.guests.end(),
                       [](const guest& each) { return each.context->ledger()->holds_nothing(each.place); }) &&
           std::all_of(gone.leases.begin(), gone.leases.end(),
                       [&](const auto& held) { return gone.in_flight(held.first, held.second) == 0; });
}

bool broker::bury(client& gone) {
    finish_copies(gone);
    if (!gone.copies.empty() || !is_harmless(gone))
        return false;
    std::erase_if(gone.guests, [](const guest& each) {
        auto& device = *each.context;
        return device.lost() ||
               device.ledger()->reap(device.api(), device.fd(), each.place, device.traits().max_in_flight);
    });
    if (!gone.guests.empty())
        return false;
    gone.slab_pins.clear();
    while (!gone.leases.empty())
        close_lease(gone, gone.leases.begin()->first);
    return true;
}

void broker::bury_the_dead() {
    for (auto each = clients_.begin(); each != clients_.end();)
        each = each->dead && bury(*each) ? clients_.erase(each) : std::next(each);
}

} // namespace gaudi
