// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/json_stream.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tools::doctor {
namespace {

using clock = std::chrono::steady_clock;
constexpr std::size_t longest = 65536;

// Whether the socket is ready before the deadline.
bool wait_for(int socket, short events, clock::time_point deadline) {
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now());
        pollfd waiting{socket, events, 0};
        const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<long>(left.count(), 0)));
        if (ready > 0)
            return true;
        if (ready == 0 || errno != EINTR)
            return false;
    }
}

int connect_within(const addrinfo& to, std::chrono::milliseconds limit) {
    const int made = ::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -1;
    int failure = 0;
    socklen_t size = sizeof(failure);
    if (::connect(made, to.ai_addr, to.ai_addrlen) == 0)
        return made;
    if (errno == EINPROGRESS) {
        failure = ETIMEDOUT;
        if (wait_for(made, POLLOUT, clock::now() + limit))
            ::getsockopt(made, SOL_SOCKET, SO_ERROR, &failure, &size);
    } else
        failure = errno;
    if (failure == 0)
        return made;
    ::close(made);
    errno = failure;
    return -1;
}

// On every address of this host: of both kinds, or where there is no IPv6, of the old one.
int listen_anywhere(std::uint16_t port) {
    for (const int family : {AF_INET6, AF_INET}) {
        const int made = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int yes = 1, no = 0;
        ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
        ::setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
        sockaddr_in6 six{};
        six.sin6_family = AF_INET6;
        six.sin6_port = htons(port);
        sockaddr_in four{};
        four.sin_family = AF_INET;
        four.sin_port = htons(port);
        const bool newer = family == AF_INET6;
        const auto* address = newer ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
        if (made >= 0 && ::bind(made, address, newer ? sizeof(six) : sizeof(four)) == 0 &&
            ::listen(made, 1) == 0)
            return made;
        const int reason = errno;
        ::close(made);
        errno = reason;
        if (reason == EADDRINUSE)
            break;
    }
    return -1;
}

} // namespace

void json_stream::descriptor::close() noexcept {
    ::close(fd);
}

std::optional<json_stream> json_stream::connect(const std::string& host, const std::string& port,
                                                std::string& why) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); rc != 0) {
        why = fmt::format("{} is not known: {}", host, ::gai_strerror(rc));
        return std::nullopt;
    }
    int fd = -1;
    for (const auto* each = found; each != nullptr && fd < 0; each = each->ai_next)
        if (fd = connect_within(*each, std::chrono::seconds(5)); fd < 0)
            why = fmt::format("{} port {}: {}", host, port, std::strerror(errno));
    ::freeaddrinfo(found);
    return fd < 0 ? std::nullopt : std::optional(json_stream(fd, host));
}

std::optional<json_stream> json_stream::accept(std::uint16_t port, std::string& why) {
    const int listening = listen_anywhere(port);
    if (listening < 0) {
        why = fmt::format("cannot listen on port {}: {}", port, std::strerror(errno));
        return std::nullopt;
    }
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    const int accepted =
        ::accept4(listening, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    ::close(listening);
    if (accepted < 0) {
        why = fmt::format("accept: {}", std::strerror(errno));
        return std::nullopt;
    }
    char name[NI_MAXHOST] = "?";
    ::getnameinfo(reinterpret_cast<sockaddr*>(&from), size, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
    std::string_view peer(name);
    if (peer.starts_with("::ffff:")) // how a socket for both kinds of addresses shows one of the old kind
        peer.remove_prefix(7);
    return json_stream(accepted, std::string(peer));
}

bool json_stream::send(const nlohmann::json& message) {
    const auto text = message.dump() + "\n";
    const auto deadline = clock::now() + std::chrono::seconds(10);
    for (std::size_t sent = 0; sent < text.size();) {
        const auto count = ::send(socket_->fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (count > 0)
            sent += static_cast<std::size_t>(count);
        else if (errno != EAGAIN || !wait_for(socket_->fd, POLLOUT, deadline))
            return false;
    }
    return true;
}

std::optional<nlohmann::json> json_stream::receive(std::chrono::milliseconds limit) {
    const auto deadline = clock::now() + limit;
    for (;;) {
        if (const auto end = received_.find('\n'); end != std::string::npos) {
            auto message = nlohmann::json::parse(received_.substr(0, end), nullptr, false);
            received_.erase(0, end + 1);
            return message.is_object() ? std::optional(std::move(message)) : std::nullopt;
        }
        char bytes[4096];
        if (received_.size() > longest || !wait_for(socket_->fd, POLLIN, deadline))
            return std::nullopt;
        const auto count = ::recv(socket_->fd, bytes, sizeof(bytes), 0);
        if (count <= 0 && errno != EAGAIN)
            return std::nullopt;
        if (count == 0)
            return std::nullopt;
        if (count > 0)
            received_.append(bytes, static_cast<std::size_t>(count));
    }
}

} // namespace tools::doctor
