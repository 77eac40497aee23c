// SPDX-License-Identifier: BSD-3-Clause
// The one thread that polls or waits drives everything: completions, copies of staged memory, frames of the
// peer. Whatever fails, at either side, ends in end(), after which no NIC and no engine accesses the caller's
// memory.
#include "src/connection/connection_core.hpp"

#include "src/error/try.hpp"
#include "src/os/deadline.hpp"
#include "src/os/internals.hpp"
#include "src/rdma/completion_status.hpp"
#include "src/rdma/staging_source.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <utility>

namespace gaudi {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Reading the TCP stream is a system call: a side that polls its NIC does it at most this often.
constexpr auto read_frames_every = milliseconds(1);
constexpr auto longest_sleep = milliseconds(100);
// How long a sleeping thread leaves copies of staged memory unasked (gotcha V11).
constexpr auto copy_poll_interval = std::chrono::microseconds(100);
constexpr auto close_limit = milliseconds(1000);
constexpr auto flush_limit = milliseconds(100); // after a failure; a flush takes microseconds
constexpr unsigned polls_before_sleep = 32, polls_before_yield = 4096, polls_between_clocks = 64;

// Requests beyond the offered rights fail here: the peer's NIC would refuse them and break the connection.
result<void> check_rights(const transfer_request& request) {
    if (request.remote == nullptr)
        return {};
    const auto needed = request.kind == transfer_kind::write  ? remote_access::write
                        : request.kind == transfer_kind::read ? remote_access::read
                                                              : remote_access::atomic;
    if (allows(request.remote->rights, needed))
        return {};
    return tl::unexpected(
        error(errc::remote_access,
              fmt::format("{} of {} bytes at {:#x}, which the peer offered for: {}", name_of(needed),
                          request.remote->length, request.remote->address, name_of(request.remote->rights))));
}

// Decodes a frame and passes its content to the handler.
template <typename Frame, typename Part>
result<void> dispatch(const frame& received, Part& part, result<void> (Part::*handler)(const Frame&)) {
    // The peer chooses every byte: a frame of the wrong size ends the connection before any field is used.
    if (const auto content = decode_frame<Frame>(received.body))
        return (part.*handler)(*content);
    return tl::unexpected(
        error(errc::protocol_violated, fmt::format("a frame of kind {} with {} bytes",
                                                   static_cast<int>(received.kind), received.body.size())));
}

} // namespace

connection_core::connection_core(std::unique_ptr<connection_link> link)
    : link_(std::move(link)), operations_(link_->options.operations),
      flush_(link_->opened_nic, link_->options, operations_),
      offers_(link_->nic(), link_->control, link_->segment),
      peer_credits_(link_->words->from_peer, link_->segment), local_credits_(link_->words->to_peer),
      send_queue_(link_->pair.get(), link_->pair.sends(), peer()),
      receive_queue_(link_->pair.get(), link_->pair.receives(), peer(), link_->segment, operations_,
                     local_credits_, flush_),
      initiator_({link_->segment, link_->longest_write, link_->pair.longest_inline()},
                 {static_cast<std::uint64_t*>(link_->words->atomic_results), link_->words_region->lkey},
                 operations_, send_queue_, peer_credits_, link_->control, flush_) {}

connection_core::~connection_core() {
    // In a child of fork the queue pair, the keys and the copies in flight belong to the parent: destroying
    // any of them here would end the parent's connection.
    if (link_->nic().valid_in_this_process()) {
        close();
        return;
    }
    link_->abandon();
    stagings_.abandon();
    offers_.abandon();
}

result<void> connection_core::check_usable() const {
    if (failure_)
        return tl::unexpected(*failure_);
    if (!link_->nic().valid_in_this_process())
        return tl::unexpected(link_->nic().forked_error());
    return {};
}

