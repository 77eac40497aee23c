// SPDX-License-Identifier: BSD-3-Clause
// One socket for all threads of this process: any thread that waits for an answer receives all that has
// arrived, keeps those of other threads, and sleeps in short steps. The broker's thread watches the socket
// for its end.
#include "src/ipc/owner_link.hpp"

#include "src/error/try.hpp"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>

namespace gaudi {
namespace {

using clock = std::chrono::steady_clock;

error error_of(const answer_head& reply, const process_identity& owner) {
    constexpr auto codes = static_cast<std::uint32_t>(errc::system_call_failed) + 1;
    const auto code = reply.failed <= codes ? static_cast<errc>(reply.failed - 1) : errc::protocol_violated;
    const auto length = ::strnlen(reply.observed, sizeof(reply.observed));
    return {code, fmt::format("process {} reports: {}", owner.pid, std::string_view(reply.observed, length)),
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
    // Any user may bind an abstract name: the importer checks its owner as the owner checks it.
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    if (::getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
        (credentials.uid != ::geteuid() && credentials.uid != 0 &&
         std::find(settings.allow.begin(), settings.allow.end(), credentials.uid) == settings.allow.end()))
        return tl::unexpected(
            error(errc::peer_refused, fmt::format("the owner is user {}", credentials.uid)));
    GAUDI_TRY(const auto service, broker::self());
    auto made = std::make_shared<owner_link>(fork_private_fd(std::move(*socket)), owner, settings);
    made->when_gone_ = std::move(when_gone);
    // The broker keeps a weak reference, so that the connection ends with the last lease.
    GAUDI_CHECK(service->watch(made->socket_.get(), made));
    return made;
}

owner_link::~owner_link() {
    if (forks_ != fork_count()) // the numbers name other descriptors in a child of fork
        return;
    if (const auto service = broker::running())
        for (const auto* each : {&socket_, &revoke_socket_})
            if (*each)
                service->unwatch(each->get());
}

void owner_link::disconnect() {
    gone_.store(true, std::memory_order_release);
    ::shutdown(socket_.get(), SHUT_RDWR); // the broker's thread sees the hang-up and releases the rest
}

void owner_link::hung_up() {
    {
        const std::lock_guard guard(mutex_);
        if (const auto said = collect(); !said && said.error().code() != errc::peer_gone && !gone())
            refusal_ = said.error(); // the owner's last message: why it refuses
        answers_.clear();            // answers may hold descriptors
    }
    gone_.store(true, std::memory_order_release);
    // The engines keep the owner's device open, which its owner wants to open again (gotcha I2).
    contexts_.close();
    if (when_gone_)
        when_gone_();
}

error owner_link::gone_error() const {
    if (refusal_)
        return *refusal_;
    return {errc::peer_gone, fmt::format("process {}, the owner of the memory, has ended", owner_.pid)};
}

result<void> owner_link::send(const message_bytes& message, std::span<const int> passed) {
    for (const auto deadline = clock::now() + settings_.answer_timeout;;) {
        if (gone())
            return tl::unexpected(gone_error());
        {
            const std::lock_guard guard(mutex_);
            // Messages of post() first: the owner must see a release before the request that follows it.
            auto sent = send_unsent() ? send_message(socket_.get(), message, passed, {})
                                      : tl::unexpected(error(errc::peer_silent, "the socket is full"));
            if (!sent && sent.error().code() == errc::peer_gone) {
                const auto said = collect(); // the owner may have sent the reason
                return tl::unexpected(said ? gone_error() : said.error());
            }
            if (sent || sent.error().code() != errc::peer_silent || clock::now() >= deadline)
                return sent;
        }
        // Without the mutex: other threads receive meanwhile.
        wait_for(POLLOUT, std::chrono::milliseconds(10));
    }
}

bool owner_link::send_unsent() {
    for (; !unsent_.empty(); unsent_.pop_front())
        if (const auto sent = send_message(socket_.get(), unsent_.front(), {}, {});
            !sent && sent.error().code() == errc::peer_silent)
            return false;
    return true; // also where the connection has ended: the owner needs no message then
}

void owner_link::send_later(message_bytes message) {
    if (gone())
        return;
    {
        const std::lock_guard guard(mutex_);
        unsent_.push_back(std::move(message));
        if (send_unsent())
            return;
    }
    if (const auto service = broker::running())
        service->flush_soon();
}

bool owner_link::flush() {
    const std::lock_guard guard(mutex_);
    return gone() || send_unsent();
}

// Adds the answer's descriptors; fetches those that the owner could not pass.
result<owner_link::raw_answer> owner_link::complete(const answer_head& head, std::span<const std::byte> body,
                                                    received_message& with) {
    // The kernel closes descriptors for which this process has no room, and only sets a flag.
    if (with.descriptors_lost)
        return tl::unexpected(
            error(errc::descriptors_exhausted, "descriptors that another process passed", EMFILE));
    raw_answer made{{body.begin(), body.end()}, std::move(with.passed)};
    if (head.fetch == 0)
        return made;
    // Where the owner lives in another pid namespace, the pid in the handle may name another process here;
    // the kernel reports the pid that is valid here, or 0.
    ucred owner{};
    socklen_t length = sizeof(owner);
    const bool known =
        ::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &owner, &length) == 0 && owner.pid > 0;
    // The owner has parked the descriptors until this process sends its next request.
    const unique_fd process(known ? static_cast<int>(::syscall(SYS_pidfd_open, owner.pid, 0)) : -1);
    for (std::uint32_t i = 0; i < std::min<std::uint32_t>(head.fetch, most_passed); ++i) {
        made.passed[i] = unique_fd(
            process ? static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), head.numbers[i], 0)) : -1);
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

// Receives all answers that have arrived, without waiting. The caller holds the mutex.
result<void> owner_link::collect() {
    for (;;) {
        std::array<std::byte, longest_answer> bytes;
        auto got = receive_message(socket_.get(), bytes, {});
        if (!got) {
            if (got.error().code() == errc::peer_silent)
                return {};
            if (got.error().code() == errc::peer_gone)
                return tl::unexpected(gone_error());
            return tl::unexpected(got.error());
        }
        const auto message = std::span<const std::byte>(bytes).first(got->bytes);
        const auto head = read_as<answer_head>(message.first(std::min(message.size(), sizeof(answer_head))));
        if (!head || head->magic != request_head::magic_value)
            return tl::unexpected(error(errc::protocol_violated, "bytes that are no answer"));
        if (head->id == 0 && head->failed != 0) // the owner refuses the connection
            return tl::unexpected(error_of(*head, owner_));
        // The owner is checked as well: an answer without a request would be kept for ever.
        if (head->id == 0 || head->id >= next_id_)
            return tl::unexpected(error(errc::protocol_violated, "an answer without a request"));
        const auto body = message.subspan(sizeof(answer_head));
        if (const auto late = abandoned_.find(head->id); late != abandoned_.end()) {
            answer_came_late(late->second, *head, body);
            abandoned_.erase(late);
            continue;
        }
        answers_.erase(head->id);
        answers_.emplace(head->id, head->failed != 0 ? tl::unexpected(error_of(*head, owner_))
                                                     : complete(*head, body, *got));
    }
}

void owner_link::answer_came_late(bool opened, const answer_head& head, std::span<const std::byte> body) {
    const auto lease = read_as<opened_lease>(body);
    if (!opened || head.failed != 0 || !lease)
        return;
    // Its caller has timed out.
    const auto message = request_message(next_id_++, close_lease_request{lease->lease});
    (void)send_message(socket_.get(), message, {}, {});
}

std::optional<result<owner_link::raw_answer>> owner_link::take_answer(std::uint64_t id) {
    const auto entry = answers_.find(id);
    if (entry == answers_.end())
        return std::nullopt;
    auto answer = std::move(entry->second);
    answers_.erase(entry);
    return answer;
}

std::optional<result<owner_link::raw_answer>> owner_link::pop_answer(std::uint64_t id) {
    const std::lock_guard guard(mutex_);
    // An answer that arrived before the connection ended counts: it is looked up before the error.
    auto collected = collect();
    if (auto answer = take_answer(id))
        return answer;
    if (!collected) {
        if (collected.error().code() != errc::peer_gone)
            disconnect(); // the owner's messages cannot be relied upon
        return result<raw_answer>(tl::unexpected(collected.error()));
    }
    return std::nullopt;
}

std::optional<result<void>> owner_link::answer_to(std::uint64_t id) {
    if (const auto answer = pop_answer(id))
        return answer->map([](const raw_answer&) {});
    return std::nullopt;
}

void owner_link::wait(std::chrono::milliseconds limit) {
    wait_for(POLLIN, limit);
}

void owner_link::wait_for(short events, std::chrono::milliseconds limit) {
    pollfd waiting{socket_.get(), events, 0};
    ::poll(&waiting, 1, static_cast<int>(limit.count()));
}

result<owner_link::raw_answer> owner_link::send_and_wait(std::uint64_t id, const message_bytes& message,
                                                         std::span<const int> passed, bool opens_lease) {
    GAUDI_CHECK(send(message, passed));
    for (const auto deadline = clock::now() + settings_.answer_timeout;;) {
        if (auto answer = pop_answer(id))
            return std::move(*answer);
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now());
        if (left.count() <= 0) {
            const std::lock_guard guard(mutex_);
            // Another thread may have collected it since.
            if (auto answer = take_answer(id))
                return std::move(*answer);
            // The answer may still come: a lease in it would otherwise last as long as the connection.
            abandoned_.emplace(id, opens_lease);
            return tl::unexpected(error(errc::peer_silent, fmt::format("process {}, waited {} ms", owner_.pid,
                                                                       settings_.answer_timeout.count())));
        }
        // Waits in short steps: another thread may receive this request's answer from the socket.
        wait(std::min(left, std::chrono::milliseconds(10)));
    }
}

lease_word* owner_link::table() {
    return table_.load(std::memory_order_acquire);
}

result<void> owner_link::set_table(unique_fd descriptor) {
    const std::lock_guard guard(mutex_);
    // Several threads may have opened their first lease at the same time: one table serves all.
    if (table() != nullptr)
        return {};
    GAUDI_TRY(auto memory, shared_memory::of(std::move(descriptor), leases_per_client * sizeof(lease_word)));
    memory.drop_descriptor();
    table_memory_ = std::move(memory);
    // Never unmapped while this object lives: leases point into it and read it without a lock.
    table_.store(reinterpret_cast<lease_word*>(table_memory_.data()), std::memory_order_release);
    return {};
}

void owner_link::set_revoke_socket(unique_fd descriptor) {
    int domain = 0;
    socklen_t length = sizeof(domain);
    const auto service = broker::running();
    const std::lock_guard guard(mutex_);
    revoke_socket_ = fork_private_fd(std::move(descriptor));
    const bool socket = ::getsockopt(revoke_socket_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0;
    if (!service || !socket || domain != AF_UNIX || !service->watch_revoke_socket(revoke_socket_.get()))
        revoke_socket_.reset(); // the owner finds no reader, and does not wait for this importer
}

} // namespace gaudi
