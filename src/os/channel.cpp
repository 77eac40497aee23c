// SPDX-License-Identifier: BSD-3-Clause
// Messages keep their boundaries (SOCK_SEQPACKET) and may carry descriptors. Abstract names need no file that
// could be left over, and belong to a network namespace (gotcha I5).
#include "src/os/channel.hpp"

#include "src/os/system_error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

namespace gaudi {
namespace {

struct abstract_name {
    sockaddr_un address{};
    socklen_t length = 0;

    explicit abstract_name(std::string_view name) {
        address.sun_family = AF_UNIX;
        const auto size = std::min(name.size(), sizeof(address.sun_path) - 1);
        std::memcpy(address.sun_path + 1, name.data(), size); // the leading zero makes it abstract
        length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
    }
    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

result<unique_fd> new_socket(int flags) {
    unique_fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
    if (!fd)
        return tl::unexpected(system_error("socket"));
    return fd;
}

// Whether the socket became ready before the deadline.
bool await(int socket, short events, channel_deadline deadline) {
    for (;;) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
                .count();
        pollfd waiting{socket, events, 0};
        const int ready = ::poll(&waiting, 1, static_cast<int>(std::clamp<long>(left + 1, 0, 1 << 30)));
        if (ready > 0)
            return true;
        if (ready == 0 || errno != EINTR)
            return false;
    }
}

bool is_gone(int reason) {
    return reason == EPIPE || reason == ECONNRESET || reason == ENOTCONN || reason == ECONNREFUSED;
}

} // namespace

result<unique_fd> listen_on(std::string_view name) {
    auto fd = new_socket(SOCK_NONBLOCK);
    if (!fd)
        return fd;
    const abstract_name where(name);
    if (::bind(fd->get(), where.get(), where.length) != 0 || ::listen(fd->get(), 128) != 0)
        return tl::unexpected(system_error(fmt::format("listening on @{}", name)));
    return fd;
}

result<unique_fd> connect_to(std::string_view name) {
    auto fd = new_socket(0);
    if (!fd)
        return fd;
    const abstract_name where(name);
    // connect() to an abstract name returns at once or waits for room in the backlog; the timeout bounds
    // that.
    const timeval connect_timeout{2, 0};
    ::setsockopt(fd->get(), SOL_SOCKET, SO_SNDTIMEO, &connect_timeout, sizeof(connect_timeout));
    int rc;
    do
        rc = ::connect(fd->get(), where.get(), where.length);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return fd;
    const int reason = errno;
    return tl::unexpected(error(reason == EAGAIN ? errc::peer_silent : errc::peer_gone,
                                fmt::format("no process answers on @{} in this network namespace", name),
                                reason));
}

result<void> send_message(int socket, std::span<const std::byte> message, std::span<const int> passed,
                          channel_deadline deadline) {
    iovec part{const_cast<std::byte*>(message.data()), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * most_passed)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!passed.empty()) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(passed.size_bytes());
        auto* const entry = CMSG_FIRSTHDR(&header);
        entry->cmsg_level = SOL_SOCKET;
        entry->cmsg_type = SCM_RIGHTS;
        entry->cmsg_len = CMSG_LEN(passed.size_bytes());
        std::memcpy(CMSG_DATA(entry), passed.data(), passed.size_bytes());
    }
    for (;;) {
        // A peer that has ended must not end this process with SIGPIPE, nor a peer that does not read block
        // it.
        constexpr int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
        if ((passed.empty() ? ::send(socket, message.data(), message.size(), flags)
                            : ::sendmsg(socket, &header, flags)) >= 0)
            return {};
        const int reason = errno;
        if (reason == EINTR ||
            ((reason == EAGAIN || reason == EWOULDBLOCK) && await(socket, POLLOUT, deadline)))
            continue;
        return tl::unexpected(error(
            reason == EAGAIN  ? errc::peer_silent
            : is_gone(reason) ? errc::peer_gone
                              : errc::system_call_failed,
            fmt::format("sendmsg of {} bytes and {} descriptors", message.size(), passed.size()), reason));
    }
}

result<received_message> receive_message(int socket, std::span<std::byte> into, channel_deadline deadline) {
    iovec part{into.data(), into.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * most_passed)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    ssize_t got;
    bool reset = false;
    for (;;) {
        got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got >= 0)
            break;
        const int reason = errno;
        if (reason == ECONNRESET && !std::exchange(reset, true))
            continue; // reported once, before the messages that the peer had sent: read again
        if (reason == EINTR ||
            ((reason == EAGAIN || reason == EWOULDBLOCK) && await(socket, POLLIN, deadline)))
            continue;
        return tl::unexpected(error(reason == EAGAIN  ? errc::peer_silent
                                    : is_gone(reason) ? errc::peer_gone
                                                      : errc::system_call_failed,
                                    "recvmsg", reason));
    }
    received_message taken;
    taken.bytes = static_cast<std::size_t>(got);
    for (auto* entry = CMSG_FIRSTHDR(&header); entry != nullptr; entry = CMSG_NXTHDR(&header, entry)) {
        if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS)
            continue;
        const auto count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
            unique_fd owned(descriptor);
            if (taken.descriptors < most_passed)
                taken.passed[taken.descriptors++] = std::move(owned);
        }
    }
    if (got == 0 && taken.descriptors == 0)
        return tl::unexpected(error(errc::peer_gone, "the other side closed its socket"));
    taken.descriptors_lost = (header.msg_flags & MSG_CTRUNC) != 0;
    if ((header.msg_flags & MSG_TRUNC) != 0)
        return tl::unexpected(
            error(errc::protocol_violated, fmt::format("a message of more than {} bytes", into.size())));
    return taken;
}

} // namespace gaudi
