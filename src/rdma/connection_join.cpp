// SPDX-License-Identifier: BSD-3-Clause
// A connection's beginning: what it needs, and the handshake.
#include "src/rdma/connection_core.hpp"

#include "src/error/try.hpp"

#include <algorithm>

namespace gaudi {
namespace {

constexpr std::uint32_t wanted_segment = 512U << 10; // the slabs of both ways fit a cache, and go through it
constexpr std::uint64_t wanted_write = 1ULL << 30;
constexpr unsigned most_at_a_time = grant::ring_words / 2 - 8; // each receive may need two words

} // namespace

result<connection_core*> connection_core::join(const std::shared_ptr<nic>& card, stream joined, role side,
                                               const connection_options& options, time_point deadline) {
    if (!card->core()->ours())
        return tl::unexpected(card->core()->forked_error());
    auto bounded = options;
    bounded.depth = std::clamp(options.depth, 16U, most_at_a_time);
    bounded.operations = std::clamp(options.operations, 1U, 1U << 20);
    std::unique_ptr<connection_core, void (*)(connection_core*)> made(
        new connection_core(card, control_channel(stream()), bounded), [](auto* gone) { gone->release(); });
    const auto refuse = [&](const error& why) {
        made->failure_ = why; // nothing to say goodbye to
        return tl::unexpected(why);
    };
    made->control_ = control_channel(std::move(joined));
    if (auto ready = made->prepare(); !ready)
        return refuse(ready.error());
    if (auto met = made->shake_hands(side, deadline); !met)
        return refuse(met.error());
    return made.release();
}

result<void> connection_core::prepare() {
    GAUDI_TRY(memory_,
              mapping::anonymous(sizeof(shared_words) + options_.operations * sizeof(std::uint64_t)));
    words_ = reinterpret_cast<shared_words*>(memory_.bytes().data());
    GAUDI_TRY(words_region_, card_->core()->register_host(memory_.bytes()));
    GAUDI_TRY(grants_region_,
              card_->core()->register_host(std::as_writable_bytes(std::span(words_->grants_from_peer)),
                                           remote_access::write));
    GAUDI_TRY(pair_, queue_pair::make(card_->core(), options_.depth, options_.depth));
    return {};
}

hello connection_core::greeting() const {
    const auto& core = *card_->core();
    auto ours = pair_.greeting();
    ours.sleeps = options_.wait == wait_mode::events;
    ours.atomics = core.atomics();
    ours.first_sequence = first_sequence_;
    const auto longest = std::max<std::uint64_t>(core.port().max_msg_sz, 4096);
    ours.segment = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted_segment, longest & ~4095ULL));
    ours.longest_write = std::min<std::uint64_t>(wanted_write, longest & ~4095ULL);
    ours.grants_address = reinterpret_cast<std::uintptr_t>(words_->grants_from_peer);
    ours.grants_key = grants_region_->rkey;
    return ours;
}

result<void> connection_core::shake_hands(role side, time_point deadline) {
    const auto& line = control_.line();
    const auto ours = greeting();
    if (side == role::client)
        GAUDI_CHECK(send_hello(line, ours, deadline));
    const auto theirs = receive_hello(line, deadline);
    if (side == role::server) // also to one that we do not understand: it shall know whom it talks to
        if (auto sent = send_hello(line, ours, deadline); !sent && theirs)
            return sent;
    if (!theirs)
        return tl::unexpected(theirs.error());
    theirs_ = *theirs;
    segment_ = std::min(ours.segment, theirs_.segment);
    longest_write_ = std::min(ours.longest_write, theirs_.longest_write);
    atomics_ = ours.atomics && theirs_.atomics;
    result<void> joined;
    if (ours.ethernet != theirs_.ethernet)
        joined =
            tl::unexpected(error(errc::handshake_refused, "one side has InfiniBand, the other Ethernet"));
    else
        joined = pair_.join(ours, theirs_, options_.timeout, options_.retries);
    GAUDI_CHECK(send_ready(line, joined ? "" : joined.error().message(), deadline));
    if (!joined)
        return joined;
    return receive_ready(line, deadline);
}

} // namespace gaudi
