// SPDX-License-Identifier: BSD-3-Clause
// Completion channels and completion queues.
#include "lab/hca/api_post.hpp"
#include "lab/hca/exported.hpp"
#include "lab/hca/scattered.hpp"

#include <bit>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lab::hca {
namespace {

void make_waitable(pthread_mutex_t& mutex, pthread_cond_t& condition) {
    ::pthread_mutex_init(&mutex, nullptr);
    ::pthread_cond_init(&condition, nullptr);
}

struct cq_request {
    std::uint32_t entries;
    void* cookie;
    ibv_comp_channel* channel;
    int vector;
    bool timestamps;
};

answer<completion_queue*> make_cq(ibv_context* handle, const cq_request& wanted) {
    auto& where = context::of(handle);
    auto& home = *where.home;
    if (!home.present() || wanted.entries == 0 || wanted.entries > where.hca->description.max_cqe ||
        wanted.vector < 0 || wanted.vector >= handle->num_comp_vectors)
        return tl::unexpected(EINVAL);
    if (home.cqs_made.fetch_add(1) >= where.hca->description.max_cq) {
        home.cqs_made.fetch_sub(1);
        return tl::unexpected(ENOMEM);
    }
    const auto place = home.cq_places.take();
    const auto fail = [&](int error) {
        if (place)
            home.cq_places.release(*place);
        home.cqs_made.fetch_sub(1);
        return tl::unexpected(error);
    };
    if (!place)
        return fail(ENOMEM);
    auto& cq = home.own()->cqs[*place];
    if (const auto claimed = home.own().claim(&cq, sizeof(cq)); !claimed)
        return fail(claimed.error());
    const auto capacity = std::bit_ceil(wanted.entries);
    const auto ring = home.own().allocate(std::uint64_t{capacity} * sizeof(completion));
    if (!ring)
        return fail(ring.error());
    cq.device = where.hca->index;
    cq.ring = *ring;
    cq.capacity = capacity;
    cq.channel = wanted.channel != nullptr ? completion_channel::of(wanted.channel).index : no_index;
    cq.timestamps = wanted.timestamps;
    cq.produced = cq.consumed = cq.armed = cq.overrun = cq.signal_owed = 0;
    cq.consumed_seen = 0;
    cq.reported = 0;
    auto queue = std::make_unique<completion_queue>();
    queue->home = &home;
    queue->index = *place;
    queue->cq = &cq;
    queue->ring = home.own().at<completion>(*ring);
    queue->awaited = queue->ring;
    queue->seen.context = handle;
    queue->seen.channel = wanted.channel;
    queue->seen.cq_context = wanted.cookie;
    queue->seen.handle = *place;
    queue->seen.cqe = static_cast<int>(capacity);
    make_waitable(queue->seen.mutex, queue->seen.cond);
    const std::lock_guard guard(home.objects);
    cq.serial = home.next_serial++;
    home.cqs[*place] = queue.get();
    if (wanted.channel != nullptr)
        ++wanted.channel->refcnt;
    cq.in_use.store(1, std::memory_order_release);
    return queue.release();
}

// Releases the queue place of the polled request.
void release_place(const endpoint& own, const completion& entry) {
    auto& qp = *own.qp;
    if (entry.of_send_queue != 0)
        qp.sq.released.store(entry.place + 1, std::memory_order_release);
    else if (qp.rq.receives_polled.store(entry.place, std::memory_order_relaxed); entry.of_srq != 0)
        own.memory()->srqs[qp.srq].queue.released.fetch_add(1, std::memory_order_release);
    else
        qp.rq.released.store(qp.rq.released.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// What polling does to the request's queue.
void finish(const completion_queue& cq, const completion& entry) {
    const endpoint own{cq.home->self().get(), &cq.home->own()->qps[index_of(entry.qp_number)]};
    copy_scattered(own, entry);
    release_place(own, entry);
}

void fill(ibv_wc& into, const completion& entry) {
    into.wr_id = entry.wr_id;
    into.status = static_cast<ibv_wc_status>(entry.status);
    into.opcode = static_cast<ibv_wc_opcode>(entry.opcode);
    into.vendor_err = entry.vendor_error;
    into.byte_len = entry.byte_count;
    into.imm_data = entry.immediate;
    into.qp_num = entry.qp_number;
    into.src_qp = entry.source_qp;
    into.wc_flags = entry.flags;
    into.pkey_index = 0;
    into.slid = entry.source_lid;
    into.sl = entry.service_level;
    into.dlid_path_bits = entry.path_bits;
}

// The caller holds the consumers' lock.
completion* next_of(completion_queue& cq, std::uint32_t consumed) {
    auto& entry = cq.ring[consumed & (cq.cq->capacity - 1)];
    return is_published(entry, consumed) ? &entry : nullptr;
}

// Takes no lock: a concurrent poller may make the answer wrong once.
bool is_empty(const completion_queue& cq) {
    return !is_published(*cq.awaited.load(std::memory_order_acquire),
                         cq.cq->consumed.load(std::memory_order_relaxed));
}

// Yields the processor after many empty polls: two pollers on one core would spend each other's time.
void found_nothing(completion_queue& cq) {
    constexpr std::uint32_t poll_burst = 4096;
    const auto polls = cq.empty_polls.load(std::memory_order_relaxed) + 1;
    cq.empty_polls.store(polls, std::memory_order_relaxed);
    if (polls % poll_burst == 0)
        ::sched_yield();
}

int poll_cq(ibv_cq* handle, int room, ibv_wc* into) {
    auto& cq = completion_queue::of(handle);
    if (is_empty(cq)) {
        found_nothing(cq);
        return 0;
    }
    if (!cq.home->present())
        return -1;
    const lock_guard guard(cq.cq->consumers);
    auto consumed = cq.cq->consumed.load(std::memory_order_relaxed);
    int count = 0;
    for (const completion* entry; count < room && (entry = next_of(cq, consumed)) != nullptr;
         ++count, ++consumed) {
        fill(into[count], *entry);
        finish(cq, *entry);
    }
    cq.consumed_up_to(consumed);
    return count;
}

int req_notify_cq(ibv_cq* handle, int only_solicited) {
    auto& cq = completion_queue::of(handle);
    if (!cq.home->present())
        return failure<int>(EINVAL, answers::with_errno);
    const std::uint32_t wanted = only_solicited != 0 ? solicited_only : anything;
    auto armed = cq.cq->armed.load();
    while (armed < wanted && !cq.cq->armed.compare_exchange_weak(armed, wanted)) {
    }
    // A completion that arrived since the last event raises an event at once, because some programs poll
    // first and arm last. A completion that an event has already reported raises none, because others arm
    // first and poll last.
    if (!has_unreported(cq.home->own(), *cq.cq, wanted == solicited_only))
        return 0;
    if (cq.cq->armed.exchange(nothing) != nothing)
        signal(*cq.home->self(), cq.index);
    return 0;
}

// The extended queue: returns one completion at a time; programs read its fields through functions.
bool step(completion_queue& cq) {
    const auto consumed = cq.cq->consumed.load(std::memory_order_relaxed);
    const auto* const next = next_of(cq, consumed);
    if (next == nullptr)
        return false;
    cq.now = *next;
    finish(cq, cq.now);
    cq.consumed_up_to(consumed + 1);
    cq.seen.wr_id = cq.now.wr_id;
    cq.seen.status = static_cast<ibv_wc_status>(cq.now.status);
    return true;
}

int start_poll(ibv_cq_ex* handle, ibv_poll_cq_attr* attributes) {
    auto& cq = completion_queue::of(handle);
    if (attributes != nullptr && attributes->comp_mask != 0)
        return EINVAL;
    if (!cq.home->present())
        return EINVAL;
    if (is_empty(cq)) {
        found_nothing(cq);
        return ENOENT;
    }
    cq.cq->consumers.lock();
    if (step(cq))
        return 0;
    cq.cq->consumers.unlock();
    return ENOENT;
}

int next_poll(ibv_cq_ex* handle) {
    return step(completion_queue::of(handle)) ? 0 : ENOENT;
}

void end_poll(ibv_cq_ex* handle) {
    completion_queue::of(handle).cq->consumers.unlock();
}

template <typename R, auto Member>
R read_field(ibv_cq_ex* handle) {
    return static_cast<R>(completion_queue::of(handle).now.*Member);
}

std::uint64_t read_wallclock(ibv_cq_ex* handle) {
    timespec wall{};
    ::clock_gettime(CLOCK_REALTIME, &wall);
    const auto age = now_ns() - completion_queue::of(handle).now.time_ns;
    return static_cast<std::uint64_t>(wall.tv_sec) * 1000000000 + static_cast<std::uint64_t>(wall.tv_nsec) -
           age;
}

void fill_readers(ibv_cq_ex& cq) {
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = end_poll;
    cq.read_opcode = read_field<ibv_wc_opcode, &completion::opcode>;
    cq.read_vendor_err = read_field<std::uint32_t, &completion::vendor_error>;
    cq.read_byte_len = read_field<std::uint32_t, &completion::byte_count>;
    cq.read_imm_data = read_field<__be32, &completion::immediate>;
    cq.read_qp_num = read_field<std::uint32_t, &completion::qp_number>;
    cq.read_src_qp = read_field<std::uint32_t, &completion::source_qp>;
    cq.read_wc_flags = read_field<unsigned, &completion::flags>;
    cq.read_slid = read_field<std::uint32_t, &completion::source_lid>;
    cq.read_sl = read_field<std::uint8_t, &completion::service_level>;
    cq.read_dlid_path_bits = read_field<std::uint8_t, &completion::path_bits>;
    cq.read_completion_ts = read_field<std::uint64_t, &completion::time_ns>;
    cq.read_completion_wallclock_ns = read_wallclock;
}

constexpr std::uint64_t readable = std::uint64_t{IBV_WC_STANDARD_FLAGS} |
                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

ibv_cq_ex* create_cq_ex(ibv_context* handle, ibv_cq_init_attr_ex* wanted) {
    const auto refuse = [](int error) { return failure<ibv_cq_ex*>(error, answers::with_errno); };
    if ((wanted->wc_flags & ~readable) != 0)
        return refuse(EOPNOTSUPP);
    constexpr std::uint32_t supported = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if ((wanted->comp_mask & ~supported) != 0)
        return refuse(EINVAL);
    if ((wanted->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 &&
        (wanted->flags & ~static_cast<std::uint32_t>(IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) != 0)
        return refuse(EOPNOTSUPP); // "ignore overrun" too: an overrun here is never harmless
    const auto queue = make_cq(handle, {wanted->cqe, wanted->cq_context, wanted->channel,
                                        static_cast<int>(wanted->comp_vector), true});
    if (!queue)
        return refuse(queue.error());
    fill_readers((*queue)->seen);
    return &(*queue)->seen;
}

void forget_events(completion_queue& cq) {
    ::pthread_mutex_lock(&cq.seen.mutex);
    while (cq.seen.comp_events_completed != cq.events_read ||
           cq.seen.async_events_completed != cq.async_events_read)
        ::pthread_cond_wait(&cq.seen.cond, &cq.seen.mutex);
    ::pthread_mutex_unlock(&cq.seen.mutex);
}

} // namespace

void fill_completion_operations(verbs_context& context) {
    context.create_cq_ex = [](ibv_context* handle, ibv_cq_init_attr_ex* wanted) {
        return call<ibv_cq_ex*>(
            "ibv_create_cq_ex", answers::with_errno, [&] { return create_cq_ex(handle, wanted); }, handle,
            wanted);
    };
    context.context.ops.poll_cq = [](ibv_cq* handle, int room, ibv_wc* into) {
        if (watching.load(std::memory_order_relaxed)) // not traced: programs poll continuously
            if (const auto chosen = faults().next("ibv_poll_cq"); chosen && carry_out(*chosen) != 0)
                return -1;
        return poll_cq(handle, room, into);
    };
    context.context.ops.req_notify_cq = [](ibv_cq* handle, int solicited) {
        return call<int>(
            "ibv_req_notify_cq", answers::with_errno, [&] { return req_notify_cq(handle, solicited); },
            handle, solicited);
    };
}

} // namespace lab::hca

VERB(ibv_comp_channel*, ibv_create_comp_channel, (ibv_context * handle), (handle), {
    auto& home = *context::of(handle).home;
    if (!home.present())
        return fails(EINVAL);
    const auto place = home.channel_places.take();
    if (!place)
        return fails(ENOMEM);
    auto channel = make_zeroed<completion_channel>();
    channel->index = *place;
    // A named pipe, so that peers can write events for this process themselves.
    channel->path =
        home.hca_folder() / (std::to_string(home.own().slot()) + ".channel" + std::to_string(*place));
    ::unlink(channel->path.c_str());
    channel->seen.fd =
        ::mkfifo(channel->path.c_str(), 0600) == 0 ? ::open(channel->path.c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (channel->seen.fd < 0) {
        const int error = errno;
        ::unlink(channel->path.c_str());
        home.channel_places.release(*place);
        return fails(error);
    }
    channel->seen.context = handle;
    return &channel.release()->seen;
})

VERB(int, ibv_destroy_comp_channel, (ibv_comp_channel * handle), (handle), {
    auto& channel = completion_channel::of(handle);
    if (handle->refcnt != 0)
        return fails(EBUSY);
    auto& home = *context::of(handle->context).home;
    ::close(handle->fd);
    if (home.present()) {
        ::unlink(channel.path.c_str());
        home.channel_places.release(channel.index);
    }
    delete &channel;
    return 0;
})

VERB(ibv_cq*, ibv_create_cq,
     (ibv_context * handle, int entries, void* cookie, ibv_comp_channel* channel, int vector),
     (handle, entries, cookie, channel, vector), {
         if (entries <= 0)
             return fails(EINVAL);
         const auto queue = make_cq(handle, {static_cast<uint32_t>(entries), cookie, channel, vector, false});
         return queue ? (*queue)->handle() : fails(queue.error());
     })

VERB(int, ibv_resize_cq, (ibv_cq * handle, int entries), (handle, entries), {
    auto& cq = completion_queue::of(handle);
    auto& home = *cq.home;
    if (!home.present() || entries <= 0 ||
        static_cast<uint32_t>(entries) > context::of(handle->context).hca->description.max_cqe)
        return fails(EINVAL);
    const auto capacity = std::bit_ceil(static_cast<uint32_t>(entries));
    const auto ring = home.own().allocate(uint64_t{capacity} * sizeof(completion));
    if (!ring)
        return fails(ring.error());
    auto* fresh = home.own().at<completion>(*ring);
    uint64_t old = 0;
    {
        const lab::hca::lock_guard consumers(cq.cq->consumers);
        const lab::hca::lock_guard producers(cq.cq->producers);
        const auto first = cq.cq->consumed.load();
        const auto last = cq.cq->produced.load();
        if (last - first > capacity) {
            home.own().release(*ring);
            return fails(EINVAL);
        }
        for (auto at = first; at != last; ++at) {
            lab::hca::fill(fresh[at & (capacity - 1)], cq.ring[at & (cq.cq->capacity - 1)]);
            lab::hca::publish(fresh[at & (capacity - 1)], at);
        }
        old = cq.cq->ring;
        cq.cq->ring = *ring;
        cq.cq->capacity = capacity;
        cq.ring = fresh;
        cq.consumed_up_to(first);
        handle->cqe = static_cast<int>(capacity);
    }
    home.own().release(old);
    return 0;
})

VERB(int, ibv_destroy_cq, (ibv_cq * handle), (handle), {
    auto& cq = completion_queue::of(handle);
    auto& home = *cq.home;
    if (cq.users.load() != 0)
        return fails(EBUSY);
    if (home.present()) {
        {
            const std::lock_guard guard(home.objects);
            home.cqs[cq.index] = nullptr;
        }
        cq.cq->in_use = 0;
        forget_events(cq);
        home.own().release(cq.cq->ring);
        home.cq_places.release(cq.index);
        home.cqs_made.fetch_sub(1);
    }
    if (handle->channel != nullptr) {
        const std::lock_guard guard(home.objects);
        --handle->channel->refcnt;
    }
    delete &cq;
    return 0;
})

VERB_AS(with_minus_one, int, ibv_get_cq_event, (ibv_comp_channel * channel, ibv_cq** cq, void** cookie),
        (channel, cq, cookie), {
            auto& home = *context::of(channel->context).home;
            for (;;) {
                uint64_t event = 0;
                const auto got = ::read(channel->fd, &event, sizeof(event));
                if (got != sizeof(event))
                    return got < 0 ? -1 : fails(EIO);
                const std::lock_guard guard(home.objects);
                auto* queue = home.cqs[static_cast<uint32_t>(event) % max_cqs];
                if (queue == nullptr || queue->cq->serial != event >> 32)
                    continue; // the event of a destroyed queue
                ::pthread_mutex_lock(&queue->seen.mutex);
                ++queue->events_read;
                ::pthread_mutex_unlock(&queue->seen.mutex);
                *cq = queue->handle();
                *cookie = queue->seen.cq_context;
                return 0;
            }
        })

extern "C" [[gnu::visibility("default")]] void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    ::pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    ::pthread_cond_signal(&cq->cond);
    ::pthread_mutex_unlock(&cq->mutex);
}
