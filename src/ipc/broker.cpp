// SPDX-License-Identifier: BSD-3-Clause
// The owner's side and its thread. The mutex guards all tables; whatever waits for another process, or may
// drop the last reference to a device or a connection, runs after unlocking.
#include "src/ipc/broker.hpp"

#include "src/error/try.hpp"
#include "src/hl/hl_device.hpp"
#include "src/ipc/importer.hpp"
#include "src/os/deadline.hpp"
#include "src/os/internals.hpp"
#include "src/os/per_process.hpp"
#include "src/os/signal_free_thread.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <sys/epoll.h>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

// The broker of this process. A child of fork starts without one and leaves the inherited one untouched,
// because the thread that used it does not exist in the child.
struct current_broker {
    std::mutex mutex;
    std::shared_ptr<broker> instance;
};

// Checks the condition with growing pauses. False on timeout. Importers count their copies in shared memory,
// which announces nothing: the owner has to ask.
template <typename F>
bool wait_until(std::chrono::milliseconds limit, F&& condition) {
    const auto deadline = deadline_after(limit);
    for (auto pause = std::chrono::microseconds(20); !condition();
         pause = std::min(pause * 2, std::chrono::microseconds(1000))) {
        if (clock::now() >= deadline)
            return false;
        std::this_thread::sleep_for(pause);
    }
    return true;
}

bool is_of_any(const lease_record& lease, const std::vector<shared_allocation*>& allocations) {
    return std::any_of(allocations.begin(), allocations.end(),
                       [&](const shared_allocation* each) { return each->is_of(lease); });
}

} // namespace

broker::broker(poller events, ipc_settings settings)
    : events_(std::move(events)), settings_(std::move(settings)) {}

result<std::shared_ptr<broker>> broker::self() {
    auto& current = per_process<current_broker>();
    const std::lock_guard guard(current.mutex);
    if (current.instance)
        return current.instance;
    GAUDI_TRY(auto settings, get_ipc());
    GAUDI_TRY(auto events, poller::make());
    std::shared_ptr<broker> made(new broker(std::move(events), std::move(settings)));
    GAUDI_TRY(made->thread_, signal_free_thread("the broker's thread", [raw = made.get()] { raw->run(); }));
    current.instance = std::move(made);
    // Last: from now on every free of device memory asks this broker, which must be complete.
    observe_memory(current.instance);
    return current.instance;
}

std::shared_ptr<broker> broker::running() {
    auto& current = per_process<current_broker>();
    const std::lock_guard guard(current.mutex);
    return current.instance;
}

void broker::stop() {
    auto& current = per_process<current_broker>();
    std::shared_ptr<broker> last;
    {
        const std::lock_guard guard(current.mutex);
        last = std::move(current.instance);
        current.instance.reset();
    }
    // Without the lock: end() waits for importers, and other threads ask for the running broker meanwhile.
    if (last)
        last->end();
}

void broker::end() {
    std::vector<std::uint64_t> bases;
    {
        const std::lock_guard guard(mutex_);
        for (auto& each : clients_.all())
            each.leases.revoke_if([](const lease_record&) { return true; });
        // A lease that closes may erase its allocation: the wait for releases goes by the bases.
        bases = shares_.bases();
    }
    // Copies in flight complete first. A process that is stopped must not keep this one for ever.
    (void)wait_until(std::chrono::seconds(5), [&] {
        const std::lock_guard guard(mutex_);
        return std::all_of(clients_.all().begin(), clients_.all().end(),
                           [](const client& each) { return each.leases.quiet(); });
    });
    wait_for_releases(bases);
    {
        const std::lock_guard guard(mutex_);
        ending_ = true;
    }
    events_.wake();
    if (thread_.joinable())
        thread_.join();
    hangup_watch::watchers left; // no thread will report their hang-ups
    {
        const std::lock_guard guard(mutex_);
        left = hangups_.take_all();
    }
    for (const auto& each : left)
        each->hung_up();
}

// ---- on the broker's thread ----

void broker::run() {
    for (;;) {
        int sleep = 0;
        {
            const std::lock_guard guard(mutex_);
            if (ending_ && end_clients())
                return;
            sleep = longest_sleep();
        }
        handle(events_.wait(sleep));
    }
}

