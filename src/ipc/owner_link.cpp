// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/owner_link.hpp"

#include "src/copy/copy_core.hpp"
#include "src/device/registry.hpp"
#include "src/error/try.hpp"
#include "src/hl/discovery.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

error error_of(const wire_reply& reply, const process_identity& owner) {
    constexpr auto codes = static_cast<std::uint32_t>(errc::system_call_failed) + 1;
    const auto code = reply.failed <= codes ? static_cast<errc>(reply.failed - 1) : errc::handle_invalid;
    const auto length = ::strnlen(reply.observed, sizeof(reply.observed));
    return {code, fmt::format("process {} says: {}", owner.pid, std::string_view(reply.observed, length)),
            reply.system_error};
}

} // namespace

result<std::shared_ptr<owner_link>> owner_link::connect(const process_identity& owner,
                                                        const ipc_settings& settings,
                                                        std::function<void()> when_gone) {
    return connect(broker_name(owner), owner, settings, std::move(when_gone));
}

result<std::shared_ptr<owner_link>> owner_link::connect_to_device(std::uint64_t node,
                                                                  const ipc_settings& settings) {
    return connect(device_name(node), {}, settings, {});
}

result<std::shared_ptr<owner_link>> owner_link::connect(std::string_view name, const process_identity& owner,
                                                        const ipc_settings& settings,
                                                        std::function<void()> when_gone) {
    auto socket = connect_to(name);
    if (!socket)
        return tl::unexpected(error(socket.error().code(),
                                    fmt::format("process {}: {}", owner.pid, socket.error().observed()),
                                    socket.error().system_error()));
    ucred who{};
    socklen_t length = sizeof(who);
    if (::getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
        (who.uid != ::geteuid() && who.uid != 0 &&
         std::find(settings.allow.begin(), settings.allow.end(), who.uid) == settings.allow.end()))
        return tl::unexpected(error(errc::peer_refused, fmt::format("the owner is user {}", who.uid)));
    GAUDI_TRY(const auto service, broker::self());
    auto made = std::make_shared<owner_link>(lone_fd(std::move(*socket)), owner, settings);
    made->when_gone_ = std::move(when_gone);
    GAUDI_CHECK(service->watch(made->socket_.get(), made));
    return made;
}

owner_link::~owner_link() {
    if (const auto service = broker::running())
        for (const auto* each : {&socket_, &bell_})
            if (*each)
                service->unwatch(each->get());
}

void owner_link::give_up() {
    gone_.store(true, std::memory_order_release);
    ::shutdown(socket_.get(), SHUT_RDWR); // the thread hears it, and lets go of the rest
}

void owner_link::hung_up() {
    {
        const std::lock_guard guard(mutex_);
        if (const auto said = collect(); !said && said.error().code() != errc::peer_gone && !gone())
            refusal_ = said.error(); // its last word
        answers_.clear();            // descriptors may be in them
    }
    gone_.store(true, std::memory_order_release);
    {
        // Its device must not stay open because of us.
        const std::lock_guard guard(guests_mutex_);
        guests_.clear();
    }
    if (when_gone_)
        when_gone_();
}

error owner_link::gone_error() const {
    if (refusal_)
        return *refusal_;
    return {errc::peer_gone, fmt::format("process {}, the owner of the memory, has ended", owner_.pid)};
}

result<std::uint64_t> owner_link::post(wire_request& request, std::span<const int> passed) {
    if (gone())
        return tl::unexpected(gone_error());
    const std::lock_guard guard(mutex_);
    request.head.id = next_id_++;
    const auto deadline = clock::now() + settings_.patience;
    (void)send_unsent(deadline);
    const auto sent = send_message(socket_.get(), std::as_bytes(std::span(&request, 1)), passed, deadline);
    if (!sent && sent.error().code() == errc::peer_gone) {
        const auto said = collect(); // it may have said why
        return tl::unexpected(said ? gone_error() : said.error());
    }
    if (!sent)
        return tl::unexpected(sent.error());
    return request.head.id;
}

bool owner_link::send_unsent(channel_deadline deadline) {
    for (; !unsent_.empty(); unsent_.pop_front())
        if (const auto sent =
                send_message(socket_.get(), std::as_bytes(std::span(&unsent_.front(), 1)), {}, deadline);
            !sent && sent.error().code() == errc::peer_silent)
            return false;
    return true; // or the connection is gone, and nobody will miss it
}

