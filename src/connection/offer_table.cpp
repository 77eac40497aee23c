// SPDX-License-Identifier: BSD-3-Clause
// What the peer may access. Registered memory needs no further check here, because the NIC checks the key;
// for staged memory this table is the check, for each request of the peer and for each part of it.
#include "src/connection/offer_table.hpp"

#include "src/error/try.hpp"
#include "src/os/internals.hpp"
#include "src/rdma/registration_cache.hpp"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>

namespace gaudi {
namespace {

std::atomic<std::uint64_t> next_holder{1};

std::optional<unsigned> device_at(std::uint64_t address) {
    return known_memory().device_of(device_address(address));
}

bool same_bytes(const local_region& a, const local_region& b) {
    return a.address() == b.address() && a.length() == b.length() && a.path() == b.path() &&
           internals::registration(a) == internals::registration(b);
}

} // namespace

offer_table::offer_table(const nic_core& nic, const control_channel& control, std::uint32_t segment)
    : nic_(nic), control_(control), segment_(segment), holder_(next_holder.fetch_add(1)) {}

result<remote_region> offer_table::offer(const local_region& region, remote_access rights) {
    // The keys of freed memory have ended already: only the entries are left.
    if (std::erase_if(offers_, [](const offered_region& entry) { return !entry.region.allocated(); }) != 0)
        targets_.reset();
    if (!region.allocated())
        return tl::unexpected(
            error(errc::not_allocated, fmt::format("an offer of {} bytes at {:#x}: the buffer was freed",
                                                   region.length(), region.address())));
    const auto existing = std::find_if(offers_.begin(), offers_.end(), [&](const offered_region& entry) {
        return entry.rights == rights && same_bytes(entry.region, region);
    });
    const auto* same = existing != offers_.end() ? &*existing : nullptr;
    if (region.path() == memory_path::staged)
        return offer_staged(region, rights, same);
    // Offering again registers nothing, and withdrawing once ends all of these offers.
    if (same != nullptr && same->key.valid())
        return same->key.region();
    const auto cache = internals::registration(region)->cache();
    if (!cache)
        return tl::unexpected(error(errc::not_allocated, "an offer of a region of a NIC that was closed"));
    // With a holder of its own: withdrawing here must not end the keys of other connections to the same
    // bytes.
    GAUDI_TRY(auto key, cache->expose(region, rights, holder_));
    offers_.push_back({region, rights, std::move(key), 0});
    targets_.reset();
    return offers_.back().key.region();
}

result<remote_region> offer_table::offer_staged(const local_region& region, remote_access rights,
                                                const offered_region* same) {
    // The NIC checks rights of registered memory; for staged memory no NIC does.
    if (rights == remote_access::none || !allows(remote_access::all, rights))
        return tl::unexpected(error(errc::rights_invalid, "an offer of staged memory"));
    const auto& source = *internals::staging(region);
    if (std::none_of(stagings_.begin(), stagings_.end(),
                     [&](const auto& entry) { return entry->memory().serves(source.engine()); })) {
        const auto send = [this](frame_kind kind, auto body) { return control_.send(kind, body); };
        const auto permitted = [this](const access_request& request) {
            return find(request).map([](const auto*) {});
        };
        GAUDI_TRY(auto staging, remote_staging::make(nic_, source, segment_, send, permitted));
        stagings_.push_back(std::move(staging));
    }
    const auto number = same != nullptr ? same->number : next_number_++;
    if (same == nullptr)
        offers_.push_back({region, rights, remote_key(), number});
    return remote_region{region.address(), region.length(), number, memory_path::staged, rights};
}

void offer_table::withdraw(const local_region& region) {
    settle();
    std::erase_if(offers_, [&](const offered_region& entry) { return same_bytes(entry.region, region); });
    targets_.reset();
}

void offer_table::add_targets(device_flush& flush) {
    if (!targets_) {
        targets_.emplace();
        for (const auto& [region, rights, key, number] : offers_)
            if (opens_device(region, rights) && region.allocated() && !has_target(region))
                targets_->push_back({region.address(), region.local_key(), internals::registration(region)});
    }
    for (const auto& target : *targets_)
        flush.add(target);
}

bool offer_table::has_target(const local_region& region) const {
    const auto device = device_at(region.address());
    return std::ranges::any_of(*targets_, [&](const flush_target& entry) {
        return entry.key == region.local_key() || (device && device == device_at(entry.address));
    });
}

result<const offer_table::offered_region*> offer_table::find(const access_request& request) const {
    const auto refuse = [](std::string why) {
        return tl::unexpected(error(errc::remote_access, std::move(why)));
    };
    const auto offered = std::find_if(offers_.begin(), offers_.end(), [&](const offered_region& entry) {
        return entry.region.path() == memory_path::staged && entry.number == request.key;
    });
    if (offered == offers_.end())
        return refuse(fmt::format("no region with key {}", request.key));
    const auto& region = offered->region;
    const auto offset = request.address - region.address();
    if (request.address < region.address() || offset > region.length() ||
        request.length > region.length() - offset || request.length == 0)
        return refuse(fmt::format("{} bytes at {:#x} of a region of {} at {:#x}", request.length,
                                  request.address, region.length(), region.address()));
    if (!allows(offered->rights, request.writing ? remote_access::write : remote_access::read))
        return refuse(fmt::format("a {} of memory that was offered for: {}",
                                  request.writing ? "write" : "read", name_of(offered->rights)));
    if (!region.allocated())
        return refuse(fmt::format("the buffer at {:#x} was freed", region.address()));
    return &*offered;
}

result<void> offer_table::access_requested(const access_request& request) {
    const auto refuse = [&](std::string why) {
        return control_.send(frame_kind::access_end, encode_frame(access_end{request.id, std::move(why)}));
    };
    // A refusal is an answer, not an error: a peer may use an offer that was just withdrawn.
    const auto offered = find(request);
    if (!offered)
        return refuse(offered.error().observed());
    const auto& engine = internals::staging((*offered)->region)->engine();
    for (const auto& staging : stagings_)
        if (staging->memory().serves(engine) && !staging->open_access(request))
            return refuse("requested twice, or more requests than this side takes at once");
    return {};
}

result<void> offer_table::slab_returned(const slab_return& returned) {
    for (const auto& staging : stagings_) {
        // The frame does not name the device: at most one staging has granted this slab to this access.
        GAUDI_TRY(const bool taken, staging->return_slab(returned));
        if (taken)
            return {};
    }
    return tl::unexpected(
        error(errc::protocol_violated,
              fmt::format("{} returned slab {}, which it does not have", control_.peer(), returned.slab)));
}

result<std::size_t> offer_table::progress() {
    std::size_t ended = 0;
    for (const auto& staging : stagings_)
        if (staging->busy()) {
            GAUDI_TRY(const auto count, staging->progress());
            ended += count;
        }
    return ended;
}

bool offer_table::busy() const {
    return std::any_of(stagings_.begin(), stagings_.end(), [](const auto& each) { return each->busy(); });
}

bool offer_table::copying() const {
    return std::any_of(stagings_.begin(), stagings_.end(), [](const auto& each) { return each->copying(); });
}

void offer_table::settle() {
    for (const auto& staging : stagings_)
        staging->settle();
}

void offer_table::abandon() {
    // Leaked, as in staging_set::abandon(): its copies belong to the parent.
    for (auto& staging : stagings_)
        (void)staging.release();
}

} // namespace gaudi
