// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/execution.hpp"
#include "lab/hca/verbs.hpp"
#include "lab/world/description.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

// The objects of libibverbs' handles: each begins with the structure that programs see.
namespace lab::hca {

// A nic as programs see it. Never freed: programs keep the pointer after they freed the list.
struct device {
    ibv_device seen;
    // libmlx5 and libefa read past ibv_device to find a driver of their own and must find none.
    std::byte slack[1024];
    unsigned index;
    hca_description description;
    std::uint8_t gids[ports_of_gaudi][2][16]; // port, index
    std::string opens; // path of the file that counts the opens of a Gaudi's own ports, a byte for each; with
                       // a number after it, of the lock of one context of a NIC with a limit
};

struct context {
    verbs_context seen;
    std::shared_ptr<process> home;
    device* hca;
    int async_pipe[2] = {-1, -1};
    int taken = -1; // holds a lock while the context is open, where the NIC has a limit of contexts

    static context& of(ibv_context* handle) {
        return *reinterpret_cast<context*>(reinterpret_cast<std::byte*>(handle) -
                                           offsetof(verbs_context, context));
    }
    static context& of(const ibv_context* handle) { return of(const_cast<ibv_context*>(handle)); }
    [[nodiscard]] ibv_context* handle() { return &seen.context; }
};

struct protection_domain {
    ibv_pd seen;
    std::uint32_t id;
    std::atomic<int> users{0};

    static protection_domain& of(ibv_pd* handle) { return *reinterpret_cast<protection_domain*>(handle); }
};

struct memory_region {
    ibv_mr seen;
    std::uint32_t index;
    int dmabuf = -1; // a duplicate of the descriptor: it keeps the device busy

    static memory_region& of(ibv_mr* handle) { return *reinterpret_cast<memory_region*>(handle); }
};

struct address_handle {
    ibv_ah seen;
    route where;

    static address_handle& of(ibv_ah* handle) { return *reinterpret_cast<address_handle*>(handle); }
};

struct completion_channel {
    ibv_comp_channel seen;
    std::uint32_t index;
    std::filesystem::path path;

    static completion_channel& of(ibv_comp_channel* handle) {
        return *reinterpret_cast<completion_channel*>(handle);
    }
};

struct completion_queue {
    union {
        ibv_cq_ex seen;
        std::byte slack[sizeof(ibv_cq_ex) + 128]; // newer headers may have grown it
    };
    process* home;
    std::uint32_t index;
    shared_cq* cq;
    completion* ring;
    std::atomic<completion*> awaited; // the next entry to poll
    std::atomic<int> users{0};
    std::uint32_t events_read = 0, async_events_read = 0; // under seen.mutex
    std::atomic<std::uint32_t> empty_polls{0};
    std::uint64_t owed_since_ns = 0; // for the guard thread: when it first saw the event that is owed now
    completion now;                  // the current completion of an extended poll

    // The caller holds the consumers' lock.
    void consumed_up_to(std::uint32_t place) {
        cq->consumed.store(place, std::memory_order_release);
        awaited.store(&ring[place & (cq->capacity - 1)], std::memory_order_release);
    }

    completion_queue() : slack{} {}
    static completion_queue& of(ibv_cq* handle) { return *reinterpret_cast<completion_queue*>(handle); }
    static completion_queue& of(ibv_cq_ex* handle) { return *reinterpret_cast<completion_queue*>(handle); }
    [[nodiscard]] ibv_cq* handle() { return reinterpret_cast<ibv_cq*>(&seen); }
};

struct shared_receive_queue {
    ibv_srq seen;
    process* home;
    std::uint32_t index;
    shared_srq* srq;
    std::atomic<int> users{0};
    std::uint32_t serial;
    std::uint32_t events_read = 0;

    static shared_receive_queue& of(ibv_srq* handle) {
        return *reinterpret_cast<shared_receive_queue*>(handle);
    }
};

// A request that the program builds with the ibv_wr_* functions.
struct built_request {
    ibv_send_wr wr;
    std::vector<ibv_sge> entries;
    std::vector<std::byte> inlined;
};

struct queue_pair {
    union {
        ibv_qp_ex seen;
        std::byte slack[sizeof(ibv_qp_ex) + 128];
    };
    process* home;
    std::uint32_t index;
    std::uint32_t serial;
    shared_qp* qp;
    // The peer of a connected pair, from RTR on; changed under home->objects and both queues' locks.
    std::shared_ptr<peer> other;
    ibv_qp_init_attr made_with;
    ibv_qp_attr attributes;
    lookup_cache cached; // what its last small write and read looked up
    std::uint32_t events_read = 0;
    bool last_receive_reported = false;
    std::atomic<bool> flushed{false};  // in the error state, and all requests are flushed
    std::uint64_t found_broken_ns = 0; // when the guard thread found it in the error state; 0: not found yet
    std::mutex building;
    std::vector<built_request> built;
    int build_error = 0;

    queue_pair() : slack{} {}
    static queue_pair& of(ibv_qp* handle) { return *reinterpret_cast<queue_pair*>(handle); }
    static queue_pair& of(ibv_qp_ex* handle) { return *reinterpret_cast<queue_pair*>(handle); }
    [[nodiscard]] ibv_qp* handle() { return &seen.qp_base; }
    [[nodiscard]] endpoint local() const { return {home->self().get(), qp}; }
    [[nodiscard]] endpoint remote() const {
        if (!other)
            return {};
        return {other.get(), &other->memory()->qps[index_of(qp->peer_number)]};
    }
};

// Events other than completions. raise() writes them to the context's pipe; ibv_get_async_event reads them.
struct async_record {
    std::uint32_t type;   // ibv_event_type
    std::uint32_t object; // index
    std::uint32_t serial;
    std::uint32_t port;
};
void raise(context& where, const async_record& what);

// Runs the peer's sends that waited for this queue pair.
void run_waiting_sender(queue_pair& qp);
// Removes the completions of a queue pair that is being reset or destroyed from a completion queue.
void purge(completion_queue& cq, std::uint32_t qp_number, bool also_receives_of_srq);
// The queue pair is in the error state: completes everything outstanding as flushed.
void flush(queue_pair& qp);
// Waits for the executors that work on this queue pair. The caller has changed its state, so that later
// executors do not touch it.
void wait_for_both_sides(queue_pair& pair);
// Waits for the executors that work on memory or queues of this process at the time of the call.
void wait_for_executors(process& home);

[[nodiscard]] std::uint16_t lid_of(unsigned device, unsigned port);

} // namespace lab::hca