void owner_link::tell(const wire_request& request) {
    if (gone())
        return;
    {
        const std::lock_guard guard(mutex_);
        unsent_.push_back(request);
        unsent_.back().head.id = next_id_++;
        if (send_unsent({}))
            return;
    }
    if (const auto service = broker::running())
        service->flush_soon();
}

bool owner_link::flush() {
    const std::lock_guard guard(mutex_);
    return gone() || send_unsent({});
}

result<owner_link::answered> owner_link::fetched(const wire_reply& reply, received_message& with) {
    answered made{reply, std::move(with.passed)};
    if (reply.fetch == 0)
        return made;
    // The pid in the handle is another process's where the owner lives in another pid namespace; the kernel
    // says which one it is here, or 0.
    ucred owner{};
    socklen_t length = sizeof(owner);
    const bool known =
        ::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &owner, &length) == 0 && owner.pid > 0;
    const unique_fd process(known ? static_cast<int>(::syscall(SYS_pidfd_open, owner.pid, 0)) : -1);
    for (std::uint32_t i = 0; i < std::min<std::uint32_t>(reply.fetch, most_passed); ++i) {
        made.passed[i] = unique_fd(
            process ? static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), reply.numbers[i], 0)) : -1);
        if (!made.passed[i])
            return tl::unexpected(
                error(errc::peer_refused,
                      fmt::format("neither could process {} pass a descriptor, nor may it be "
                                  "fetched with pidfd_getfd",
                                  owner_.pid),
                      errno));
    }
    return made;
}

// Everything that came, without waiting. With the mutex held.
result<void> owner_link::collect() {
    for (;;) {
        wire_reply reply;
        auto got = receive_message(socket_.get(), std::as_writable_bytes(std::span(&reply, 1)), {});
        if (!got) {
            if (got.error().code() == errc::peer_silent)
                return {};
            if (got.error().code() == errc::peer_gone)
                return tl::unexpected(gone_error());
            return tl::unexpected(got.error());
        }
        if (got->bytes != sizeof(reply) || reply.head.magic != wire_head::magic_value)
            return tl::unexpected(error(errc::handle_invalid, "an answer that makes no sense"));
        if (reply.head.id == 0 && reply.failed != 0) // it serves somebody else
            return tl::unexpected(error_of(reply, owner_));
        if (reply.head.id == 0 || reply.head.id >= next_id_)
            return tl::unexpected(error(errc::handle_invalid, "an answer that nobody asked for"));
        if (const auto late = abandoned_.find(reply.head.id); late != abandoned_.end()) {
            if (late->second == wire_ask::open_lease && reply.failed == 0) {
                wire_request request; // nobody will use it
                request.head.ask = wire_ask::close_lease;
                request.lease = reply.lease;
                (void)send_message(socket_.get(), std::as_bytes(std::span(&request, 1)), {}, {});
            }
            abandoned_.erase(late);
            continue;
        }
        answers_.erase(reply.head.id);
        if (reply.failed != 0)
            answers_.emplace(reply.head.id, tl::unexpected(error_of(reply, owner_)));
        else if (got->descriptors_lost)
            answers_.emplace(reply.head.id,
                             tl::unexpected(error(errc::descriptors_exhausted,
                                                  "descriptors that another process passed", EMFILE)));
        else
            answers_.emplace(reply.head.id, fetched(reply, *got));
    }
}

std::optional<result<owner_link::answered>> owner_link::answer_to(std::uint64_t id) {
    const std::lock_guard guard(mutex_);
    auto collected = collect();
    if (const auto found = answers_.find(id); found != answers_.end()) {
        auto taken = std::move(found->second);
        answers_.erase(found);
        return taken;
    }
    if (!collected) {
        if (collected.error().code() != errc::peer_gone)
            give_up(); // nothing that it says can be relied upon
        return result<answered>(tl::unexpected(collected.error()));
    }
    return std::nullopt;
}

void owner_link::wait(std::chrono::milliseconds limit) {
    pollfd waiting{socket_.get(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(limit.count()));
}

result<owner_link::answered> owner_link::ask(wire_request& request, std::span<const int> passed) {
    GAUDI_TRY(const auto id, post(request, passed));
    for (const auto deadline = clock::now() + settings_.patience;;) {
        if (auto answer = answer_to(id))
            return std::move(*answer);
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now());
        if (left.count() <= 0) {
            const std::lock_guard guard(mutex_);
            abandoned_.emplace(id, request.head.ask);
            return tl::unexpected(error(errc::peer_silent, fmt::format("process {}, waited {} ms", owner_.pid,
                                                                       settings_.patience.count())));
        }
        wait(std::min(left,
                      std::chrono::milliseconds(10))); // another thread may take our answer off the socket
    }
}

