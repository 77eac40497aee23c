// SPDX-License-Identifier: BSD-3-Clause
// The broker's life, and what its own process asks of it.
#include "src/ipc/broker.hpp"

#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/os/fork_count.hpp"
#include "src/os/quiet_thread.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

// The one of this process. A child of fork begins without; what it inherits is left where it is, because the
// thread that used it is not there.
struct place {
    std::mutex mutex;
    std::shared_ptr<broker> current;
    unsigned forks = fork_count();

    static place& self() {
        static auto* instance = new place;
        if (instance->forks != fork_count())
            instance = new place;
        return *instance;
    }
};

std::uint64_t new_secret() {
    std::uint64_t secret = 0;
    if (::getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
        secret = mix(&own_identity(), sizeof(process_identity)) ^
                 static_cast<std::uint64_t>(clock::now().time_since_epoch().count());
    return secret;
}

// Looks again and again, ever less often. False: the time is over.
template <typename F>
bool wait_until(std::chrono::milliseconds limit, F&& condition) {
    const auto deadline = clock::now() + limit;
    for (auto pause = std::chrono::microseconds(20); !condition();
         pause = std::min(pause * 2, std::chrono::microseconds(1000))) {
        if (clock::now() >= deadline)
            return false;
        std::this_thread::sleep_for(pause);
    }
    return true;
}

} // namespace

std::string broker_name(const process_identity& owner) {
    return fmt::format("gaudi-direct/{:016x}{:016x}", owner.random[0], owner.random[1]);
}

result<std::shared_ptr<broker>> broker::self() {
    auto& here = place::self();
    const std::lock_guard guard(here.mutex);
    if (!here.current) {
        GAUDI_TRY(const auto settings, get_ipc());
        std::shared_ptr<broker> made(new broker);
        made->settings_ = settings;
        GAUDI_CHECK(made->start());
        here.current = std::move(made);
        observe_memory(here.current);
    }
    return here.current;
}

std::shared_ptr<broker> broker::running() {
    auto& here = place::self();
    const std::lock_guard guard(here.mutex);
    return here.current;
}

void broker::stop() {
    auto& here = place::self();
    std::shared_ptr<broker> last;
    {
        const std::lock_guard guard(here.mutex);
        last = std::move(here.current);
        here.current.reset();
    }
    if (last)
        last->end();
}

broker::~broker() = default;

result<void> broker::start() {
    epoll_ = lone_fd(unique_fd(::epoll_create1(EPOLL_CLOEXEC)));
    wake_ = lone_fd(unique_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!epoll_ || !wake_)
        return tl::unexpected(error(errc::descriptors_exhausted, "epoll and eventfd of the broker", errno));
    GAUDI_CHECK(add(wake_.get(), EPOLLIN));
    keep_a_spare();
    try {
        thread_ = quiet_thread([this] { run(); });
    } catch (const std::system_error& failed) {
        return tl::unexpected(error(errc::system_call_failed, "the broker's thread", failed.code().value()));
    }
    return {};
}

void broker::wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
}

void broker::end() {
    const auto quiet = [&] {
        const std::lock_guard guard(mutex_);
        return std::all_of(clients_.begin(), clients_.end(), [](const client& each) {
            return std::all_of(each.leases.begin(), each.leases.end(), [&](const auto& held) {
                return each.in_flight(held.first, held.second) == 0;
            });
        });
    };
    {
        const std::lock_guard guard(mutex_);
        for (auto& each : clients_)
            for (auto& [slot, held] : each.leases) {
                each.revoke(slot, held);
            }
    }
    (void)wait_until(std::chrono::seconds(5), quiet);
    std::vector<std::uint64_t> bases;
    {
        const std::lock_guard guard(mutex_);
        for (const auto& [base, each] : shared_)
            bases.push_back(base);
    }
    wait_for_importers(bases);
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
    }
    wake();
    if (thread_.joinable())
        thread_.join();
    for (const auto& [socket, each] : std::exchange(watched_, {})) // nobody would tell them later
        if (const auto watcher = each.lock())
            watcher->hung_up();
}