void broker::handle(std::span<const int> ready) {
    // Declared before the lock, destroyed after it: dropping the last reference to a watcher calls unwatch(),
    // and to a device closes it.
    hangup_watch::watchers hung_up;
    bool revoked = false;
    std::vector<std::shared_ptr<device>> used;
    {
        const std::lock_guard guard(mutex_);
        offers_.drop_closed();
        for (const int fd : ready) {
            if (fd == listener_.get() || offers_.listens_on(fd)) {
                clients_.accept_from(fd);
            } else if (auto event = hangups_.handle(fd); event.mine) {
                revoked = revoked || event.revoked;
                if (event.hung_up)
                    hung_up.push_back(std::move(event.hung_up));
            } else if (auto* from = clients_.find(fd)) {
                // The pidfd becomes readable when the process has ended, also where a child of it still has
                // the socket.
                if (from->process.get() == fd || !requests_.serve(*from))
                    clients_.disconnect(*from);
            }
        }
        for (auto& each : clients_.all()) {
            requests_.finish_copies(each);
            if (!each.drop_lost_devices())
                clients_.disconnect(each); // so that the importer closes its descriptor as well
        }
        clients_.disconnect_ungreeted();
        clients_.reap([this](client& each) { return finished(each); });
        used = requests_.take_used_devices();
    }
    // Without the lock: a watcher drops engines, which may wait for their copies, and calls the importer.
    for (const auto& each : hung_up)
        each->hung_up();
    if (revoked)
        importer::self().release_revoked();
    if (unsent_.exchange(false))
        flush_watchers();
}

// Releases what a disconnected client had. True once nothing of it is left.
bool broker::finished(client& ended) {
    // The owner's own copies for the client use its slab, and must end before that is unmapped.
    requests_.finish_copies(ended);
    if (!ended.copies.empty() || !ended.is_harmless() || !ended.release_resources())
        return false;
    // One by one, because closing the last lease of an allocation drops its DMA-BUF.
    while (!ended.leases.all().empty())
        requests_.close_lease(ended, ended.leases.all().begin()->first);
    return true;
}

