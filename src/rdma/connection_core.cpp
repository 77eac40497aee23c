// SPDX-License-Identifier: BSD-3-Clause
// A connection's operations from their start to their end, its waiting, and its own end.
#include "src/rdma/connection_core.hpp"

#include "src/error/try.hpp"
#include "src/os/byte_order.hpp"
#include "src/rdma/staging_source.hpp"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <poll.h>
#include <random>
#include <sched.h>

namespace gaudi {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto look_every = milliseconds(1);
constexpr auto longest_sleep = milliseconds(100);
constexpr auto copy_glance = std::chrono::microseconds(100);
constexpr auto farewell = milliseconds(1000);
constexpr unsigned polls_before_sleep = 32, polls_before_yield = 4096, polls_between_clocks = 64;

constexpr std::size_t most_heard = std::size_t{64} << 20;

std::atomic<std::uint64_t> next_holder{1};

std::size_t bytes_held_by(const frame& kept) {
    return sizeof(kept) + kept.body.size();
}

// What the peer did not offer is not tried: its NIC would refuse it and break the connection.
result<void> check_rights(const transfer_request& wanted) {
    if (wanted.remote == nullptr)
        return {};
    const auto needed = wanted.kind == transfer_kind::write  ? remote_access::write
                        : wanted.kind == transfer_kind::read ? remote_access::read
                                                             : remote_access::atomic;
    if (allows(wanted.remote->rights, needed))
        return {};
    return tl::unexpected(
        error(errc::remote_access,
              fmt::format("{} of {} bytes at {:#x}, which the peer offered for: {}", name_of(needed),
                          wanted.remote->length, wanted.remote->address, name_of(wanted.remote->rights))));
}

} // namespace

connection_core::connection_core(std::shared_ptr<nic> card, control_channel control,
                                 const connection_options& options)
    : card_(std::move(card)), options_(options), control_(std::move(control)),
      holder_(next_holder.fetch_add(1)), first_sequence_(std::random_device{}() & 0xffffff),
      operations_(options.operations), initiated_(options.operations), receives_(options.operations),
      at_send_queue_(options.depth), at_receive_queue_(options.depth) {
    free_slots_.reserve(options.operations);
    for (unsigned i = options.operations; i > 0; --i)
        free_slots_.push_back(i - 1);
}

connection_core::~connection_core() {
    if (!card_->core()->ours()) {
        pair_.abandon();
        (void)words_region_.release();
        (void)grants_region_.release();
        for (auto& each : stagings_)
            (void)each.release(); // the device is the parent's as well
        for (auto& each : lenders_)
            (void)each.release();
        return;
    }
    close();
}

result<staging*> connection_core::staging_for(const local_region& region) {
    const auto& engine = region.staged_from()->engine();
    for (const auto& each : stagings_)
        if (each->memory().serves(engine))
            return each.get();
    GAUDI_TRY(auto made, staging::make(*card_->core(), engine, segment_));
    return stagings_.emplace_back(std::move(made)).get();
}

result<std::uint32_t> connection_core::start(const transfer_request& wanted) {
    if (failure_)
        return tl::unexpected(*failure_);
    if (!card_->core()->ours())
        return tl::unexpected(card_->core()->forked_error());
    if (wanted.local != nullptr && wanted.remote != nullptr &&
        wanted.local->length() != wanted.remote->length)
        return tl::unexpected(
            error(errc::length_mismatch, fmt::format("{} bytes here, {} bytes there", wanted.local->length(),
                                                     wanted.remote->length)));
    GAUDI_CHECK(check_rights(wanted));
    const bool lent_by_peer = wanted.remote != nullptr && wanted.remote->way == memory_way::staged;
    const bool atomic = wanted.kind == transfer_kind::fetch_add || wanted.kind == transfer_kind::compare_swap;
    if (atomic && !atomics_)
        return tl::unexpected(error(errc::atomics_absent, fmt::format("between here and {}", peer())));
    if (atomic && lent_by_peer)
        return tl::unexpected(error(errc::remote_staged, "an atomic operation on staged memory of the peer"));
    if (atomic && wanted.remote != nullptr && (wanted.remote->length < 8 || wanted.remote->address % 8 != 0))
        return tl::unexpected(
            error(errc::length_mismatch,
                  fmt::format("an atomic operation on {} bytes at {:#x}: it takes 8 aligned bytes",
                              wanted.remote->length, wanted.remote->address)));
    if (free_slots_.empty())
        progress();
    if (free_slots_.empty())
        return tl::unexpected(
            error(errc::too_many_operations, fmt::format("{} under way to {}", options_.operations, peer())));
    staging* stage = nullptr;
    if (wanted.local != nullptr && wanted.local->way() == memory_way::staged) {
        GAUDI_TRY(stage, staging_for(*wanted.local));
        report_.why_staged = wanted.local->reason();
    }
    const auto slot = free_slots_.back();
    free_slots_.pop_back();
    auto& made = operations_[slot];
    made = {};
    made.kind = wanted.kind;
    made.state = state::pending;
    made.stage = stage;
    made.immediate = wanted.immediate;
    made.operand = wanted.operand;
    made.compare = wanted.compare;
    if (wanted.local != nullptr) {
        made.way = wanted.local->way();
        made.lease = wanted.local->lease();
        made.address = wanted.local->address();
        made.length = wanted.local->length();
        made.local_key = wanted.local->local_key();
    }
    if (lent_by_peer && made.length != 0) {
        made.by_lending = true;
        made.way = memory_way::staged;
        made.serial = ++serials_ & 0xffffffff;
        if (stage == nullptr)
            report_.why_staged = "the peer's memory is staged";
    }
    if (wanted.remote != nullptr) {
        made.remote_address = wanted.remote->address;
        made.remote_key = wanted.remote->key;
    }
    if (wanted.kind == transfer_kind::receive) {
        receives_.push(slot);
        advance_receives();
        tell_grants();
    } else {
        initiated_.push(slot);
        advance_initiated();
    }
    // The first of a burst goes at once, its followers together.
    if (at_send_queue_.size() == chained_)
        flush();
    return slot;
}

