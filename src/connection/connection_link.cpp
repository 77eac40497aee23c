// SPDX-License-Identifier: BSD-3-Clause
// What must exist before the first work request. Members are destroyed in reverse order: the queue pair
// before the registrations that it uses, those before their memory.
#include "src/connection/connection_link.hpp"

#include "src/error/try.hpp"
#include "src/os/internals.hpp"

#include <algorithm>
#include <random>

namespace gaudi {
namespace {

constexpr std::uint32_t wanted_segment = 512U << 10; // the slabs of both directions fit a processor's cache
constexpr std::uint64_t wanted_write = 1ULL << 30;
constexpr unsigned most_receives = credit::ring_words / 2 - 8; // a receive uses up to two words

connection_options bounded(connection_options options) {
    // The ring of credits must hold a word for everything that is posted: otherwise a new word would
    // overwrite one that the peer has not read.
    options.depth = std::clamp(options.depth, 16U, most_receives);
    options.operations = std::clamp(options.operations, 1U, 1U << 20);
    return options;
}

} // namespace

connection_link::connection_link(std::shared_ptr<gaudi::nic> through, stream joined,
                                 const connection_options& bounded)
    : opened_nic(std::move(through)), options(bounded), control(std::move(joined), bounded.deadline) {}

nic_core& connection_link::nic() const {
    return *core_of(*opened_nic);
}

result<std::unique_ptr<connection_link>>
connection_link::establish(const std::shared_ptr<gaudi::nic>& through, stream joined, role side,
                           const connection_options& options, time_point deadline) {
    if (!core_of(*through)->valid_in_this_process())
        return tl::unexpected(core_of(*through)->forked_error());
    auto link = std::make_unique<connection_link>(through, std::move(joined), bounded(options));
    GAUDI_CHECK(link->prepare());
    GAUDI_CHECK(link->shake_hands(side, deadline));
    return link;
}

result<void> connection_link::prepare() {
    GAUDI_TRY(memory, mapping::anonymous(sizeof(shared_words) + options.operations * sizeof(std::uint64_t)));
    words = reinterpret_cast<shared_words*>(memory.bytes().data());
    // Two registrations of one memory: the peer's key reaches the words that the peer writes and nothing
    // else.
    GAUDI_TRY(words_region, nic().register_host(memory.bytes()));
    GAUDI_TRY(credits_region,
              nic().register_host(std::as_writable_bytes(std::span(words->from_peer)), remote_access::write));
    GAUDI_TRY(pair, queue_pair::make(core_of(*opened_nic), options.depth, options.depth));
    return {};
}

hello connection_link::greeting() const {
    hello local;
    // A random first number: packets of an earlier queue pair with the same number are not taken for new
    // ones.
    local.endpoint = pair.endpoint(std::random_device{}() & 0xffffff);
    local.sleeps = options.wait == wait_mode::events;
    local.atomics = nic().atomics();
    const auto longest = std::max<std::uint64_t>(nic().port().max_msg_sz, 4096);
    local.segment = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted_segment, longest & ~4095ULL));
    local.longest_write = std::min<std::uint64_t>(wanted_write, longest & ~4095ULL);
    local.credits_address = reinterpret_cast<std::uintptr_t>(&words->from_peer);
    local.credits_key = credits_region->rkey;
    return local;
}

result<void> connection_link::shake_hands(role side, time_point deadline) {
    const auto& line = control.line();
    const auto local = greeting();
    if (side == role::client)
        GAUDI_CHECK(send_hello(line, local, deadline));
    const auto received = receive_hello(line, deadline);
    if (side == role::server) // also where the peer's hello is invalid: the peer then learns our version
        if (auto sent = send_hello(line, local, deadline); !sent && received)
            return sent;
    if (!received)
        return tl::unexpected(received.error());
    remote_hello = *received;
    segment = std::min(local.segment, remote_hello.segment);
    longest_write = std::min(local.longest_write, remote_hello.longest_write);
    atomics = local.atomics && remote_hello.atomics;
    result<void> joined;
    if (local.endpoint.ethernet != remote_hello.endpoint.ethernet)
        joined =
            tl::unexpected(error(errc::handshake_refused, "one side has InfiniBand, the other Ethernet"));
    else
        joined = pair.connect(local.endpoint, remote_hello.endpoint, options.timeout, options.retries);
    // Also after a failure, so that the peer reports this side's reason and not a timeout. Neither side posts
    // before both are ready: a request to a queue pair that cannot receive yet would use up its retries.
    GAUDI_CHECK(send_ready(line, joined ? "" : joined.error().message(), deadline));
    if (!joined)
        return joined;
    return receive_ready(line, deadline);
}

void connection_link::abandon() {
    pair.abandon();
    (void)words_region.release();
    (void)credits_region.release();
}

} // namespace gaudi
