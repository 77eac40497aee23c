// SPDX-License-Identifier: BSD-3-Clause
// Sending over a connection.
#include "lab/hca/wire.hpp"

#include "lab/hca/engine.hpp"
#include "lab/hca/verbs.hpp"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace lab::hca {
namespace {

// Whether a request is outstanding. A request that will be sent again from its start is still sent to its
// end: half a message would cost the connection.
bool is_outstanding(const shared_qp& qp, std::uint32_t place) {
    const auto state = qp.state.load();
    const auto done = qp.sq.done.load();
    return (state == IBV_QPS_RTS || state == IBV_QPS_SQD) && place - done < qp.sq.posted.load() - done;
}

} // namespace

std::size_t entries_of(const side& memory, std::uint64_t skip, std::uint64_t bytes,
                       std::vector<std::byte>& nowhere, iovec* into, std::size_t room) {
    std::size_t count = 0;
    for (const auto& piece : memory.pieces) {
        if (skip >= piece.length) {
            skip -= piece.length;
            continue;
        }
        const auto part = std::min(piece.length - skip, bytes);
        if (count == room || part == 0)
            break;
        if (!piece.here()) {
            into[count++] = {nowhere.data(), std::min<std::uint64_t>(part, nowhere.size())};
            break;
        }
        into[count++] = {piece.pointer() + skip, part};
        bytes -= part;
        skip = 0;
    }
    return count;
}

link::~link() {
    ::close(fd_);
}

void link::arm(bool for_writing) {
    epoll_event event{};
    event.events = EPOLLIN | (for_writing ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
    event.data.fd = fd_;
    ::epoll_ctl(home_.epoll_, EPOLL_CTL_MOD, fd_, &event);
}

link::progress link::transmit(outgoing& what, bool holds_queue) {
    const auto total = sizeof(frame) + what.head.length;
    while (what.sent < total) {
        iovec entries[most_entries];
        std::size_t count = 0;
        auto skip = what.sent;
        if (skip < sizeof(frame)) {
            entries[count++] = {reinterpret_cast<std::byte*>(&what.head) + skip, sizeof(frame) - skip};
            skip = 0;
        } else
            skip -= sizeof(frame);
        // The payload is looked up each time, under the lock that keeps its region registered.
        side memory;
        shared_lock* held = nullptr;
        auto& own = home_.home().own();
        auto& body = what.body;
        auto& qp = own->qps[body.qp];
        const endpoint mine{home_.home().self().get(), &qp};
        bool valid = true;
        if (what.head.length == 0)
            valid = true;
        else if (body.from == payload::source::bytes) {
            memory.add(body.bytes.data(), body.bytes.size());
        } else if (body.from == payload::source::request) {
            if (!holds_queue) {
                qp.sq.lock.lock();
                held = &qp.sq.lock;
            }
            valid = qp.in_use.load() != 0 && qp.number == what.head.source_qp && qp.life == body.life &&
                    is_outstanding(qp, body.place) &&
                    gather_local(home_.home(), mine, mine.request<send_request>(qp.sq, body.place), memory) ==
                        IBV_WC_SUCCESS;
        } else {
            qp.inbound.lock();
            held = &qp.inbound;
            valid = qp.in_use.load() != 0 &&
                    find_memory(home_.home(), own, body.key, body.address, what.head.length, qp.pd,
                                IBV_ACCESS_REMOTE_READ, memory) == access_result::fine;
        }
        if (!valid || memory.length < what.head.length) {
            // The region of a read was deregistered before the answer was sent: refuse as for a region that
            // never existed.
            if (body.from == payload::source::region && qp.in_use.load() != 0 && qp.life == body.life)
                break_down(mine, event_access_error);
            if (held != nullptr)
                held->unlock();
            if (what.sent != 0)
                return progress::broken; // half a message is sent: never send wrong bytes with a good status
            if (body.from == payload::source::request)
                return progress::done; // the queue pair was reset since: do not send it
            what.head.status = IBV_WC_REM_ACCESS_ERR;
            what.head.length = 0;
            return transmit(what, holds_queue);
        }
        static std::vector<std::byte> zeros(65536); // read only
        count +=
            entries_of(memory, skip, what.head.length - skip, zeros, entries + count, most_entries - count);
        msghdr message{};
        message.msg_iov = entries;
        message.msg_iovlen = count;
        const auto sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        const int error = errno;
        if (held != nullptr)
            held->unlock();
        if (sent < 0 && error == EINTR)
            continue;
        if (sent < 0)
            return error == EAGAIN || error == ENOTCONN ? progress::later : progress::broken;
        what.sent += static_cast<std::uint64_t>(sent);
    }
    return progress::done;
}

void link::send(const frame& head, payload body) {
    outgoing what{head, std::move(body), 0};
    what.head.magic = frame_magic;
    {
        const std::lock_guard guard(mutex_);
        constexpr std::size_t most_datagrams = 1024, most_frames = 65536;
        if (head.kind == static_cast<std::uint8_t>(frame_kind::datagram) && queue_.size() >= most_datagrams)
            return;                         // dropped, as datagrams may be
        if (queue_.size() >= most_frames) { // the peer sends requests but does not read answers
            ::shutdown(fd_, SHUT_RDWR);
            return;
        }
        if (sending_ || !queue_.empty() || !established_.load()) {
            queue_.push_back(std::move(what));
            return;
        }
        sending_ = true;
    }
    const auto outcome = transmit(what, what.body.from == payload::source::request);
    const std::lock_guard guard(mutex_);
    sending_ = false;
    if (outcome == progress::later)
        queue_.push_front(std::move(what));
    if (outcome == progress::broken)
        ::shutdown(fd_, SHUT_RDWR); // the wire's thread sees this and cleans up
    else if (!queue_.empty())
        arm(true);
}

void link::close_in_order() {
    constexpr std::uint64_t limit_ns = 300 * 1000 * 1000;
    if (!established_ || lost_)
        return;
    const auto end = now_ns() + limit_ns;
    const auto wait = [&](short events) {
        pollfd waiting{fd_, events, 0};
        const auto now = now_ns();
        return now < end && ::poll(&waiting, 1, static_cast<int>((end - now) / 1000000) + 1) == 1;
    };
    while (!queue_.empty()) {
        const auto outcome = transmit(queue_.front(), false);
        if (outcome == progress::broken || (outcome == progress::later && !wait(POLLOUT)))
            return;
        if (outcome == progress::done)
            queue_.pop_front();
    }
    // Closing a socket with unread bytes would discard what the peer has not read yet.
    ::shutdown(fd_, SHUT_WR);
    std::byte rest[4096];
    while (wait(POLLIN))
        if (const auto got = ::recv(fd_, rest, sizeof(rest), MSG_DONTWAIT);
            got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return;
}

// Called by the wire's thread when the socket accepts more.
void link::drain() {
    for (;;) {
        outgoing what;
        {
            const std::lock_guard guard(mutex_);
            if (sending_)
                return; // the sending thread arms again
            if (queue_.empty()) {
                arm(false);
                return;
            }
            sending_ = true;
            what = std::move(queue_.front());
            queue_.pop_front();
        }
        const auto outcome = transmit(what, false);
        const std::lock_guard guard(mutex_);
        sending_ = false;
        if (outcome == progress::broken) {
            ::shutdown(fd_, SHUT_RDWR);
            return;
        }
        if (outcome == progress::later) {
            queue_.push_front(std::move(what));
            return;
        }
    }
}

} // namespace lab::hca
