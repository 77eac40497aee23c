// SPDX-License-Identifier: BSD-3-Clause
// The broker's thread: who comes, whose turn it is, and what happens when they end.
#include "src/ipc/broker.hpp"

#include "src/hl/hl_device.hpp"
#include "src/ipc/importer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t most_clients = 1024;
constexpr std::ptrdiff_t most_of_one = 64; // connections of one process; an importer has one
constexpr std::ptrdiff_t most_silent = 64; // that have not said a word yet
constexpr auto time_to_greet = std::chrono::seconds(2);
constexpr auto time_to_end = std::chrono::seconds(5); // copies of a process that may have ended, or not

lone_fd open_pidfd(pid_t process) {
    return lone_fd(unique_fd(process > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, process, 0)) : -1));
}

void refuse(int socket, errc why, const std::string& observed) {
    wire_reply refusal;
    refusal.failed = static_cast<std::uint32_t>(why) + 1;
    std::strncpy(refusal.observed, observed.c_str(), sizeof(refusal.observed) - 1);
    (void)send_message(socket, std::as_bytes(std::span(&refusal, 1)), {}, {});
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
        bool revoked = false;
        std::vector<std::shared_ptr<device>>
            used; // the last reference to a device is not for us to drop under the lock
        std::unique_lock lock(mutex_);
        std::erase_if(offered_, [](const auto& each) { return each.second.context.expired(); });
        for (int i = 0; i < count; ++i)
            dispatch(ready[i].data.fd, hung_up, revoked);
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
        if (revoked)
            importer::self().let_go_of_gone();
        if (unsent_.exchange(false))
            flush_all();
    }
}

void broker::flush_all() {
    std::vector<std::shared_ptr<hangup_watcher>> all;
    {
        const std::lock_guard guard(mutex_);
        for (const auto& [socket, each] : watched_)
            if (auto watcher = each.lock())
                all.push_back(std::move(watcher));
    }
    for (const auto& each : all)
        if (!each->flush())
            unsent_ = true;
}

int broker::patience() const {
    if (unsent_)
        return 1;
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

void broker::dispatch(int fd, std::vector<std::shared_ptr<hangup_watcher>>& hung_up, bool& revoked) {
    if (fd == wake_.get()) {
        std::uint64_t ignored = 0;
        (void)!::read(fd, &ignored, sizeof(ignored));
        return;
    }
    if (bells_.contains(fd)) {
        char rung[1];
        ssize_t got = 0;
        for (int times = 0; times < 64 && (got = ::recv(fd, rung, sizeof(rung), MSG_DONTWAIT)) > 0; ++times)
            revoked = true;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) { // nobody will ring it any more
            bells_.erase(fd);
            ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
        }
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
    gone.since = clock::now();
    for (auto* each : {&gone.socket, &gone.process})
        if (*each)
            ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, each->get(), nullptr);
}

bool broker::serves(std::uint32_t user) const {
    return user == ::geteuid() ||
           std::find(settings_.allow.begin(), settings_.allow.end(), user) != settings_.allow.end();
}

// Those who connect and say nothing must not keep others out: the one that was silent longest goes.
void broker::make_room_for_one() {
    const auto silent = [](const client& each) { return !each.greeted && !each.dead; };
    if (std::count_if(clients_.begin(), clients_.end(), silent) < most_silent)
        return;
    condemn(*std::find_if(clients_.begin(), clients_.end(), silent));
}

// There is no descriptor left for it: with the one kept for this it is told so, instead of waiting.
void broker::send_one_away(int listener) {
    spare_ = lone_fd();
    if (const unique_fd made(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); made)
        refuse(made.get(), errc::descriptors_exhausted, "the owner can open no more files");
    else // whoever waits stays ready: not as fast as we can
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    keep_a_spare();
}

void broker::keep_a_spare() {
    spare_ = lone_fd(unique_fd(::fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0)));
}

void broker::accept_all(int listener) {
    for (int accepted = 0; accepted < 16; ++accepted) { // then the others get their turn
        unique_fd made(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!made) {
            if (errno == EMFILE || errno == ENFILE)
                send_one_away(listener);
            return;
        }
        client fresh;
        socklen_t length = sizeof(fresh.who);
        if (::getsockopt(made.get(), SOL_SOCKET, SO_PEERCRED, &fresh.who, &length) != 0 ||
            fresh.who.pid == ::getpid())
            continue;
        if (!serves(fresh.who.uid)) {
            refuse(made.get(), errc::peer_refused,
                   fmt::format("user {}, the owner is {}", fresh.who.uid, ::geteuid()));
            continue;
        }
        if (!spare_)
            keep_a_spare();
        // Those whose connection is gone and whose leases are not count as well.
        const auto of_the_same = std::count_if(clients_.begin(), clients_.end(), [&](const client& each) {
            return each.who.pid == fresh.who.pid;
        });
        if (clients_.size() >= most_clients || (fresh.who.pid != 0 && of_the_same >= most_of_one)) {
            refuse(made.get(), errc::leases_exhausted,
                   fmt::format("{} connections are served, {} of one process", most_clients, most_of_one));
            continue;
        }
        make_room_for_one();
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
        from.silent = false;
        wire_reply reply;
        reply.head = asked.head;
        reply.head.version = wire_head::current_version;
        if (asked.head.version == wire_head::current_version) {
            if (asked.head.ask == wire_ask::close_lease) {
                close_lease(from, asked.lease);
                continue;
            }
            if (asked.head.ask == wire_ask::let_go) {
                if (const auto held = from.leases.find(asked.lease); held != from.leases.end())
                    held->second.given = false;
                continue;
            }
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

bool broker::send_reply(client& to, wire_reply& reply, std::span<const int> passed) {
    const auto bytes = std::as_bytes(std::span(&reply, 1));
    auto sent = send_message(to.socket.get(), bytes, passed, {});
    if (sent && !passed.empty())
        to.parked.clear(); // they are on their way
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

bool broker::is_harmless(const client& gone) {
    pollfd ended{gone.process.get(), POLLIN, 0};
    if (gone.process && ::poll(&ended, 1, 0) > 0) // it has closed everything when its pidfd says so
        return true;
    // Without one (another pid namespace, an old kernel) time tells.
    if (!gone.process && clock::now() - gone.since > time_to_end)
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
