// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/hangup_watch.hpp"

#include "src/error/try.hpp"

#include <cerrno>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace gaudi {

result<void> hangup_watch::add(int socket, const std::shared_ptr<hangup_watcher>& watcher) {
    GAUDI_CHECK(events_.add(socket, EPOLLRDHUP));
    watched_[socket] = watcher;
    return {};
}

result<void> hangup_watch::add_revoke_socket(int socket) {
    GAUDI_CHECK(events_.add(socket, EPOLLIN));
    revoke_sockets_.insert(socket);
    return {};
}

void hangup_watch::remove(int socket) {
    if (watched_.erase(socket) + revoke_sockets_.erase(socket) != 0)
        events_.remove(socket);
}

hangup_watch::event hangup_watch::handle(int descriptor) {
    event seen;
    if (revoke_sockets_.contains(descriptor)) {
        seen.mine = true;
        char byte[1];
        ssize_t got = 0;
        for (int i = 0; i < 64 && (got = ::recv(descriptor, byte, sizeof(byte), MSG_DONTWAIT)) > 0; ++i)
            seen.revoked = true;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) // the owner has closed its end
            remove(descriptor);
    } else if (const auto found = watched_.find(descriptor); found != watched_.end()) {
        seen.mine = true;
        pollfd again{descriptor, POLLRDHUP, 0}; // the number may belong to another connection by now
        if (::poll(&again, 1, 0) > 0) {
            seen.hung_up = found->second.lock();
            remove(descriptor);
        }
    }
    return seen;
}

hangup_watch::watchers hangup_watch::all() const {
    watchers alive;
    for (const auto& [socket, each] : watched_)
        if (auto watcher = each.lock())
            alive.push_back(std::move(watcher));
    return alive;
}

hangup_watch::watchers hangup_watch::take_all() {
    auto alive = all();
    watched_.clear();
    return alive;
}

} // namespace gaudi
