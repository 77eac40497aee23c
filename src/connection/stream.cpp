// SPDX-License-Identifier: BSD-3-Clause
// TCP with deadlines: every socket is non-blocking, and waiting is always a poll() with what is left of the
// time. Resolving a host's name is the exception, because getaddrinfo() takes no limit.
#include "src/connection/stream.hpp"

#include "src/error/try.hpp"
#include "src/os/system_error.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>

namespace gaudi {
namespace {

// TCP keep-alive: detects a peer whose machine has failed within about ten seconds.
constexpr int idle_seconds = 5, probe_seconds = 2, probes = 3, unacknowledged_ms = 10000;

struct endpoint {
    std::string host;
    std::string port;
};

std::optional<endpoint> split(const std::string& text, std::uint16_t default_port) {
    endpoint parts{text, std::to_string(default_port)};
    if (text.starts_with('[')) {
        const auto end = text.find(']');
        if (end == text.npos)
            return {};
        parts.host = text.substr(1, end - 1);
        if (end + 1 < text.size()) {
            if (text[end + 1] != ':')
                return {};
            parts.port = text.substr(end + 2);
        }
    } else if (std::count(text.begin(), text.end(), ':') == 1) {
        parts.host = text.substr(0, text.find(':'));
        parts.port = text.substr(text.find(':') + 1);
    }
    unsigned number = 0;
    const auto* end = parts.port.data() + parts.port.size();
    const auto [rest, wrong] = std::from_chars(parts.port.data(), end, number);
    if (parts.host.empty() || wrong != std::errc{} || rest != end || number == 0 || number > 65535)
        return {};
    return parts;
}

using address_list = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

result<address_list> resolve(const char* host, const std::string& port, int flags) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* addresses = nullptr;
    if (const int rc = ::getaddrinfo(host, port.c_str(), &hints, &addresses); rc != 0)
        return tl::unexpected(
            error(errc::host_unknown,
                  fmt::format("{}: {}", host != nullptr ? host : "any address", ::gai_strerror(rc))));
    return address_list(addresses, &::freeaddrinfo);
}

std::string text_of(const sockaddr_storage& address, socklen_t length) {
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV);
    std::string_view shown = host;
    if (constexpr std::string_view mapped = "::ffff:";
        shown.starts_with(mapped) && shown.find('.') != shown.npos)
        shown.remove_prefix(mapped.size());
    return fmt::format(fmt::runtime(shown.find(':') != shown.npos ? "[{}]:{}" : "{}:{}"), shown, port);
}

bool wait_for(int fd, short events, time_point deadline) {
    for (;;) {
        pollfd waiting{fd, events, 0};
        const int left = milliseconds_until(deadline);
        const int rc = ::poll(&waiting, 1, left);
        if (rc > 0)
            return true;
        if ((rc == 0 && left == 0) || (rc < 0 && errno != EINTR))
            return false;
    }
}

void set(int fd, int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

} // namespace

int milliseconds_until(time_point deadline) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    return static_cast<int>(std::clamp<decltype(left)>(left, 0, 1 << 30));
}

stream::stream(unique_fd connected) : fd_(std::move(connected)) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0)
        peer_ = text_of(address, length);
    // Frames are short and the peer waits for each: none is held back to be sent with the next.
    set(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, idle_seconds);
    set(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
    set(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, probes);
    // Keep-alive probes only an idle stream: this one ends a stream with unacknowledged data.
    set(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, unacknowledged_ms);
}

