// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/wire.hpp"

#include "lab/hca/verbs.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lab::hca {
namespace {

constexpr std::uint32_t version = 1;
constexpr std::uint64_t hello_limit_ns =
    5ULL * 1000000000;                        // a connection without a hello is closed after this
constexpr std::size_t max_unknown_peers = 64; // maximum number of such connections
constexpr int peer_timeout_ms = 5000;         // a peer that does not acknowledge for this long is gone

sockaddr_in address_of(std::uint32_t ip, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ip;
    address.sin_port = htons(port);
    return address;
}

void set(int fd, int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof(value));
}

void tune(int fd) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, peer_timeout_ms);
    set(fd, SOL_SOCKET, SO_SNDBUF, 4 << 20);
    set(fd, SOL_SOCKET, SO_RCVBUF, 4 << 20);
}

void watch_fd(int epoll, int fd, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

} // namespace

std::uint32_t ipv4_of(const std::uint8_t* gid) {
    std::uint32_t ip = 0;
    std::memcpy(&ip, gid + 12, 4);
    return ip;
}

tl::expected<std::unique_ptr<wire>, int> wire::listen(const std::set<std::uint32_t>& addresses,
                                                      std::uint32_t slot) {
    std::unique_ptr<wire> network(new wire);
    network->port_ = static_cast<std::uint16_t>(first_port + slot);
    network->epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    network->wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (network->epoll_ < 0 || network->wake_ < 0)
        return tl::unexpected(errno);
    watch_fd(network->epoll_, network->wake_, EPOLLIN);
    for (const auto ip : addresses) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return tl::unexpected(errno);
        network->listeners_.push_back(fd);
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        const auto where = address_of(ip, network->port_);
        if (::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0 ||
            ::listen(fd, 128) != 0)
            return tl::unexpected(errno);
        watch_fd(network->epoll_, fd, EPOLLIN);
    }
    return network;
}

void wire::start(process& home) {
    home_ = &home;
    thread_ = signal_free_thread([this] { run(); });
}

void wire::abandon() {
    // If the lock is held, its holder is a thread that does not exist in this process: the links stay open.
    if (mutex_.try_lock()) {
        for (const auto& [fd, connection] : by_fd_)
            ::close(fd);
        mutex_.unlock();
    }
    for (const int fd : listeners_)
        ::close(fd);
    ::close(epoll_);
    ::close(wake_);
    if (thread_.joinable())
        (void)new (std::nothrow) std::thread(std::move(thread_));
}

void wire::stop() {
    ending_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof(one));
    if (!thread_.joinable())
        return;
    thread_.join();
    for (const auto& [fd, connection] : by_fd_)
        connection->close_in_order();
}

wire::~wire() {
    stop();
    by_peer_.clear();
    by_fd_.clear();
    for (const int fd : listeners_)
        ::close(fd);
    for (const int fd : {epoll_, wake_})
        if (fd >= 0)
            ::close(fd);
}

void wire::add(const std::shared_ptr<link>& added, wire_address peer, bool writing) {
    added->peer_ = peer;
    added->since_ns_ = now_ns();
    by_fd_[added->fd_] = added;
    watch_fd(epoll_, added->fd_, writing ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

std::shared_ptr<link> wire::find_or_connect(wire_address peer, std::uint32_t from_ip) {
    const std::lock_guard guard(mutex_);
    if (const auto existing = by_peer_.find(peer); existing != by_peer_.end())
        return existing->second;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return nullptr;
    tune(fd);
    auto outgoing = std::make_shared<link>(*this, fd, false);
    const auto source = address_of(from_ip, 0), target = address_of(peer.ip, peer.port);
    set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&source), sizeof(source)) != 0 ||
        (::connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0 &&
         errno != EINPROGRESS))
        return nullptr;
    frame hello{};
    hello.magic = frame_magic;
    hello.kind = static_cast<std::uint8_t>(frame_kind::hello);
    hello.sequence = version;
    hello.key = port_;
    hello.immediate = from_ip;
    outgoing->queue_.push_back({hello, {}, 0});
    outgoing->said_hello_ = true; // hello is queued first; the other side only answers requests
    outgoing->peer_slot_ = peer.port - first_port;
    by_peer_[peer] = outgoing;
    add(outgoing, peer, true);
    return outgoing;
}

void wire::accept_from(int listener) {
    for (;;) {
        sockaddr_in from{};
        socklen_t size = sizeof(from);
        const int fd =
            ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                ::usleep(10000); // the listener stays readable: do not spin
            return;
        }
        tune(fd);
        const std::lock_guard guard(mutex_);
        std::size_t unknown = 0;
        for (const auto& [other, connection] : by_fd_)
            unknown += connection->said_hello_ ? 0U : 1U;
        if (unknown >= max_unknown_peers) {
            ::close(fd);
            continue;
        }
        add(std::make_shared<link>(*this, fd, true), {from.sin_addr.s_addr, 0}, false);
    }
}

