// SPDX-License-Identifier: BSD-3-Clause
// A client is removed in two steps. Its connection ends first; its entry stays until nothing that it started
// can access memory, because a process whose connection ended may live on.
#include "src/ipc/clients.hpp"

#include "src/hl/hl_device.hpp"
#include "src/os/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace gaudi {
namespace {

constexpr auto time_to_greet = std::chrono::seconds(2);
// Where there is no pidfd: the time after which a disconnected process counts as ended.
constexpr auto time_to_end = std::chrono::seconds(5);

void refuse(int socket, const error& why) {
    answer_head refusal;
    refusal.set_failure(why);
    (void)send_message(socket, message_of(refusal, nothing_more{}), {}, {});
}

bool ungreeted(const client& each) {
    return !each.greeted && !each.disconnected;
}

} // namespace

// The pid may be reused later, the pidfd not: it is opened while the peer is connected.
client::client(unique_fd connected, const ucred& peer)
    : socket(std::move(connected)),
      process(unique_fd(peer.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)) : -1)),
      credentials(peer), since(clock::now()) {}

bool client::send_or_park(answer_head head, message_bytes message, std::span<const int> descriptors) {
    const auto sent = send_message(socket.get(), message, descriptors, {});
    if (sent && !descriptors.empty())
        parked.clear(); // the kernel holds its own references now
    // The kernel limits descriptors in flight per user; an answer without any needs no second try.
    if (sent || descriptors.empty())
        return sent.has_value();
    head.fetch = static_cast<std::uint32_t>(descriptors.size()); // too many descriptors are in flight
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
        // Duplicates, which stay open until the importer's next request says that it has fetched them.
        parked.emplace_back(::fcntl(descriptors[i], F_DUPFD_CLOEXEC, 0));
        head.numbers[i] = parked.back().get();
    }
    std::memcpy(message.data(), &head, sizeof(head));
    return send_message(socket.get(), message, {}, {}).has_value();
}

bool client::is_harmless() const {
    pollfd ended{process.get(), POLLIN, 0};
    if (process && ::poll(&ended, 1, 0) > 0) // a process that has ended has closed everything
        return true;
    // Without a pidfd (another pid namespace, an old kernel) time decides.
    if (!process && clock::now() - since > time_to_end)
        return true;
    // The process lives and only its connection has ended: it may still use what it mapped and started.
    return leases.quiet() && std::all_of(memberships.begin(), memberships.end(), [](const membership& each) {
               return each.context->sharing().shared()->holds_nothing(each.member);
           });
}

bool client::release_resources() {
    // The driver refuses calls on a lost context (gotcha 35): what a member mapped ends when it is closed.
    std::erase_if(memberships, [](const membership& each) {
        auto& device = *each.context;
        return device.lost() || device.sharing().shared()->reap(device.api(), device.fd(), each.member,
                                                                device.traits().max_in_flight);
    });
    if (!memberships.empty())
        return false;
    slab_pins.clear();
    return true;
}

bool client::drop_lost_devices() {
    if (copies.empty())
        std::erase_if(slab_pins, [](const auto& each) { return each.second.engine.lost(); });
    return std::erase_if(memberships, [](const membership& each) { return each.context->lost(); }) == 0;
}

client_list::client_list(const poller& events, const ipc_settings& settings)
    : events_(events), settings_(settings) {
    keep_spare();
}

bool client_list::serves(std::uint32_t user) const {
    return user == ::geteuid() ||
           std::find(settings_.allow.begin(), settings_.allow.end(), user) != settings_.allow.end();
}

void client_list::accept_from(int listener) {
    for (int accepted = 0; accepted < 16; ++accepted) { // then the broker serves other descriptors
        unique_fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket) {
            if (errno == EMFILE || errno == ENFILE)
                refuse_without_descriptors(listener);
            return;
        }
        ucred peer{};
        socklen_t length = sizeof(peer);
        // This process opens its own handles without a broker.
        if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
            peer.pid == ::getpid())
            continue;
        // Refused with an answer: closing the socket would look like an owner that has ended.
        if (!serves(peer.uid)) {
            refuse(socket.get(),
                   {errc::peer_refused, fmt::format("user {}, the owner is {}", peer.uid, ::geteuid())});
            continue;
        }
        if (!spare_)
            keep_spare();
        // Disconnected clients that still have leases count as well.
        const auto of_the_same = std::count_if(clients_.begin(), clients_.end(), [&](const client& each) {
            return each.credentials.pid == peer.pid;
        });
        if (clients_.size() >= most_clients || (peer.pid != 0 && of_the_same >= most_of_one_process)) {
            refuse(socket.get(),
                   {errc::leases_exhausted, fmt::format("{} connections are served, {} of one process",
                                                        most_clients, most_of_one_process)});
            continue;
        }
        make_room_for_ungreeted();
        if (!events_.add(socket.get(), EPOLLIN | EPOLLRDHUP))
            continue;
        const auto& added = clients_.emplace_back(std::move(socket), peer);
        if (added.process)
            (void)events_.add(added.process.get(), EPOLLIN);
    }
}

// Clients that connect and send no request must not block others: the oldest such client is disconnected.
void client_list::make_room_for_ungreeted() {
    if (std::count_if(clients_.begin(), clients_.end(), ungreeted) >= most_ungreeted)
        disconnect(*std::find_if(clients_.begin(), clients_.end(), ungreeted));
}

// Closes the spare descriptor so that the client can be accepted and refused with the reason, instead of
// waiting.
void client_list::refuse_without_descriptors(int listener) {
    spare_.reset();
    if (const unique_fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)); socket)
        refuse(socket.get(), {errc::descriptors_exhausted, "the owner can open no more files"});
    else // the listening socket stays ready: do not spin on it
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    keep_spare();
}

void client_list::keep_spare() {
    spare_ = fork_private_fd(unique_fd(::eventfd(0, EFD_CLOEXEC)));
}

client* client_list::find(int descriptor) {
    const auto found = std::find_if(clients_.begin(), clients_.end(), [&](const client& each) {
        // The descriptors of a disconnected client stay open until it is removed, so that no number is used
        // twice.
        return !each.disconnected && (each.socket.get() == descriptor || each.process.get() == descriptor);
    });
    return found != clients_.end() ? &*found : nullptr;
}

void client_list::disconnect(client& ended) {
    if (std::exchange(ended.disconnected, true))
        return;
    ended.since = client::clock::now();
    for (auto* each : {&ended.socket, &ended.process})
        if (*each)
            events_.remove(each->get());
}

void client_list::disconnect_ungreeted() {
    for (auto& each : clients_)
        if (ungreeted(each) && client::clock::now() - each.since > time_to_greet)
            disconnect(each);
}

void client_list::reap(const std::function<bool(client&)>& finished) {
    std::erase_if(clients_, [&](client& each) { return each.disconnected && finished(each); });
}

} // namespace gaudi
