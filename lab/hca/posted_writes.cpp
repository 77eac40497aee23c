// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/posted_writes.hpp"

#include "lab/hca/modes.hpp"
#include "lab/os/system.hpp"

#include <algorithm>
#include <cstring>
#include <infiniband/verbs.h>

namespace lab::hca {
namespace {

// The caller holds the lock.
void arrive_locked(process& here, posted_write& write) {
    const auto length = write.length.load(std::memory_order_relaxed);
    if (length == 0)
        return;
    if (const auto* view = here.hbm(write.gaudi, write.hbm_size); view != nullptr)
        std::memcpy(view->base + write.offset, write.bytes, length);
    write.length.store(0, std::memory_order_release);
}

template <typename Each>
void for_each_write(const segment& owner, Each&& each) {
    const auto used = owner->head.qps_used.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < used; ++i)
        for (auto& write : owner->qps[i].on_its_way)
            if (write.length.load(std::memory_order_acquire) != 0)
                each(owner->qps[i], write);
}

} // namespace

held_bytes::held_bytes(process& here, const endpoint& target, side& to, std::uint64_t length, bool own_read)
    : target_(target), write_(target.qp->on_its_way[own_read ? 1 : 0]) {
    if (posted_for_ns() == 0 || length == 0 || target.qp->type == IBV_QPT_UD)
        return;
    std::size_t last = 0;
    std::uint64_t before = 0; // the last byte's piece
    for (; last < to.pieces.size() && before + to.pieces[last].length < length; ++last)
        before += to.pieces[last].length;
    if (last == to.pieces.size() || to.pieces[last].where != piece::kind::hbm)
        return;
    auto& write = write_;
    const auto in_piece = length - before;
    length_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(in_piece, posted_write::most));
    const auto place = here.place_of(to.pieces[last].pointer() + (in_piece - length_));
    {
        const lock_guard guard(write.lock);
        arrive_locked(here, write);
        write.gaudi = place.gaudi;
        write.hbm_size = place.size;
        write.offset = place.offset;
    }
    to.pieces[last].length = in_piece - length_;
    to.pieces.resize(last + 1);
    to.length = length - length_;
    to.add(write.bytes, length_);
}

void held_bytes::copied(moved& sum) {
    if (length_ == 0)
        return;
    if (!sum.fine)
        return;
    sum.to_hbm += length_;
    {
        const lock_guard guard(write_.lock);
        write_.due_ns = now_ns() + posted_for_ns();
        write_.length.store(length_, std::memory_order_release);
    }
    target_.memory().ring();
}

void push_writes(process& here, const endpoint& reader, const side& memory) {
    if (posted_for_ns() == 0)
        return;
    for (const auto& part : memory.pieces)
        if (part.where == piece::kind::hbm) {
            const auto gaudi = here.place_of(part.pointer()).gaudi;
            for_each_write(reader.memory(), [&](const shared_qp& qp, posted_write& write) {
                if (qp.device != reader.qp->device || write.gaudi != gaudi)
                    return;
                const lock_guard guard(write.lock);
                arrive_locked(here, write);
            });
        }
}

void arrive(process& here, shared_qp& qp) {
    for (auto& write : qp.on_its_way) {
        const lock_guard guard(write.lock);
        arrive_locked(here, write);
    }
}

void arrive_at(process& home, std::uint32_t gaudi) {
    for_each_write(home.own(), [&](const shared_qp&, posted_write& write) {
        const lock_guard guard(write.lock);
        if (write.gaudi == gaudi)
            arrive_locked(home, write);
    });
}

std::uint64_t arrive_due(process& home) {
    auto next = UINT64_MAX;
    for_each_write(home.own(), [&](const shared_qp&, posted_write& write) {
        const lock_guard guard(write.lock);
        if (write.due_ns <= now_ns())
            arrive_locked(home, write);
        else if (write.length.load() != 0)
            next = std::min(next, write.due_ns);
    });
    return next;
}

} // namespace lab::hca