bool connection_core::done(std::uint32_t slot) {
    if (operations_[slot].state != state::finished)
        progress();
    return operations_[slot].state == state::finished;
}

result<completion> connection_core::wait(std::uint32_t slot, milliseconds limit) {
    const auto& waited = operations_[slot];
    const auto deadline = steady_clock::now() + limit;
    if (!card_->core()->ours())
        return tl::unexpected(card_->core()->forked_error());
    unsigned polls = 0; // without anything happening
    for (unsigned turns = 0; waited.state != state::finished; ++turns) {
        polls = progress() != 0 ? 0 : polls + 1;
        if (turns % polls_between_clocks == 0 && steady_clock::now() >= deadline &&
            waited.state != state::finished)
            return tl::unexpected(
                error(errc::wait_timeout, fmt::format("{} ms for {}", limit.count(), peer())));
        if (options_.wait == wait_mode::events && polls > polls_before_sleep)
            sleep_until(deadline);
        else if (polls > polls_before_yield)
            ::sched_yield();
    }
    if (waited.failure)
        return tl::unexpected(*waited.failure);
    return waited.outcome;
}

void connection_core::drop(std::uint32_t slot) {
    operations_[slot].dropped = true;
    if (operations_[slot].state == state::finished) {
        operations_[slot].state = state::unused;
        free_slots_.push_back(slot);
    }
}

std::size_t connection_core::progress() {
    if (failure_ || !card_->core()->ours())
        return 0;
    const auto happened = collect() + collect_copies() + serve_lenders();
    if (!failure_)
        advance();
    if (happened == 0 && !failure_) {
        const bool expecting =
            options_.wait == wait_mode::events ||
            (!initiated_.empty() && operations_[initiated_.front()].by_lending) ||
            std::any_of(lenders_.begin(), lenders_.end(), [](const auto& each) { return each->busy(); });
        if (const auto now = steady_clock::now(); expecting || now - last_look_ >= look_every) {
            last_look_ = now;
            return look_at_control();
        }
    }
    return happened;
}

bool connection_core::look_after() {
    progress();
    while (!failure_ && look_at_control() != 0) {
    }
    return !failure_;
}

std::size_t connection_core::look_at_control() {
    auto frames = control_.receive();
    if (!frames) {
        peer_ended(frames.error());
        return 0;
    }
    for (auto& each : *frames)
        if (!failure_ && !handle(each))
            fail({errc::handshake_refused, fmt::format("{} sent a frame of kind {} that makes no sense",
                                                       peer(), static_cast<int>(each.kind))});
    return frames->size();
}

// False where it makes no sense.
bool connection_core::handle(frame& received) {
    switch (received.kind) {
    case frame_kind::grants:
        take_grants(received.body);
        return true;
    case frame_kind::goodbye: {
        const std::string reason(reinterpret_cast<const char*>(received.body.data()), received.body.size());
        peer_ended({errc::peer_gone, reason.empty() ? fmt::format("{} closed the connection", peer())
                                                    : fmt::format("{} gave up: {}", peer(), reason)});
        return true;
    }
    case frame_kind::ask: {
        const auto words = ask_frame::decode(received.body);
        if (words)
            asked(*words);
        return words.has_value();
    }
    case frame_kind::lend: {
        const auto words = lend_frame::decode(received.body);
        if (words)
            lent(*words);
        return words.has_value();
    }
    case frame_kind::back: {
        const auto words = back_frame::decode(received.body);
        if (words)
            returned(*words);
        return words.has_value();
    }
    case frame_kind::over: {
        const auto words = over_frame::decode(received.body);
        if (words)
            ended(*words);
        return words.has_value();
    }
    default:
        heard_bytes_ += bytes_held_by(received);
        heard_.push_back(std::move(received));
        if (heard_bytes_ > most_heard)
            fail({errc::handshake_refused,
                  fmt::format("{} sent {} notes and offers that nobody has asked for, more "
                              "than {} MiB",
                              peer(), heard_.size(), most_heard >> 20)});
        return true;
    }
}

