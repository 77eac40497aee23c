// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/share_table.hpp"

#include <chrono>
#include <fmt/format.h>
#include <sys/random.h>

namespace gaudi {
namespace {

std::uint64_t new_secret() {
    std::uint64_t secret = 0;
    if (::getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
        secret = checksum64(&own_identity(), sizeof(process_identity)) ^
                 static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return secret != 0 ? secret : 1; // 0 means any secret
}

} // namespace

std::uint64_t share_table::add(const allocation_view& allocation, std::uint64_t offset, std::uint64_t length,
                               bool separate) {
    auto& entry = allocations_[{allocation.base.value(), allocation.length}];
    if (entry.pieces.empty() || entry.generation != allocation.generation)
        entry = {
            allocation.base.value(), allocation.length, allocation.generation, allocation.device_index, {}};
    if (!separate)
        for (const auto& [secret, piece] : entry.pieces)
            if (!piece.separate && piece.offset == offset && piece.length == length)
                return secret;
    return entry.pieces.emplace(new_secret(), shared_piece{offset, length, separate, {}, 0, 0}).first->first;
}

result<const shared_allocation*> share_table::find(const handle_record& handle) const {
    if (const auto entry = allocations_.find({handle.base, handle.allocated});
        entry != allocations_.end() && entry->second.generation == handle.generation)
        if (const auto piece = entry->second.pieces.find(handle.secret);
            piece != entry->second.pieces.end() && piece->second.offset == handle.offset &&
            piece->second.length == handle.length)
            return &entry->second;
    return tl::unexpected(
        error(errc::handle_stale, fmt::format("{} bytes at {:#x}, generation {}", handle.allocated,
                                              handle.base, handle.generation)));
}

share_table::leased share_table::find(const lease_record& lease) {
    const auto entry = allocations_.find({lease.base, lease.length});
    if (entry == allocations_.end() || !entry->second.is_of(lease))
        return {};
    const auto piece = entry->second.pieces.find(lease.secret);
    if (piece == entry->second.pieces.end())
        return {};
    return {&entry->second, &piece->second};
}

std::vector<shared_allocation*> share_table::holding(device_address address) {
    std::vector<shared_allocation*> all;
    for (auto next = allocations_.upper_bound({address.value(), UINT64_MAX}); next != allocations_.begin();) {
        auto& entry = (--next)->second;
        if (address.value() - entry.base < entry.length)
            all.push_back(&entry);
        if (entry.generation != 0) // nothing that begins before an allocation reaches beyond its begin
            break;
    }
    return all;
}

bool share_table::any_in(device_address base, std::uint64_t length) const {
    const auto next = first_from(base);
    return next != allocations_.end() && next->second.base - base.value() < length;
}

bool share_table::revoke(device_address address, std::uint64_t secret) {
    bool any = false;
    for (auto* const entry : holding(address)) {
        if (secret == 0) {
            entry->pieces.clear();
            any = true;
        } else if (const auto piece = entry->pieces.find(secret);
                   piece != entry->pieces.end() && piece->second.separate) {
            entry->pieces.erase(piece);
            any = true;
        }
    }
    return any;
}

void share_table::lease_closed(const lease_record& closed, bool last_of_piece, bool last_of_allocation) {
    const auto entry = allocations_.find({closed.base, closed.length});
    if (entry == allocations_.end() || !entry->second.is_of(closed))
        return;
    auto& pieces = entry->second.pieces;
    if (const auto piece = pieces.find(closed.secret); last_of_piece && piece != pieces.end())
        piece->second.dmabuf.reset();
    if (last_of_allocation && pieces.empty()) // every handle was revoked
        allocations_.erase(entry);
}

std::vector<std::uint64_t> share_table::bases() const {
    std::vector<std::uint64_t> all;
    for (const auto& [where, each] : allocations_)
        all.push_back(each.base);
    return all;
}

} // namespace gaudi