bool wire::read_head(link& from) {
    auto& head = from.head_;
    if (head.magic != frame_magic)
        return false; // garbage, or another byte order
    if (!from.said_hello_) {
        if (head.kind != static_cast<std::uint8_t>(frame_kind::hello) || head.length != 0)
            return false;
        if (head.sequence != version) {
            std::fprintf(stderr,
                         "gaudi-lab: a virtual HCA of protocol version %u was refused; this one has %u\n",
                         head.sequence, version);
            return false;
        }
        if (head.immediate != from.peer_.ip || head.key <= first_port || head.key >= first_port + max_slots)
            return false;
        from.said_hello_ = true;
        from.peer_.port = static_cast<std::uint16_t>(head.key);
        from.peer_slot_ = head.key - first_port;
        const std::lock_guard guard(mutex_);
        const auto self = by_fd_.find(from.fd_);
        if (self != by_fd_.end())
            by_peer_.emplace(from.peer_, self->second); // requests to that peer use this connection too
        return true;
    }
    from.got_ = 0;
    from.reply_ = from.local_status_ = IBV_WC_SUCCESS;
    from.event_ = 0;
    from.before_ = 0;
    from.spoiled_ = false;
    from.replies_ = from.has_taken_ = false;
    if (head.length > (1ULL << 31))
        return false;
    switch (static_cast<frame_kind>(head.kind)) {
    case frame_kind::request:
        begin_request(from);
        return true;
    case frame_kind::answer:
        from.sink_ = link::sink::read_back;
        return true;
    case frame_kind::datagram:
        return begin_datagram(from);
    case frame_kind::hello:
        return false;
    }
    return false;
}

void wire::finish_frame(link& from) {
    switch (static_cast<frame_kind>(from.head_.kind)) {
    case frame_kind::request:
        finish_request(from);
        break;
    case frame_kind::answer:
        finish_answer(from);
        break;
    case frame_kind::datagram:
        finish_datagram(from);
        break;
    case frame_kind::hello:
        break;
    }
}

bool wire::receive(link& from) {
    // A bounded number of steps, so that one busy connection does not starve the others.
    for (int steps = 0; steps < 256; ++steps) {
        if (from.head_got_ < sizeof(frame)) {
            const auto got = ::recv(from.fd_, reinterpret_cast<std::byte*>(&from.head_) + from.head_got_,
                                    sizeof(frame) - from.head_got_, MSG_DONTWAIT);
            if (got == 0)
                return false;
            if (got < 0) {
                if (errno == EINTR)
                    continue;
                return errno == EAGAIN;
            }
            from.head_got_ += static_cast<std::size_t>(got);
            if (from.head_got_ < sizeof(frame))
                continue;
            if (!read_head(from))
                return false;
        } else {
            const int got = receive_some(from);
            if (got == 0)
                return false;
            if (got < 0) {
                if (got == -EINTR)
                    continue;
                return got == -EAGAIN;
            }
            from.got_ += static_cast<std::uint64_t>(got);
        }
        if (from.got_ == from.head_.length) {
            finish_frame(from);
            from.head_got_ = 0;
            from.got_ = 0;
        }
    }
    return true;
}

void wire::serve(const std::shared_ptr<link>& from, std::uint32_t events) {
    if (!from->established_ && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
        int error = 0;
        socklen_t size = sizeof(error);
        ::getsockopt(from->fd_, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) {
            lose(from);
            return;
        }
        from->established_ = true;
    }
    if ((events & EPOLLOUT) != 0)
        from->drain();
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && !receive(*from))
        lose(from);
}

// Closes the connections that never sent a hello.
void wire::expire() {
    std::vector<std::shared_ptr<link>> old;
    {
        const std::lock_guard guard(mutex_);
        const auto now = now_ns();
        for (const auto& [fd, connection] : by_fd_)
            if ((!connection->said_hello_ && now - connection->since_ns_ > hello_limit_ns) ||
                (!connection->established_ &&
                 now - connection->since_ns_ > std::uint64_t{peer_timeout_ms} * 1000000))
                old.push_back(connection);
    }
    for (const auto& connection : old)
        lose(connection);
}

void wire::run() {
    ::pthread_setname_np(::pthread_self(), "vhca-wire");
    auto last_check = now_ns();
    while (!ending_) {
        epoll_event events[64];
        const int count = ::epoll_wait(epoll_, events, 64, 1000);
        for (int i = 0; i < count; ++i) {
            const int fd = events[i].data.fd;
            if (fd == wake_)
                continue;
            if (std::find(listeners_.begin(), listeners_.end(), fd) != listeners_.end()) {
                accept_from(fd);
                continue;
            }
            std::shared_ptr<link> from;
            {
                const std::lock_guard guard(mutex_);
                if (const auto entry = by_fd_.find(fd); entry != by_fd_.end())
                    from = entry->second;
            }
            if (!from)
                continue;
            try {
                serve(from, events[i].events);
            } catch (const std::exception&) { // out of memory
                lose(from);
            }
        }
        if (const auto now = now_ns(); now - last_check > 1000000000) {
            last_check = now;
            expire();
        }
    }
}

} // namespace lab::hca