result<stream> stream::connect(const std::string& peer, std::uint16_t default_port, time_point deadline) {
    const auto parts = split(peer, default_port);
    if (!parts)
        return tl::unexpected(error(errc::host_unknown, fmt::format("'{}'", peer)));
    GAUDI_TRY(const auto addresses, resolve(parts->host.c_str(), parts->port, AI_ADDRCONFIG));
    int reason = ETIMEDOUT;
    for (const auto* candidate = addresses.get(); candidate != nullptr; candidate = candidate->ai_next) {
        unique_fd fd(::socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!fd)
            return tl::unexpected(system_error("socket"));
        if (::connect(fd.get(), candidate->ai_addr, candidate->ai_addrlen) == 0)
            return stream(std::move(fd));
        reason = errno;
        if (reason != EINPROGRESS)
            continue;
        reason = ETIMEDOUT;
        if (!wait_for(fd.get(), POLLOUT, deadline))
            continue;
        socklen_t length = sizeof(reason);
        // Becoming writable says that connecting has ended, not that it succeeded.
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &reason, &length);
        if (reason == 0)
            return stream(std::move(fd));
    }
    return tl::unexpected(error(reason == ETIMEDOUT ? errc::handshake_timeout : errc::connection_refused,
                                fmt::format("connecting to {} port {}", parts->host, parts->port), reason));
}

result<void> stream::send_all(std::span<const std::byte> bytes, time_point deadline) const {
    while (!bytes.empty()) {
        // A peer that has closed the stream must not end this process with SIGPIPE.
        const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent > 0) {
            bytes = bytes.subspan(static_cast<std::size_t>(sent));
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return tl::unexpected(error(errc::peer_gone, fmt::format("sending to {}", peer_), errno));
        if (!wait_for(fd_.get(), POLLOUT, deadline))
            return tl::unexpected(error(errc::handshake_timeout, fmt::format("{} does not read", peer_)));
    }
    return {};
}

result<void> stream::receive_all(std::span<std::byte> bytes, time_point deadline) const {
    const auto wanted = bytes.size();
    while (!bytes.empty()) {
        GAUDI_TRY(const auto got, receive_some(bytes));
        bytes = bytes.subspan(got);
        if (got == 0 && !wait_for(fd_.get(), POLLIN, deadline))
            return tl::unexpected(error(errc::handshake_timeout, fmt::format("{} sent {} of {} bytes", peer_,
                                                                             wanted - bytes.size(), wanted)));
    }
    return {};
}

result<std::size_t> stream::receive_some(std::span<std::byte> bytes) const {
    for (;;) {
        const auto got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
        if (got > 0)
            return static_cast<std::size_t>(got);
        if (got == 0)
            return tl::unexpected(error(errc::peer_gone, fmt::format("{} closed the connection", peer_)));
        if (errno == EAGAIN)
            return 0;
        if (errno != EINTR)
            return tl::unexpected(error(errc::peer_gone, fmt::format("receiving from {}", peer_), errno));
    }
}

result<listening> listen_on(const std::string& address, std::uint16_t port) {
    GAUDI_TRY(const auto addresses,
              resolve(address.empty() ? nullptr : address.c_str(), std::to_string(port), AI_PASSIVE));
    const auto* chosen = addresses.get();
    // A socket on the IPv6 wildcard address accepts connections of both families.
    for (const auto* candidate = chosen; address.empty() && candidate != nullptr;
         candidate = candidate->ai_next)
        if (candidate->ai_family == AF_INET6)
            chosen = candidate;
    unique_fd fd(::socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd && errno == EAFNOSUPPORT && chosen != addresses.get()) {
        chosen = addresses.get();
        fd = unique_fd(::socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    }
    if (!fd)
        return tl::unexpected(system_error("socket"));
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (chosen->ai_family == AF_INET6)
        set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, address.empty() ? 0 : 1);
    if (::bind(fd.get(), chosen->ai_addr, chosen->ai_addrlen) != 0 || ::listen(fd.get(), 128) != 0)
        return tl::unexpected(
            error(errc::address_in_use,
                  fmt::format("port {} of {}", port, address.empty() ? "every address" : address), errno));
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    // The port is at the same offset in sockaddr_in and sockaddr_in6.
    return listening{std::move(fd), ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port)};
}

result<stream> accept_from(int listening, time_point deadline) {
    for (;;) {
        // The listening socket is non-blocking: another thread may accept what poll() reported.
        unique_fd fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd)
            return stream(std::move(fd));
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN)
            return tl::unexpected(system_error("accept"));
        if (!wait_for(listening, POLLIN, deadline))
            return tl::unexpected(error(errc::wait_timeout, "no connection arrived"));
    }
}

} // namespace gaudi
