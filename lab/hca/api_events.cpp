// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous events.
#include "lab/hca/exported.hpp"

#include <unistd.h>

namespace lab::hca {
namespace {

// Fills the event if its object still exists, and counts it as an event that must be acknowledged.
bool fill(process& home, const async_record& record, ibv_async_event& into) {
    const std::lock_guard guard(home.objects);
    const auto count = [](auto& handle, std::uint32_t& read) {
        ::pthread_mutex_lock(&handle.mutex);
        ++read;
        ::pthread_mutex_unlock(&handle.mutex);
        return true;
    };
    into.event_type = static_cast<ibv_event_type>(record.type);
    switch (into.event_type) {
    case IBV_EVENT_CQ_ERR: {
        auto* cq = home.cqs[record.object];
        if (cq == nullptr || cq->cq->serial != record.serial)
            return false;
        into.element.cq = cq->handle();
        return count(cq->seen, cq->async_events_read);
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_SRQ_ERR: {
        auto* srq = home.srqs[record.object];
        if (srq == nullptr || srq->serial != record.serial)
            return false;
        into.element.srq = &srq->seen;
        return count(srq->seen, srq->events_read);
    }
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
        into.element.port_num = static_cast<int>(record.port);
        return true;
    default: {
        auto* qp = home.qps[record.object];
        if (qp == nullptr || qp->serial != record.serial)
            return false;
        into.element.qp = qp->handle();
        return count(qp->seen.qp_base, qp->events_read);
    }
    }
}

template <typename Handle>
void acknowledge(Handle* handle, std::uint32_t Handle::*counter) {
    ::pthread_mutex_lock(&handle->mutex);
    ++(handle->*counter);
    ::pthread_cond_signal(&handle->cond);
    ::pthread_mutex_unlock(&handle->mutex);
}

} // namespace
} // namespace lab::hca

VERB_AS(with_minus_one, int, ibv_get_async_event, (ibv_context * handle, ibv_async_event* into),
        (handle, into), {
            for (;;) {
                async_record record{};
                const auto got = ::read(handle->async_fd, &record, sizeof(record));
                if (got != sizeof(record))
                    return got < 0 ? -1 : fails(EIO);
                if (fill(*context::of(handle).home, record, *into))
                    return 0;
            }
        })

extern "C" [[gnu::visibility("default")]] void ibv_ack_async_event(ibv_async_event* event) {
    using namespace lab::hca;
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        acknowledge(event->element.cq, &ibv_cq::async_events_completed);
        return;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_SRQ_ERR:
        acknowledge(event->element.srq, &ibv_srq::events_completed);
        return;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_DEVICE_FATAL:
        return;
    default:
        acknowledge(event->element.qp, &ibv_qp::events_completed);
    }
}