result<void> connection_core::check(const transfer_request& request) const {
    const auto* local = request.local;
    const auto* remote = request.remote;
    // The NIC transfers the local length: beyond the offered range the peer's NIC would break the connection.
    if (local != nullptr && remote != nullptr && local->length() != remote->length)
        return tl::unexpected(error(errc::length_mismatch, fmt::format("{} bytes here, {} bytes there",
                                                                       local->length(), remote->length)));
    GAUDI_CHECK(check_rights(request));
    if (!request.atomic())
        return {};
    if (!link_->atomics)
        return tl::unexpected(error(errc::atomics_absent, fmt::format("between here and {}", peer())));
    // A NIC carries out an atomic operation in memory that it can address, and no NIC can address this.
    if (remote->path == memory_path::staged)
        return tl::unexpected(error(errc::remote_staged, "an atomic operation on staged memory of the peer"));
    if (remote->length < 8 || remote->address % 8 != 0)
        return tl::unexpected(
            error(errc::length_mismatch,
                  fmt::format("an atomic operation on {} bytes at {:#x}: it takes 8 aligned bytes",
                              remote->length, remote->address)));
    return {};
}

result<std::uint32_t> connection_core::start(const transfer_request& request) {
    GAUDI_CHECK(check_usable());
    GAUDI_CHECK(check(request));
    if (operations_.full()) {
        progress();
        GAUDI_CHECK(check_usable());
    }
    if (operations_.full())
        return tl::unexpected(error(errc::too_many_operations,
                                    fmt::format("{} outstanding to {}", operations_.size(), peer())));
    // Slabs are made at the first use of the device: a connection whose memory is all zero-copy pins none.
    staging* stage = nullptr;
    if (request.local != nullptr && request.local->path() == memory_path::staged) {
        GAUDI_TRY(stage, stagings_.find_or_make(link_->nic(), internals::staging(*request.local)->engine(),
                                                link_->segment));
    }
    const bool writes_local = request.kind == transfer_kind::receive || request.kind == transfer_kind::read;
    if (writes_local && request.local->path() == memory_path::zero_copy)
        GAUDI_CHECK(flush_.prepare());
    // From here on errors are reported by the operation, because a part of it may be posted already.
    const auto slot = operations_.add(request, stage);
    result<void> advanced;
    if (request.kind == transfer_kind::receive) {
        receive_queue_.add(slot);
        advanced = receive_queue_.advance().and_then([this] { return send_credits(); });
    } else {
        initiator_.add(slot);
        advanced = initiator_.advance();
    }
    // The first request of a burst is posted at once, the following ones together in a chain.
    if (advanced && send_queue_.idle())
        advanced = send_queue_.flush();
    if (!advanced)
        fail(advanced.error());
    return slot;
}

bool connection_core::done(std::uint32_t slot) {
    if (operations_[slot].state != operation::state::finished)
        progress();
    return operations_[slot].state == operation::state::finished;
}

result<int> connection_core::event_fd() {
    GAUDI_CHECK(check_usable());
    // The peer learned in the handshake whether this side sleeps: credits for a side that polls come by RDMA
    // Write, which makes no descriptor readable (gotcha V9).
    if (link_->options.wait != wait_mode::events)
        return tl::unexpected(
            error(errc::setting_malformed,
                  "a descriptor of a connection that polls: connect with wait_mode::events"));
    if (events_)
        return events_.descriptor();
    GAUDI_TRY(auto events, event_set::make("the descriptor of a connection"));
    for (const int fd : {link_->pair.descriptor(), link_->control.descriptor()})
        GAUDI_CHECK(events.add(fd, EPOLLIN));
    events_ = std::move(events);
    return events_.descriptor();
}

bool connection_core::arm() {
    if (failure_ || !events_ || !link_->nic().valid_in_this_process())
        return false;
    // Old events go first, then the queue is armed, then polled: a completion after the poll raises an event,
    // one before it is found by the poll.
    link_->pair.drain_events();
    link_->pair.arm();
    events_.discard();
    if (progress() != 0 || failure_)
        return false;
    // A timer wakes the descriptor while there are copies, whose end nothing announces.
    events_.set_timer(copying() ? copy_poll_interval : std::chrono::microseconds(0));
    return true;
}