result<void> broker::add(int fd, std::uint32_t events) {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0)
        return tl::unexpected(error(errc::system_call_failed, "epoll_ctl of the broker", errno));
    return {};
}

result<void> broker::watch(int socket, const std::shared_ptr<hangup_watcher>& watcher) {
    const std::lock_guard guard(mutex_);
    GAUDI_CHECK(add(socket, EPOLLRDHUP));
    watched_[socket] = watcher;
    return {};
}

void broker::unwatch(int socket) {
    const std::lock_guard guard(mutex_);
    if (watched_.erase(socket) + bells_.erase(socket) != 0)
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

result<void> broker::watch_bell(int socket) {
    const std::lock_guard guard(mutex_);
    GAUDI_CHECK(add(socket, EPOLLIN));
    bells_.insert(socket);
    return {};
}

void broker::flush_soon() {
    unsent_ = true;
    wake();
}

void broker::client::revoke(std::uint32_t slot, lease& held) {
    held.revoked = true;
    word(slot).revoked.store(1);
    if (bell && ::send(bell.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
        bell.reset(); // nobody hears it; a full one is heard all the same
}

void broker::wait_for_importers(const std::vector<std::uint64_t>& bases) {
    if (std::this_thread::get_id() == thread_.get_id()) // which would hear of it
        return;
    const auto holds = [&](const client& each) {
        return each.bell && !each.dead && !each.silent &&
               std::any_of(each.leases.begin(), each.leases.end(), [&](const auto& one) {
                   return one.second.given && one.second.revoked &&
                          std::find(bases.begin(), bases.end(), one.second.base) != bases.end();
               });
    };
    const auto nobody_holds = [&] {
        const std::lock_guard guard(mutex_);
        return std::none_of(clients_.begin(), clients_.end(), holds);
    };
    if (wait_until(std::chrono::milliseconds(500), nobody_holds))
        return;
    const std::lock_guard guard(mutex_);
    for (auto& each : clients_)
        each.silent = each.silent || holds(each);
}

result<void> broker::begin_to_listen() {
    const std::lock_guard guard(mutex_);
    return listen();
}

result<void> broker::listen() {
    if (listener_)
        return {};
    GAUDI_TRY(auto made, listen_on(broker_name(own_identity())));
    GAUDI_CHECK(add(made.get(), EPOLLIN));
    listener_ = lone_fd(std::move(made));
    return {};
}

std::string device_name(std::uint64_t node) {
    return fmt::format("gaudi-direct/device/{:016x}/{}", node, ::geteuid());
}

result<void> broker::offer(const std::shared_ptr<hl_device>& context) {
    if (context->whose() != tenancy::opened || context->traits().exports == export_call::physical)
        return tl::unexpected(error(errc::copies_absent,
                                    fmt::format("{} is not this process's to share", context->who().bus_id)));
    const std::lock_guard guard(mutex_);
    std::erase_if(offered_, [](const auto& each) { return each.second.context.expired(); });
    if (offered_.contains(context->node()))
        return {};
    auto made = listen_on(device_name(context->node()));
    if (!made)
        return tl::unexpected(
            error(made.error().system_error() == EADDRINUSE ? errc::address_in_use : made.error().code(),
                  made.error().observed(), made.error().system_error()));
    GAUDI_CHECK(add(made->get(), EPOLLIN));
    offered_[context->node()] = {context, lone_fd(std::move(*made))};
    return {};
}

result<memory_handle> broker::share(device_address address, std::uint64_t length, bool apart) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "sharing 0 bytes"));
    handle_record record;
    auto found = known_memory().find(address, length);
    if (!found) {
        // SynapseAI's pool has no allocations that we know of: the piece itself is shared.
        const auto pool = known_memory().window_at(address, length);
        const auto device = pool ? find_open_device(pool->device_index) : nullptr;
        if (!device || !device->attached())
            return tl::unexpected(found.error());
        found = allocation_view{address, length, 0, pool->device_index, 0};
    }
    const auto device = find_open_device(found->device_index);
    if (!device)
        return tl::unexpected(error(errc::not_allocated, fmt::format("memory at {:#x}", address.value())));
    const std::lock_guard guard(mutex_);
    GAUDI_CHECK(listen());
    auto& entry = shared_[found->base.value()];
    if (entry.pieces.empty() || entry.generation != found->generation || entry.length != found->length) {
        entry = {};
        entry.length = found->length;
        entry.generation = found->generation;
        entry.device_index = found->device_index;
    }
    const auto offset = address - found->base;
    auto known =
        apart ? entry.pieces.end()
              : std::find_if(entry.pieces.begin(), entry.pieces.end(), [&](const auto& each) {
                    return !each.second.apart && each.second.offset == offset && each.second.length == length;
                });
    if (known == entry.pieces.end())
        known = entry.pieces.emplace(new_secret(), shared_allocation::piece{offset, length, apart, {}, 0, 0})
                    .first;
    const auto& self = own_identity();
    record.machine = self.machine;
    record.random = self.random;
    record.start_time = self.start_time;
    record.pid = self.pid;
    record.device_index = found->device_index;
    record.device = device->core()->node();
    record.base = found->base.value();
    record.allocated = found->length;
    record.generation = found->generation;
    record.secret = known->first;
    record.offset = offset;
    record.length = length;
    return record.seal();
}