lease_word* owner_link::board() {
    return board_.load(std::memory_order_acquire);
}

result<void> owner_link::take_board(unique_fd descriptor) {
    const std::lock_guard guard(mutex_);
    if (board() != nullptr)
        return {};
    GAUDI_TRY(auto memory, shared_memory::of(std::move(descriptor), leases_per_client * sizeof(lease_word)));
    memory.drop_descriptor();
    board_memory_ = std::move(memory);
    board_.store(reinterpret_cast<lease_word*>(board_memory_.data()), std::memory_order_release);
    return {};
}

void owner_link::take_bell(unique_fd descriptor) {
    int domain = 0;
    socklen_t length = sizeof(domain);
    const auto service = broker::running();
    const std::lock_guard guard(mutex_);
    bell_ = lone_fd(std::move(descriptor));
    const bool socket = ::getsockopt(bell_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0;
    if (!service || !socket || domain != AF_UNIX || !service->watch_bell(bell_.get()))
        bell_.reset(); // the owner finds nobody there, and does not wait
}

result<std::shared_ptr<hl_device>> owner_link::join(const std::shared_ptr<const hlthunk_api>& api,
                                                    answered& passed, std::shared_ptr<void> host) {
    GAUDI_TRY(auto ledger, context_ledger::of(std::move(passed.passed[1])));
    GAUDI_TRY(const auto devices, discover(*api));
    const auto bus_id = bus_id_of(*api, passed.passed[0].get());
    const auto info = std::find_if(devices.begin(), devices.end(),
                                   [&](const device_info& each) { return each.bus_id == bus_id; });
    if (info == devices.end())
        return tl::unexpected(error(errc::no_path, "the owner's device cannot be seen from here"));
    const int descriptor = passed.passed[0].get();
    GAUDI_TRY(auto guest, attach(api, descriptor, *info, tenancy::guest));
    (void)passed.passed[0].release(); // it is the guest's now
    guest->join(ledger, passed.reply.place, std::move(host));
    return guest;
}

result<copy_engine> owner_link::guest_engine(std::uint64_t node, std::uint32_t lease) {
    const std::lock_guard guard(guests_mutex_);
    if (const auto found = guests_.find(node); found != guests_.end())
        return found->second;
    if (const auto found = refused_.find(node); found != refused_.end())
        return tl::unexpected(found->second);
    wire_request request;
    request.head.ask = wire_ask::open_context;
    request.lease = lease;
    auto answer = ask(request);
    if (!answer) {
        const auto kind = answer.error().kind();
        if (kind == error_kind::not_permitted || kind == error_kind::unsupported) // it stays so
            refused_.emplace(node, answer.error());
        return tl::unexpected(answer.error());
    }
    GAUDI_TRY(const auto api, registry::self().api());
    GAUDI_TRY(auto guest, join(api, *answer));
    auto core = copy_core::make(guest, nullptr, {});
    if (!core) {
        refused_.emplace(node, core.error());
        return tl::unexpected(core.error());
    }
    return guests_.emplace(node, copy_engine(*core)).first->second;
}

result<std::optional<owner_link::slab>> owner_link::take_slab() {
    const std::lock_guard guard(guests_mutex_);
    if (slab_memory_.data() == nullptr) {
        GAUDI_TRY(auto memory, shared_memory::make("gaudi-direct slabs", slabs * slab_bytes));
        wire_request request;
        request.head.ask = wire_ask::attach_slab;
        request.length = slabs * slab_bytes;
        const int passed[] = {memory.descriptor()};
        GAUDI_CHECK(ask(request, passed));
        memory.drop_descriptor();
        slab_memory_ = std::move(memory);
        for (std::uint64_t i = 0; i < slabs; ++i)
            free_slabs_.push_back(i * slab_bytes);
    }
    if (free_slabs_.empty())
        return std::optional<slab>();
    const auto offset = free_slabs_.back();
    free_slabs_.pop_back();
    return slab{slab_memory_.bytes().subspan(offset, slab_bytes), offset};
}

void owner_link::return_slab(std::uint64_t offset) {
    const std::lock_guard guard(guests_mutex_);
    free_slabs_.push_back(offset);
}

} // namespace gaudi
