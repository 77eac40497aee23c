// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/share_table.hpp"

#include <algorithm>
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
    auto& entry = allocations_[allocation.base.value()];
    if (entry.pieces.empty() || entry.generation != allocation.generation ||
        entry.length != allocation.length)
        entry = {
            allocation.base.value(), allocation.length, allocation.generation, allocation.device_index, {}};
    const auto same = [&](const auto& each) {
        return !separate && !each.second.separate && each.second.offset == offset &&
               each.second.length == length;
    };
    auto piece = std::find_if(entry.pieces.begin(), entry.pieces.end(), same);
    if (piece == entry.pieces.end())
        piece = entry.pieces.emplace(new_secret(), shared_piece{offset, length, separate, {}, 0, 0}).first;
    return piece->first;
}

result<const shared_allocation*> share_table::find(const handle_record& handle) const {
    if (const auto entry = allocations_.find(handle.base); entry != allocations_.end() &&
                                                           entry->second.generation == handle.generation &&
                                                           entry->second.length == handle.allocated)
        if (const auto piece = entry->second.pieces.find(handle.secret);
            piece != entry->second.pieces.end() && piece->second.offset == handle.offset &&
            piece->second.length == handle.length)
            return &entry->second;
    return tl::unexpected(
        error(errc::handle_stale, fmt::format("{} bytes at {:#x}, generation {}", handle.allocated,
                                              handle.base, handle.generation)));
}

share_table::leased share_table::find(const lease_record& lease) {
    const auto entry = allocations_.find(lease.base);
    if (entry == allocations_.end() || !entry->second.is_of(lease))
        return {};
    const auto piece = entry->second.pieces.find(lease.secret);
    if (piece == entry->second.pieces.end())
        return {};
    return {&entry->second, &piece->second};
}

const shared_allocation* share_table::holding(device_address address) const {
    auto next = allocations_.upper_bound(address.value());
    if (next == allocations_.begin() || address.value() - (--next)->first >= next->second.length)
        return nullptr;
    return &next->second;
}

bool share_table::any_in(device_address base, std::uint64_t length) const {
    const auto next = allocations_.lower_bound(base.value());
    return next != allocations_.end() && next->first - base.value() < length;
}

bool share_table::revoke(device_address address, std::uint64_t secret) {
    const auto* const held = holding(address);
    if (held == nullptr)
        return false;
    auto& pieces = allocations_.at(held->base).pieces;
    if (secret == 0) {
        pieces.clear();
        return true;
    }
    const auto piece = pieces.find(secret);
    if (piece == pieces.end() || !piece->second.separate)
        return false;
    pieces.erase(piece);
    return true;
}

void share_table::lease_closed(const lease_record& closed, bool last_of_piece, bool last_of_allocation) {
    const auto entry = allocations_.find(closed.base);
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
    for (const auto& [base, each] : allocations_)
        all.push_back(base);
    return all;
}

} // namespace gaudi
