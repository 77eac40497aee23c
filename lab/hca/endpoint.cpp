// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/endpoint.hpp"

#include "lab/hca/verbs.hpp"

namespace lab::hca {
bool has_unreported(const segment& owner, const shared_cq& cq, bool special_only) {
    const auto produced = cq.produced.load(std::memory_order_seq_cst), consumed = cq.consumed.load();
    auto at = cq.reported.load();
    if (produced - at > produced - consumed) // the program polled entries that no event reported
        at = consumed;
    for (; at != produced; ++at) {
        const auto& entry = entry_of(owner, cq, at);
        if (!special_only || entry.solicited != 0 || entry.status != IBV_WC_SUCCESS)
            return true;
    }
    return false;
}

producer_guard::producer_guard(const segment& owner, shared_cq& cq) : lock_(cq.producers) {
    if (!lock_.lock())
        return;
    // The previous holder died. Every entry that it counted in `produced` is complete, so publish them all.
    for (auto at = cq.consumed.load(); at != cq.produced.load(); ++at)
        publish(entry_of(owner, cq, at), at);
}

void signal(peer& owner, std::uint32_t index) {
    auto& cq = owner.memory()->cqs[index];
    if (cq.channel == no_index)
        return;
    cq.reported = cq.produced.load();
    if (owner.signal(cq.channel, std::uint64_t{cq.serial} << 32 | index)) {
        cq.signal_owed = 0;
        return;
    }
    cq.signal_owed = 1;
    owner.memory()->head.cq_attention = 1;
    owner.memory().ring();
}

void push(peer& owner, std::uint32_t index, const completion& entry) {
    auto& cq = owner.memory()->cqs[index];
    {
        const producer_guard guard(owner.memory(), cq);
        const auto produced = cq.produced.load(std::memory_order_relaxed);
        if (cq.overrun.load(std::memory_order_relaxed) != 0)
            return;
        if (produced - cq.consumed_seen >= cq.capacity)
            cq.consumed_seen = cq.consumed.load(std::memory_order_acquire);
        if (produced - cq.consumed_seen >= cq.capacity) {
            cq.overrun = 1;
            owner.memory()->head.cq_attention = 1;
            owner.memory().ring();
            return;
        }
        auto& place = entry_of(owner.memory(), cq, produced);
        fill(place, entry);
        if (cq.timestamps != 0)
            place.time_ns = now_ns();
        // Order: publish the entry, then read `armed`. The arming side stores `armed`, then checks for
        // entries. So at least one of the two sees the other's store.
        cq.produced.store(produced + 1,
                          cq.channel == no_index ? std::memory_order_release : std::memory_order_seq_cst);
        publish(place, produced);
    }
    if (cq.channel == no_index)
        return;
    auto armed = cq.armed.load(std::memory_order_seq_cst);
    const bool special = entry.solicited != 0 || entry.status != IBV_WC_SUCCESS;
    while (armed == anything || (armed == solicited_only && special)) {
        cq.signal_owed = 1; // if this process dies before it signals, the owner's guard thread does
        if (cq.armed.compare_exchange_weak(armed, nothing)) {
            signal(owner, index);
            break;
        }
        cq.signal_owed = 0;
    }
}

void call_attention(const endpoint& which, std::uint32_t attention_bits) {
    const auto index = index_of(which.qp->number);
    which.qp->attention.fetch_or(attention_bits);
    which.memory()->head.qp_attention[index / 64].fetch_or(1ULL << (index % 64));
    which.memory().ring();
}

void break_down(const endpoint& which, std::uint32_t attention_bits) {
    auto state = which.qp->state.load();
    while (state != IBV_QPS_ERR && state != IBV_QPS_RESET && state != IBV_QPS_INIT)
        if (which.qp->state.compare_exchange_weak(state, IBV_QPS_ERR)) {
            // If this process dies before this call, the owner's guard thread flushes the queue pair.
            call_attention(which, attention_bits | needs_flush);
            return;
        }
}

} // namespace lab::hca