void connection_core::take_grants(std::span<const std::byte> body) {
    unpacker in(body);
    while (in.rest().size() >= 16) {
        const auto index = in.get<std::uint64_t>();
        words_->grants_from_peer[index % grant::ring_words] = in.get<std::uint64_t>();
    }
}

void connection_core::sleep_until(time_point deadline) {
    pair_.arm();
    if (progress() != 0 || failure_)
        return;
    std::array<pollfd, 2> waiting{{{pair_.descriptor(), POLLIN, 0}, {control_.descriptor(), POLLIN, 0}}};
    // The copy engine's own descriptor is no help: other connections of the device wait for the same one.
    const bool copying =
        std::any_of(stagings_.begin(), stagings_.end(), [](const auto& each) { return each->copying(); }) ||
        std::any_of(lenders_.begin(), lenders_.end(), [](const auto& each) { return each->copying(); });
    const auto left = std::chrono::milliseconds(milliseconds_until(deadline));
    const auto limit = copying ? std::chrono::nanoseconds(copy_glance)
                               : std::chrono::nanoseconds(std::min(left, longest_sleep));
    const timespec relative{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
    (void)::ppoll(waiting.data(), waiting.size(), &relative, nullptr);
    pair_.drain_events();
}

result<void> connection_core::tell(frame_kind kind, std::span<const std::byte> body) {
    if (failure_)
        return tl::unexpected(*failure_);
    if (!card_->core()->ours())
        return tl::unexpected(card_->core()->forked_error());
    if (body.size() > control_channel::longest_body)
        return tl::unexpected(
            error(errc::message_too_long, fmt::format("a note of {} bytes; it takes up to {}", body.size(),
                                                      control_channel::longest_body)));
    auto sent = control_.send(kind, body, steady_clock::now() + options_.deadline);
    if (!sent) // perhaps half a frame: the peer could not read what follows
        fail(sent.error());
    return sent;
}

result<std::vector<std::byte>> connection_core::hear(frame_kind kind, milliseconds limit) {
    if (!card_->core()->ours())
        return tl::unexpected(card_->core()->forked_error());
    const auto deadline = steady_clock::now() + limit;
    for (;;) {
        const auto found =
            std::find_if(heard_.begin(), heard_.end(), [&](const frame& each) { return each.kind == kind; });
        if (found != heard_.end()) {
            heard_bytes_ -= bytes_held_by(*found);
            auto body = std::move(found->body);
            heard_.erase(found);
            return body;
        }
        if (failure_)
            return tl::unexpected(*failure_);
        if (steady_clock::now() >= deadline)
            return tl::unexpected(
                error(errc::wait_timeout, fmt::format("no word from {} in {} ms", peer(), limit.count())));
        // Notes are no matter of microseconds, but the peer's transfers may need us meanwhile.
        if (progress() == 0) {
            if (look_at_control() == 0 && !failure_)
                sleep_until(std::min(deadline, steady_clock::now() + milliseconds(1)));
        }
    }
}

void connection_core::close() {
    if (closing_ || !card_->core()->ours())
        return;
    closing_ = true;
    if (!failure_) {
        const auto deadline = steady_clock::now() + farewell;
        flush();
        while (!failure_ && !at_send_queue_.empty() && steady_clock::now() < deadline)
            progress();
        if (!failure_) {
            (void)control_.send(frame_kind::goodbye, {}, deadline);
            end_operations({errc::peer_gone, fmt::format("the connection to {} was closed here", peer())});
        }
    }
}

void connection_core::fail(const error& why) {
    const auto& words = why.observed(); // the peer puts it into an error of its own
    (void)control_.send(frame_kind::goodbye,
                        std::as_bytes(std::span(words).first(std::min<std::size_t>(words.size(), 1000))),
                        steady_clock::now());
    end_operations(why);
}

void connection_core::peer_ended(const error& why) {
    // What it sent before it went has arrived already, or is on its way from a slab to the device.
    const auto landing = [this] {
        return std::any_of(stagings_.begin(), stagings_.end(),
                           [](const auto& each) { return each->landing(); });
    };
    while (!failure_ && (collect() + collect_copies() != 0 || landing())) {
    }
    if (!failure_)
        end_operations(why);
}

void connection_core::end_operations(const error& why) {
    failure_ = why;
    // Nobody may touch an operation's memory any more when it is called finished.
    pair_.destroy();
    for (const auto& each : stagings_)
        each->settle();
    for (const auto& each : lenders_)
        each->settle();
    offers_.clear();
    for (std::uint32_t slot = 0; slot < operations_.size(); ++slot)
        if (auto& each = operations_[slot]; each.state == state::pending) {
            each.failure = why;
            each.lease.reset();
            each.state = state::finished;
            if (each.dropped)
                drop(slot);
        }
}

} // namespace gaudi