std::map<std::uint64_t, broker::shared_allocation>::iterator broker::shared_at(device_address address) {
    auto next = shared_.upper_bound(address.value());
    if (next == shared_.begin() || address.value() - (--next)->first >= next->second.length)
        return shared_.end();
    return next;
}

std::vector<lease_info> broker::leases_of(device_address address, std::uint64_t secret) {
    std::vector<lease_info> all;
    const std::lock_guard guard(mutex_);
    const auto known = shared_at(address);
    if (known == shared_.end())
        return all;
    for (const auto& each : clients_)
        for (const auto& [slot, held] : each.leases)
            if (held.is_of(known->first, known->second) && held.opened_with(secret))
                all.push_back({each.who.pid, each.who.uid, each.in_flight(slot, held), held.revoked});
    return all;
}

bool broker::revoke(device_address address, std::uint64_t secret) {
    const std::lock_guard guard(mutex_);
    const auto known = shared_at(address);
    if (known == shared_.end())
        return false;
    if (secret != 0)
        if (const auto piece = known->second.pieces.find(secret);
            piece == known->second.pieces.end() || !piece->second.apart)
            return false;
    for (auto& each : clients_)
        for (auto& [slot, held] : each.leases)
            if (held.is_of(known->first, known->second) && held.opened_with(secret)) {
                each.revoke(slot, held);
            }
    // Handles that were given are worth nothing from now on.
    if (secret != 0)
        known->second.pieces.erase(secret);
    else
        known->second.pieces.clear();
    return true;
}

bool broker::wait(device_address address, until what, std::chrono::milliseconds limit, std::uint64_t secret) {
    return wait_until(limit, [&] {
        const auto held = leases_of(address, secret);
        return what == until::closed ? held.empty()
                                     : std::all_of(held.begin(), held.end(), [](const lease_info& each) {
                                           return each.in_flight == 0;
                                       });
    });
}

bool broker::memory_goes(device_address base, std::uint64_t length) {
    {
        const std::lock_guard guard(mutex_);
        const auto known = shared_.lower_bound(base.value());
        if (known == shared_.end() || known->first - base.value() >= length)
            return true;
    }
    (void)revoke(base);
    const bool quiet = wait(base, until::quiet, std::chrono::seconds(5));
    wait_for_importers({base.value()});
    const std::lock_guard guard(mutex_);
    // A DMA-BUF that was given away cannot be taken back: while its importer lives and has not said that it
    // let go, the memory is not handed out again.
    const bool given = std::any_of(clients_.begin(), clients_.end(), [&](const client& each) {
        return !each.dead && std::any_of(each.leases.begin(), each.leases.end(), [&](const auto& one) {
            return one.second.given && one.second.base == base.value();
        });
    });
    shared_.erase(base.value());
    return quiet && !given;
}

void broker::count(ipc_statistics& into) {
    const std::lock_guard guard(mutex_);
    into.shared = shared_.size();
    into.leases_given = leases_given_;
    for (const auto& each : clients_)
        into.leases += each.leases.size();
}

} // namespace gaudi