result<completion> connection_core::wait(std::uint32_t slot, milliseconds limit) {
    const auto& waited = operations_[slot];
    // The clock is read neither before the first poll nor at every turn: it costs as much as a poll.
    std::optional<steady_clock::time_point> deadline; // set when the operation has to be waited for
    if (!link_->nic().valid_in_this_process())
        return tl::unexpected(link_->nic().forked_error());
    unsigned polls = 0; // without progress
    for (unsigned turns = 0; waited.state != operation::state::finished; ++turns) {
        polls = progress() != 0 ? 0 : polls + 1;
        if (waited.state == operation::state::finished)
            break;
        if (!deadline)
            deadline = deadline_after(limit);
        if (turns % polls_between_clocks == 0 && steady_clock::now() >= *deadline)
            return tl::unexpected(
                error(errc::wait_timeout, fmt::format("{} ms for {}", limit.count(), peer())));
        if (link_->options.wait == wait_mode::events && polls > polls_before_sleep)
            sleep_until(*deadline);
        else if (polls > polls_before_yield)
            ::sched_yield();
    }
    if (waited.failure)
        return tl::unexpected(*waited.failure);
    return waited.outcome;
}

std::size_t connection_core::progress() {
    if (failure_ || !link_->nic().valid_in_this_process())
        return 0;
    // The stream is read only where the NIC has nothing: the data path must not pay for it.
    auto happened = collect();
    if (happened)
        if (auto advanced = advance(); !advanced)
            happened = tl::unexpected(advanced.error());
    if (!happened) {
        fail(happened.error());
        return 0;
    }
    if (*happened != 0)
        return *happened;
    // Frames carry credits to a side that sleeps, and every step of an access to staged memory.
    const bool expecting =
        link_->options.wait == wait_mode::events || initiator_.awaits_frame() || offers_.busy();
    const auto now = steady_clock::now();
    if (!expecting && now - last_read_ < read_frames_every)
        return 0;
    last_read_ = now;
    return read_frames();
}

result<std::size_t> connection_core::collect() {
    GAUDI_TRY(const auto collected, collect_from_peer());
    GAUDI_TRY(const auto served, offers_.progress());
    return collected + served;
}

// What the peer has sent, up to the memory that it is for.
result<std::size_t> connection_core::collect_from_peer() {
    GAUDI_TRY(const auto completions, collect_completions());
    GAUDI_TRY(const auto flushed, flush_.progress());
    for (; !held_notes_.empty() && flush_.done(held_notes_.front().flush); held_notes_.pop_front())
        GAUDI_CHECK(inbox_.add(std::move(held_notes_.front().note), peer()));
    GAUDI_TRY(const auto delivered, stagings_.collect(operations_));
    return completions + flushed + delivered;
}

result<std::size_t> connection_core::collect_completions() {
    std::size_t all = 0;
    bool added = false;
    ibv_wc entries[16];
    // A bounded number, so that a busy peer cannot keep this side from posting and from reading frames.
    for (int rounds = 0; rounds < 4; ++rounds) {
        const int count = ::ibv_poll_cq(link_->pair.completions(), std::size(entries), entries);
        if (count < 0)
            return tl::unexpected(
                error(errc::connection_broken, fmt::format("ibv_poll_cq for {}", peer()), -count));
        for (const auto& entry : std::span(entries).first(static_cast<std::size_t>(count))) {
            // After one failure every further request of the queue pair is flushed: the first status is the
            // cause.
            if (entry.status != IBV_WC_SUCCESS)
                return tl::unexpected(failed_completion(entry.status, peer()));
            const bool received = (entry.wr_id & receive_queue::wr_id) != 0;
            // The message may tell that earlier writes of the peer are complete. One read serves all messages
            // that are collected together.
            if (received && !std::exchange(added, true))
                offers_.add_targets(flush_);
            GAUDI_CHECK(received ? receive_queue_.completed(entry) : initiator_.completed(entry.wr_id));
        }
        all += static_cast<std::size_t>(count);
        if (static_cast<std::size_t>(count) < std::size(entries))
            break;
    }
    return all;
}

result<void> connection_core::advance() {
    // Receives first: each one that is posted becomes a credit, which the same flush sends.
    GAUDI_CHECK(receive_queue_.advance());
    GAUDI_CHECK(initiator_.advance());
    GAUDI_CHECK(send_credits());
    return send_queue_.flush();
}

