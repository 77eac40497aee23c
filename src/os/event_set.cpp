// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/event_set.hpp"

#include "src/error/try.hpp"
#include "src/os/system_error.hpp"

#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace gaudi {

result<event_set> event_set::make(std::string_view what) {
    event_set created;
    created.epoll_ = unique_fd(::epoll_create1(EPOLL_CLOEXEC));
    created.timer_ = unique_fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!created.epoll_ || !created.timer_)
        return tl::unexpected(system_error(std::string(what)));
    GAUDI_CHECK(created.add(created.timer_.get(), EPOLLIN));
    return created;
}

result<void> event_set::add(int fd, std::uint32_t events) const {
    epoll_event wanted{};
    wanted.events = events;
    // Two callers may add one descriptor: it is watched then, once.
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0 && errno != EEXIST)
        return tl::unexpected(system_error("epoll_ctl"));
    return {};
}

void event_set::set_timer(std::chrono::nanoseconds after) const {
    itimerspec when{};
    when.it_value.tv_sec = after.count() / 1'000'000'000;
    when.it_value.tv_nsec = after.count() % 1'000'000'000;
    ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

void event_set::discard() const {
    std::array<epoll_event, 64> seen;
    std::uint64_t expirations = 0;
    (void)::epoll_wait(epoll_.get(), seen.data(), seen.size(), 0);
    (void)!::read(timer_.get(), &expirations, sizeof(expirations));
}

} // namespace gaudi
