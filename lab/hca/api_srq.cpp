// SPDX-License-Identifier: BSD-3-Clause
// Shared receive queues.
#include "lab/hca/exported.hpp"
#include "lab/hca/receive.hpp"

#include <bit>

namespace lab::hca {
namespace {

answer<ibv_srq*> make_srq(ibv_pd* pd, void* cookie, ibv_srq_attr& asked) {
    auto& where = context::of(pd->context);
    auto& home = *where.home;
    const auto& limits = where.hca->description;
    if (!home.present() || asked.max_wr == 0 || asked.max_wr > limits.max_qp_wr ||
        asked.max_sge > limits.max_sge)
        return tl::unexpected(EINVAL);
    if (home.srqs_made.fetch_add(1) >= limits.max_srq) {
        home.srqs_made.fetch_sub(1);
        return tl::unexpected(ENOMEM);
    }
    const auto place = home.srq_places.take();
    const auto fail = [&](int error) {
        if (place)
            home.srq_places.release(*place);
        home.srqs_made.fetch_sub(1);
        return tl::unexpected(error);
    };
    if (!place)
        return fail(ENOMEM);
    auto& srq = home.own()->srqs[*place];
    if (const auto claimed = home.own().claim(&srq, sizeof(srq)); !claimed)
        return fail(claimed.error());
    asked.max_sge = std::max(asked.max_sge, 1U);
    auto& queue = srq.queue;
    queue.granted = asked.max_wr;
    queue.capacity = std::bit_ceil(asked.max_wr);
    queue.max_entries = asked.max_sge;
    queue.stride = static_cast<std::uint32_t>(
        (sizeof(receive_request) + asked.max_sge * sizeof(scatter_entry) + 63) / 64 * 64);
    queue.posted = queue.done = queue.released = 0;
    const auto ring = home.own().allocate(std::uint64_t{queue.capacity} * queue.stride);
    if (!ring)
        return fail(ring.error());
    queue.ring = *ring;
    srq.device = where.hca->index;
    srq.pd = protection_domain::of(pd).id;
    srq.limit = srq.limit_event = srq.senders_wait = 0; // only ibv_modify_srq arms a limit
    auto receive_queue = make_zeroed<shared_receive_queue>();
    receive_queue->home = &home;
    receive_queue->index = *place;
    receive_queue->srq = &srq;
    receive_queue->seen.context = pd->context;
    receive_queue->seen.srq_context = cookie;
    receive_queue->seen.pd = pd;
    receive_queue->seen.handle = *place;
    ::pthread_mutex_init(&receive_queue->seen.mutex, nullptr);
    ::pthread_cond_init(&receive_queue->seen.cond, nullptr);
    protection_domain::of(pd).users.fetch_add(1);
    const std::lock_guard guard(home.objects);
    receive_queue->serial = home.next_serial++;
    home.srqs[*place] = receive_queue.get();
    srq.in_use.store(1, std::memory_order_release);
    return &receive_queue.release()->seen;
}

ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex* asked) {
    const auto refuse = [](int error) { return failure<ibv_srq*>(error, answers::with_errno); };
    const bool basic = (asked->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0 || asked->srq_type == IBV_SRQT_BASIC;
    if (!basic ||
        (asked->comp_mask & ~static_cast<std::uint32_t>(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD)) != 0)
        return refuse(EOPNOTSUPP); // XRC, tag matching
    if ((asked->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || asked->pd == nullptr)
        return refuse(EINVAL);
    const auto made = make_srq(asked->pd, asked->srq_context, asked->attr);
    return made ? *made : refuse(made.error());
}

} // namespace

void fill_srq_operations(verbs_context& context) {
    context.create_srq_ex = [](ibv_context* handle, ibv_srq_init_attr_ex* asked) {
        return call<ibv_srq*>(
            "ibv_create_srq_ex", answers::with_errno, [&] { return create_srq_ex(handle, asked); }, handle,
            asked);
    };
}

} // namespace lab::hca

VERB(ibv_srq*, ibv_create_srq, (ibv_pd * pd, ibv_srq_init_attr* asked), (pd, asked), {
    const auto made = make_srq(pd, asked->srq_context, asked->attr);
    return made ? *made : fails(made.error());
})

VERB(int, ibv_modify_srq, (ibv_srq * handle, ibv_srq_attr* values, int mask), (handle, values, mask), {
    auto& srq = *shared_receive_queue::of(handle).srq;
    if (!shared_receive_queue::of(handle).home->present())
        return fails(EINVAL);
    if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
        return fails(EINVAL);
    if ((mask & IBV_SRQ_MAX_WR) != 0)
        return fails(EOPNOTSUPP); // no resizing; the device capabilities say so
    if ((mask & IBV_SRQ_LIMIT) != 0) {
        if (values->srq_limit > srq.queue.granted)
            return fails(EINVAL);
        const receive_queue_guard guard(shared_receive_queue::of(handle).home->own(), srq.queue);
        srq.limit = values->srq_limit;
    }
    return 0;
})

VERB(int, ibv_query_srq, (ibv_srq * handle, ibv_srq_attr* into), (handle, into), {
    const auto& srq = *shared_receive_queue::of(handle).srq;
    *into = {srq.queue.granted, srq.queue.max_entries, srq.limit.load()};
    return 0;
})

VERB(int, ibv_destroy_srq, (ibv_srq * handle), (handle), {
    auto& srq = shared_receive_queue::of(handle);
    auto& home = *srq.home;
    if (srq.users.load() != 0)
        return fails(EBUSY);
    if (home.present()) {
        {
            const std::lock_guard guard(home.objects);
            home.srqs[srq.index] = nullptr;
            srq.srq->in_use = 0;
        }
        ::pthread_mutex_lock(&handle->mutex);
        while (handle->events_completed != srq.events_read)
            ::pthread_cond_wait(&handle->cond, &handle->mutex);
        ::pthread_mutex_unlock(&handle->mutex);
        home.own().release(srq.srq->queue.ring);
        home.srq_places.release(srq.index);
        home.srqs_made.fetch_sub(1);
    }
    protection_domain::of(handle->pd).users.fetch_sub(1);
    delete &srq;
    return 0;
})