bool broker::end_clients() {
    for (auto& each : clients_.all())
        clients_.disconnect(each);
    // Submissions of an importer may still be in flight; the driver ends them with the context.
    for (int tries = 0; tries < 100 && !clients_.all().empty(); ++tries) {
        clients_.reap([this](client& each) { return finished(each); });
        if (!clients_.all().empty())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // What is left then is of processes that do not end: the driver keeps their mappings until the context
    // ends.
    clients_.all().clear();
    shares_.clear();
    offers_.clear();
    return true;
}

void broker::flush_watchers() {
    hangup_watch::watchers all;
    {
        const std::lock_guard guard(mutex_);
        // Strong references: a connection may end on another thread while it is flushed here.
        all = hangups_.all();
    }
    for (const auto& each : all)
        if (!each->flush())
            unsent_ = true;
}

int broker::longest_sleep() const {
    if (unsent_)
        return 1;
    const auto any = [&](auto&& is) { return std::any_of(clients_.all().begin(), clients_.all().end(), is); };
    if (any([](const client& each) { return each.disconnected || !each.greeted || !each.copies.empty(); }))
        return 1;
    // Wake up twice a second to detect the reset of a device that a client uses.
    return any([](const client& each) { return !each.memberships.empty() || !each.slab_pins.empty(); }) ? 500
                                                                                                        : -1;
}

// ---- called by this process ----

result<void> broker::listen() {
    if (listener_)
        return {};
    // With the first share only: a process that imports and shares nothing cannot be connected to.
    GAUDI_TRY(auto made, listen_on(broker_name(own_identity())));
    GAUDI_CHECK(events_.add(made.get(), EPOLLIN));
    listener_ = fork_private_fd(std::move(made));
    return {};
}

result<void> broker::offer(const std::shared_ptr<hl_device>& context) {
    const std::lock_guard guard(mutex_);
    return offers_.add(context);
}

result<memory_handle> broker::share(device_address address, std::uint64_t length, bool separate) {
    if (length == 0)
        return tl::unexpected(error(errc::size_zero, "sharing 0 bytes"));
    auto allocation = known_memory().find(address, length);
    if (!allocation) {
        // The allocations within SynapseAI's pool are not known: the piece itself is shared.
        const auto pool = known_memory().window_at(address, length);
        const auto owner = pool ? find_open_device(pool->device_index) : nullptr;
        if (!owner || !owner->attached())
            return tl::unexpected(allocation.error());
        allocation = allocation_view{address, length, 0, pool->device_index, 0};
    }
    // Released after unlocking, because it is declared before the guard: it may be the last reference.
    const auto owner = find_open_device(allocation->device_index);
    if (!owner)
        return tl::unexpected(error(errc::not_allocated, fmt::format("memory at {:#x}", address.value())));
    handle_record record;
    record.set_owner(own_identity());
    record.device_index = allocation->device_index;
    record.device = core_of(*owner)->node();
    record.base = allocation->base.value();
    record.allocated = allocation->length;
    record.generation = allocation->generation;
    record.offset = address - allocation->base;
    record.length = length;
    const std::lock_guard guard(mutex_);
    GAUDI_CHECK(listen());
    // The secret makes the handle valid: the rest of it could be guessed.
    record.secret = shares_.add(*allocation, record.offset, length, separate);
    return record.seal();
}

bool broker::is_shared(const handle_record& handle) {
    const std::lock_guard guard(mutex_);
    return handle.owner() == own_identity() && shares_.find(handle);
}

std::vector<lease_info> broker::leases_of(device_address address, std::uint64_t secret) {
    std::vector<lease_info> all;
    const std::lock_guard guard(mutex_);
    const auto shared = shares_.holding(address);
    for (const auto& each : clients_.all())
        for (const auto& [slot, lease] : each.leases.all())
            if (is_of_any(lease, shared) && lease.opened_with(secret))
                all.push_back(
                    {each.credentials.pid, each.credentials.uid, each.leases.in_flight(slot), lease.revoked});
    return all;
}

bool broker::revoke(device_address address, std::uint64_t secret) {
    const std::lock_guard guard(mutex_);
    if (!shares_.revoke(address, secret))
        return false;
    const auto shared = shares_.holding(address);
    for (auto& each : clients_.all())
        each.leases.revoke_if(
            [&](const lease_record& lease) { return is_of_any(lease, shared) && lease.opened_with(secret); });
    // An allocation with leases stays in the table: their DMA-BUFs are in it.
    for (const auto* const entry : shared)
        if (entry->pieces.empty() && !is_leased(*entry))
            shares_.erase(*entry);
    return true;
}

bool broker::is_leased(const shared_allocation& allocation) const {
    return std::any_of(clients_.all().begin(), clients_.all().end(), [&](const client& each) {
        return each.leases.any([&](const lease_record& lease) { return allocation.is_of(lease); });
    });
}

bool broker::wait(device_address address, until what, std::chrono::milliseconds limit, std::uint64_t secret) {
    return wait_until(limit, [&] {
        const auto leases = leases_of(address, secret);
        return what == until::closed ? leases.empty()
                                     : std::all_of(leases.begin(), leases.end(), [](const lease_info& each) {
                                           return each.in_flight == 0;
                                       });
    });
}

void broker::wait_for_releases(const std::vector<std::uint64_t>& bases) {
    // This thread receives the releases: it must not wait for them.
    if (std::this_thread::get_id() == thread_.get_id())
        return;
    const auto holds = [&](const client& each) {
        return each.leases.has_listener() && !each.disconnected && !each.unresponsive &&
               each.leases.any([&](const lease_record& lease) {
                   return lease.dmabuf_given && lease.revoked &&
                          std::find(bases.begin(), bases.end(), lease.base) != bases.end();
               });
    };
    const auto all_released = [&] {
        const std::lock_guard guard(mutex_);
        return std::none_of(clients_.all().begin(), clients_.all().end(), holds);
    };
    // Once per importer: one that exceeds this limit would otherwise delay every later free by as much.
    if (wait_until(std::chrono::milliseconds(500), all_released))
        return;
    const std::lock_guard guard(mutex_);
    for (auto& each : clients_.all())
        each.unresponsive = each.unresponsive || holds(each);
}

bool broker::memory_goes(device_address base, std::uint64_t length) {
    {
        const std::lock_guard guard(mutex_);
        if (!shares_.any_in(base, length))
            return true;
    }
    // Without the mutex for the rest: the broker's thread must go on to receive what the importers release.
    (void)revoke(base);
    const bool quiet = wait(base, until::quiet, std::chrono::seconds(5));
    wait_for_releases({base.value()});
    const std::lock_guard guard(mutex_);
    // A DMA-BUF that was passed to an importer cannot be revoked: while the importer lives and has not
    // released it, the memory is not handed out again.
    const bool held = std::any_of(clients_.all().begin(), clients_.all().end(), [&](const client& each) {
        return !each.disconnected && each.leases.any([&](const lease_record& lease) {
            return lease.dmabuf_given && lease.base == base.value();
        });
    });
    shares_.erase_in(base, length);
    return quiet && !held;
}

void broker::count(ipc_statistics& into) {
    const std::lock_guard guard(mutex_);
    into.shared = shares_.size();
    into.leases_given = requests_.leases_opened();
    for (const auto& each : clients_.all())
        into.leases += each.leases.all().size();
}

result<void> broker::watch(int socket, const std::shared_ptr<hangup_watcher>& watcher) {
    const std::lock_guard guard(mutex_);
    return hangups_.add(socket, watcher);
}

result<void> broker::watch_revoke_socket(int socket) {
    const std::lock_guard guard(mutex_);
    return hangups_.add_revoke_socket(socket);
}

void broker::unwatch(int socket) {
    const std::lock_guard guard(mutex_);
    hangups_.remove(socket);
}

void broker::flush_soon() {
    unsent_ = true;
    events_.wake();
}

} // namespace gaudi
