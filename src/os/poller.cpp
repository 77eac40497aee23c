// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/poller.hpp"

#include "src/error/try.hpp"

#include <cerrno>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace gaudi {

result<poller> poller::make() {
    poller created;
    created.epoll_ = fork_private_fd(unique_fd(::epoll_create1(EPOLL_CLOEXEC)));
    created.event_ = fork_private_fd(unique_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!created.epoll_ || !created.event_)
        return tl::unexpected(error(errc::descriptors_exhausted, "epoll and eventfd", errno));
    GAUDI_CHECK(created.add(created.event_.get(), EPOLLIN));
    return created;
}

result<void> poller::add(int fd, std::uint32_t events) const {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0)
        return tl::unexpected(error(errc::system_call_failed, "epoll_ctl", errno));
    return {};
}

void poller::remove(int fd) const {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void poller::wake() const {
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof(one));
}

std::span<const int> poller::wait(int milliseconds) {
    std::array<epoll_event, std::tuple_size_v<decltype(ready_)>> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), milliseconds);
    std::size_t ready = 0;
    for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        std::uint64_t ignored = 0;
        if (fd == event_.get())
            (void)!::read(fd, &ignored, sizeof(ignored));
        else
            ready_[ready++] = fd;
    }
    return std::span(ready_).first(ready);
}

} // namespace gaudi