// By RDMA Write, or over TCP where the peer sleeps: only the stream wakes it.
result<void> connection_core::send_credits() {
    if (!local_credits_.due())
        return {};
    // A side that got no credit waits for ever, so that credits have entries of the send queue reserved for
    // them.
    while (!local_credits_.all_sent()) {
        auto [index, words] = local_credits_.next_run();
        if (link_->remote_hello.sleeps) {
            std::array<std::byte, 16 * 64> body;
            // Each word travels with its index, because frames have no place in the ring.
            words = words.first(std::min(words.size(), body.size() / 16));
            packer out(body);
            for (const auto word : words)
                out.put(index++).put(word);
            GAUDI_CHECK(link_->control.send(frame_kind::credits, std::span(body).first(words.size() * 16)));
        } else {
            if (!send_queue_.has_room_for_credits())
                return {};
            const auto offset = index % credit::ring_words * sizeof(std::uint64_t);
            auto& wr = send_queue_.append(
                {no_operation, static_cast<std::uint32_t>(words.size_bytes())},
                {reinterpret_cast<std::uintptr_t>(words.data()), link_->words_region->lkey});
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.wr.rdma.remote_addr = link_->remote_hello.credits_address + offset;
            wr.wr.rdma.rkey = link_->remote_hello.credits_key;
        }
        local_credits_.sent(words.size());
    }
    return {};
}

bool connection_core::catch_up() {
    progress();
    while (!failure_ && read_frames() != 0) {
    }
    return !failure_;
}

std::size_t connection_core::read_frames() {
    // Frames that arrived before the peer ended are handled first: a goodbye among them has the reason.
    auto frames = link_->control.receive();
    if (!frames) {
        peer_ended(frames.error());
        return 0;
    }
    for (auto& received : *frames)
        if (!failure_)
            if (auto handled = handle(received); !handled)
                fail(handled.error());
    return frames->size();
}

result<void> connection_core::handle(frame& received) {
    switch (received.kind) {
    // A word that the peer makes up harms the peer alone: its own receive is not ready then.
    case frame_kind::credits:
        store_credits(received.body);
        return {};
    case frame_kind::goodbye: {
        const std::string reason(reinterpret_cast<const char*>(received.body.data()), received.body.size());
        peer_ended({errc::peer_gone, reason.empty()
                                         ? fmt::format("{} closed the connection", peer())
                                         : fmt::format("{} closed the connection: {}", peer(), reason)});
        return {};
    }
    case frame_kind::access_request:
        return dispatch(received, offers_, &offer_table::access_requested);
    case frame_kind::slab_grant:
        return dispatch(received, initiator_, &initiator::slab_granted);
    case frame_kind::slab_return:
        return dispatch(received, offers_, &offer_table::slab_returned);
    case frame_kind::access_end:
        return dispatch(received, initiator_, &initiator::access_ended);
    case frame_kind::note:
        return keep_note(received);
    default:
        return inbox_.add(std::move(received), peer());
    }
}

// It may tell that earlier writes of the peer are complete.
result<void> connection_core::keep_note(frame& note) {
    offers_.add_targets(flush_);
    if (!flush_.busy() && held_notes_.empty())
        return inbox_.add(std::move(note), peer());
    held_notes_.push_back({flush_.last_added(), std::move(note)});
    return {};
}

void connection_core::store_credits(std::span<const std::byte> body) {
    unpacker in(body);
    while (in.rest().size() >= 16) {
        const auto index = in.get<std::uint64_t>();
        peer_credits_.store(index, in.get<std::uint64_t>());
    }
}

