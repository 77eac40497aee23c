// SPDX-License-Identifier: BSD-3-Clause
#include "ucx/base/engine_transport.hpp"

#include <cstring>
#include <span>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

namespace gaudi_ucx {

engine_transport::engine_transport(uct_gaudi_module& module, const char* what)
    : ticket_transport(module, what), keeper_(engine_keeper::of(module)) {
    if (::getrandom(&id_, sizeof(id_), GRND_NONBLOCK) != sizeof(id_))
        id_ = number(this) ^ static_cast<std::uint64_t>(::getpid()) << 48;
}

engine_transport::~engine_transport() {
    if (epoll_ >= 0)
        ::close(epoll_);
}

std::vector<std::byte> engine_transport::process_address() {
    const auto bytes = std::as_bytes(std::span(&id_, 1));
    return {bytes.begin(), bytes.end()};
}

const char* engine_transport::why_unreachable(const void*, const void* process) {
    return process != nullptr && std::memcmp(process, &id_, sizeof(id_)) == 0
               ? nullptr
               : "not this interface: its addresses mean something in its own process alone";
}

unsigned engine_transport::progress() {
    for_each_engine([](gaudi::copy_engine engine) { engine.poll(); });
    return ticket_transport::progress();
}

ucs_status_t engine_transport::event_fd(int* fd) {
    if (epoll_ < 0) {
        epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
        if (epoll_ < 0)
            return UCS_ERR_IO_ERROR;
        for_each_engine([&](gaudi::copy_engine engine) { watch(engine); });
    }
    *fd = epoll_;
    return UCS_OK;
}

ucs_status_t engine_transport::arm() {
    epoll_event seen[8];
    if (epoll_ >= 0)
        (void)::epoll_wait(epoll_, seen, 8, 0); // what came until now is looked at here
    for_each_engine([](gaudi::copy_engine engine) {
        engine.arm();
        engine.poll();
    });
    return any_finished() ? UCS_ERR_BUSY : UCS_OK; // progress first
}

gaudi::result<gaudi::copy_engine> engine_transport::engine_of(unsigned index,
                                                              const gaudi::copy_options& options) {
    auto& known = engines_[index];
    auto core = known.lock();
    if (core)
        if (gaudi::copy_engine engine(core); !engine.lost())
            return engine;
    auto engine = keeper_->engine_of(index, options);
    if (!engine || engine->core() == core)
        return engine;
    known = engine->core();
    if (epoll_ >= 0)
        watch(*engine);
    return engine;
}

gaudi::result<gaudi::copy_ticket> engine_transport::begin_on(gaudi::copy_engine& engine, std::uint64_t to,
                                                             bool to_device, std::uint64_t from,
                                                             bool from_device, std::size_t length,
                                                             const gaudi::copy_hints& hints) {
    const auto host = [&](std::uint64_t address) {
        return std::span(reinterpret_cast<std::byte*>(address), length);
    };
    if (!from_device)
        return engine.write(gaudi::device_address(to), host(from), hints);
    if (!to_device)
        return engine.read(host(to), gaudi::device_address(from), hints);
    return engine.copy(gaudi::device_address(to), gaudi::device_address(from), length, hints);
}

void engine_transport::watch(gaudi::copy_engine& engine) {
    const auto fd = engine.event_fd(gaudi::event_when::armed);
    if (!fd) {
        gaudi_log(module(), ERROR, "event descriptor of the copy engine: {}", fd.error().message());
        return;
    }
    epoll_event event{}; // edges: the descriptor is everybody's, so nobody reads it
    event.events = EPOLLIN | EPOLLET;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, *fd, &event);
    engine.arm(); // another thread may sleep already
}

} // namespace gaudi_ucx
