// SPDX-License-Identifier: BSD-3-Clause
// One-sided access to staged memory: what this side asks of the peer, and what it does for it.
#include "src/error/try.hpp"
#include "src/rdma/connection_core.hpp"
#include "src/rdma/registration_cache.hpp"
#include "src/rdma/staging_source.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace gaudi {

namespace {

bool same_bytes(const local_region& a, const local_region& b) {
    return a.address() == b.address() && a.length() == b.length() && a.way() == b.way() &&
           a.lease() == b.lease();
}

} // namespace

result<remote_region> connection_core::offer(const local_region& region, remote_access rights) {
    if (failure_)
        return tl::unexpected(*failure_);
    std::erase_if(offers_, [](const offered_region& each) { return !each.region.allocated(); });
    if (!region.allocated())
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("an offer of {} bytes at {:#x}: the buffer was freed",
                                                   region.length(), region.address())));
    const auto same = std::find_if(offers_.begin(), offers_.end(), [&](const offered_region& each) {
        return each.rights == rights && same_bytes(each.region, region);
    });
    if (region.way() != memory_way::staged) {
        if (same != offers_.end() && same->key.valid())
            return same->key.region();
        const auto cache = region.lease()->cache();
        GAUDI_TRY(auto key, cache ? cache->expose(region, rights, holder_)
                                  : tl::unexpected(error(errc::not_allocated,
                                                         "an offer of a region of a NIC that was closed")));
        offers_.push_back({region, rights, std::move(key), 0});
        return offers_.back().key.region();
    }
    if (rights == remote_access::none || !allows(remote_access::all, rights))
        return tl::unexpected(error(errc::rights_invalid, "an offer of staged memory"));
    const auto& engine = region.staged_from()->engine();
    const bool known = std::any_of(lenders_.begin(), lenders_.end(),
                                   [&](const auto& each) { return each->memory().serves(engine); });
    if (!known) {
        const auto send = [this](frame_kind kind, auto body) {
            return control_.send(kind, body, std::chrono::steady_clock::now() + options_.deadline);
        };
        const auto permitted = [this](const ask_frame& request) {
            return offered(request).map([](const auto*) {});
        };
        GAUDI_TRY(auto made, lender::make(*card_->core(), *region.staged_from(), segment_, send, permitted));
        lenders_.push_back(std::move(made));
    }
    const auto number = same != offers_.end() ? same->number : next_offer_++;
    if (same == offers_.end())
        offers_.push_back({region, rights, remote_key(), number});
    return remote_region{region.address(), region.length(), number, memory_way::staged, rights};
}

void connection_core::withdraw(const local_region& region) {
    for (const auto& each : lenders_)
        each->settle(); // copies that the peer caused end before the memory is the caller's alone
    std::erase_if(offers_, [&](const offered_region& each) { return same_bytes(each.region, region); });
}

std::size_t connection_core::serve_lenders() {
    std::size_t happened = 0;
    for (const auto& each : lenders_) {
        if (!each->busy() || failure_)
            continue;
        const auto went = each->progress();
        if (!went)
            fail(went.error());
        else
            happened += *went;
    }
    return happened;
}

void connection_core::returned(const back_frame& words) {
    for (const auto& each : lenders_)
        if (const auto taken = each->give_back(words); !taken)
            return fail(taken.error());
        else if (*taken)
            return;
    fail({errc::handshake_refused, fmt::format("{} gives back what was not lent", peer())});
}

// What the peer may touch now, or why not.
result<const connection_core::offered_region*> connection_core::offered(const ask_frame& words) const {
    const auto refuse = [](std::string why) {
        return tl::unexpected(error(errc::remote_access, std::move(why)));
    };
    const auto found = std::find_if(offers_.begin(), offers_.end(), [&](const offered_region& each) {
        return each.region.way() == memory_way::staged && each.number == words.key;
    });
    if (found == offers_.end())
        return refuse(fmt::format("no region with key {}", words.key));
    const auto& region = found->region;
    const auto offset = words.address - region.address();
    if (words.address < region.address() || offset > region.length() ||
        words.length > region.length() - offset || words.length == 0)
        return refuse(fmt::format("{} bytes at {:#x} of a region of {} at {:#x}", words.length, words.address,
                                  region.length(), region.address()));
    if (!allows(found->rights, words.writing ? remote_access::write : remote_access::read))
        return refuse(fmt::format("a {} of memory that was offered for: {}", words.writing ? "write" : "read",
                                  name_of(found->rights)));
    if (!region.allocated())
        return refuse(fmt::format("the buffer at {:#x} was freed", region.address()));
    return &*found;
}

void connection_core::asked(const ask_frame& words) {
    const auto refuse = [&](const std::string& why) {
        (void)tell(frame_kind::over, over_frame{words.id, why}.encode());
    };
    const auto found = offered(words);
    if (!found)
        return refuse(found.error().observed());
    for (const auto& each : lenders_)
        if (each->memory().serves((*found)->region.staged_from()->engine()) && !each->begin(words))
            refuse("asked for twice, or for too much at once");
}

std::uint64_t connection_core::identity_of(std::uint32_t slot) const {
    return operations_[slot].serial << 32 | slot;
}

void connection_core::lent(const lend_frame& words) {
    const bool wanted = !initiated_.empty() && words.id == identity_of(initiated_.front());
    const auto length = wanted ? operations_[initiated_.front()].length : 0;
    if (!wanted || words.bytes == 0 || words.bytes > segment_ || words.offset > length ||
        words.bytes > length - words.offset)
        return fail({errc::handshake_refused, fmt::format("{} lends what was not asked for", peer())});
    lends_.push_back(words);
}

void connection_core::ended(const over_frame& words) {
    const auto slot = static_cast<std::uint32_t>(words.id);
    if (slot >= operations_.size() || words.id != identity_of(slot) ||
        operations_[slot].state != state::pending)
        return fail({errc::handshake_refused, fmt::format("{} ends what was not asked for", peer())});
    operations_[slot].peer_is_done = true;
    if (!words.refusal.empty())
        operations_[slot].failure = error(errc::remote_access, fmt::format("{}: {}", peer(), words.refusal));
}

// Stays the first until the peer has said that all of it is done.
bool connection_core::give_lent(std::uint32_t slot) {
    auto& first = operations_[slot];
    const bool reading = first.kind == transfer_kind::read, staged = first.stage != nullptr;
    if (!first.begun) {
        first.begun = true;
        const ask_frame words{identity_of(slot), !reading, first.remote_key, first.remote_address,
                              first.length};
        if (!tell(frame_kind::ask, words.encode()))
            return false;
    }
    while (!lends_.empty() && staged && !reading && first.stage->can_fill()) {
        const auto words = lends_.front();
        lends_.pop_front();
        if (auto begun = first.stage->fill(slot, device_address(first.address + words.offset), words.bytes);
            !begun) {
            fail(begun.error());
            return false;
        }
        filling_lends_.push_back(words);
    }
    auto& ready = staged && !reading ? filling_lends_ : lends_;
    while (!ready.empty() && room_to_send()) {
        const auto words = ready.front();
        const auto part = part_of(slot, words.offset, words.bytes);
        if (!part)
            break;
        ready.pop_front();
        auto& request =
            next_request({slot, words.bytes, part->slab, words.offset, static_cast<int>(words.slab)}, *part);
        request.opcode = reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        request.wr.rdma.remote_addr = words.address;
        request.wr.rdma.rkey = words.key;
        first.given += words.bytes;
        ++first.outstanding;
    }
    return !failure_ && first.peer_is_done && (first.failure || first.given == first.length);
}

} // namespace gaudi