void connection_core::sleep_until(time_point deadline) {
    link_->pair.arm();
    if (progress() != 0 || failure_)
        return;
    std::array<pollfd, 2> waiting{
        {{link_->pair.descriptor(), POLLIN, 0}, {link_->control.descriptor(), POLLIN, 0}}};
    const auto left = milliseconds(milliseconds_until(deadline));
    const auto limit = copying() ? std::chrono::nanoseconds(copy_poll_interval)
                                 : std::chrono::nanoseconds(std::min(left, longest_sleep));
    const timespec relative{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
    (void)::ppoll(waiting.data(), waiting.size(), &relative, nullptr);
    link_->pair.drain_events();
}

// Waiting on the copy engine's descriptor does not work: all connections of the device share it, and each
// event wakes only one of them.
bool connection_core::copying() const {
    return stagings_.copying() || offers_.copying() || flush_.busy();
}

result<remote_region> connection_core::offer(const local_region& region, remote_access rights) {
    GAUDI_CHECK(check_usable());
    if (offer_table::opens_device(region, rights))
        GAUDI_CHECK(flush_.prepare());
    return offers_.offer(region, rights);
}

void connection_core::withdraw(const local_region& region) {
    // A message that arrived may tell of writes to this region, and may not have been polled yet.
    offers_.add_targets(flush_);
    offers_.withdraw(region);
}

result<void> connection_core::send_frame(frame_kind kind, std::span<const std::byte> body) {
    GAUDI_CHECK(check_usable());
    if (body.size() > control_channel::longest_body)
        return tl::unexpected(
            error(errc::message_too_long, fmt::format("a note of {} bytes; it takes up to {}", body.size(),
                                                      control_channel::longest_body)));
    // The peer cannot parse what follows half a frame: an error here ends the connection.
    auto sent = link_->control.send(kind, body);
    if (!sent)
        fail(sent.error());
    return sent;
}

result<std::vector<std::byte>> connection_core::receive_frame(frame_kind kind, milliseconds limit) {
    if (!link_->nic().valid_in_this_process())
        return tl::unexpected(link_->nic().forked_error());
    const auto deadline = deadline_after(limit);
    for (;;) {
        // Before the check for a failure: a note that arrived before the peer ended is still delivered.
        if (auto body = inbox_.take(kind))
            return std::move(*body);
        if (failure_)
            return tl::unexpected(*failure_);
        if (steady_clock::now() >= deadline)
            return tl::unexpected(error(
                errc::wait_timeout, fmt::format("no message from {} within {} ms", peer(), limit.count())));
        // A note may take milliseconds; meanwhile the peer's transfers may depend on progress at this side.
        if (progress() == 0 && read_frames() == 0 && !failure_)
            sleep_until(std::min(deadline, steady_clock::now() + milliseconds(1)));
    }
}

void connection_core::close() {
    if (closing_ || failure_ || !link_->nic().valid_in_this_process())
        return;
    closing_ = true;
    const auto deadline = steady_clock::now() + close_limit;
    if (auto flushed = send_queue_.flush(); !flushed)
        return fail(flushed.error());
    // The peer may wait for the last messages: destroying the queue pair would drop those not sent yet.
    while (!failure_ && !send_queue_.empty() && steady_clock::now() < deadline)
        progress();
    if (failure_)
        return;
    (void)link_->control.send(frame_kind::goodbye, {}, deadline);
    end({errc::peer_gone, fmt::format("the connection to {} was closed here", peer())});
}

void connection_core::fail(const error& why) {
    const auto& words = why.observed(); // the peer quotes it in its own error
    // With a deadline that has passed already: a peer that does not read must not delay the failure.
    (void)link_->control.send(
        frame_kind::goodbye, std::as_bytes(std::span(words).first(std::min<std::size_t>(words.size(), 1000))),
        steady_clock::now());
    // What arrived before the failure has arrived, although its flush may be in flight.
    const auto deadline = steady_clock::now() + flush_limit;
    while (flush_.busy() && steady_clock::now() < deadline)
        if (!flush_.progress())
            break;
    end(why);
}

void connection_core::peer_ended(const error& why) {
    // What the peer sent before it ended has arrived, or is still being copied from a slab to the device.
    for (;;) {
        const auto collected = collect_from_peer();
        if (!collected)
            return fail(collected.error());
        // Operations whose bytes are complete must succeed although the peer is gone.
        if (*collected == 0 && !stagings_.delivering() && !flush_.busy())
            return end(why);
    }
}

void connection_core::end(const error& why) {
    if (failure_)
        return;
    // First, so that whatever is called below finds the connection ended; only the first reason counts.
    failure_ = why;
    // The caller may reuse the memory of an operation once the operation has finished: neither a NIC nor a
    // copy engine may access it after this.
    link_->pair.destroy();
    flush_.end();
    stagings_.settle();
    offers_.settle();
    // Keys are valid on every queue pair of their protection domain: they end with the connection, not with
    // its object.
    offers_.clear();
    link_->credits_region.reset();
    // Last: a finished operation tells its caller that the memory is free to use.
    operations_.fail_pending(why);
}

} // namespace gaudi
