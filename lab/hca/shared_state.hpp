// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/shared_lock.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

// The memory that the processes of a lab share. Plain records; all zeros means "does not exist". It holds
// indices and offsets, not pointers, because each process maps it at another address.
namespace lab::hca {

// The number of a queue pair names the process that owns it: 10 bits of slot, 14 bits of index.
constexpr unsigned index_bits = 14;
constexpr std::uint32_t max_slots = 1U << 10; // slot 0 is unused: queue pairs 0 and 1 are special
constexpr std::uint32_t max_qps = 1U << index_bits;
constexpr std::uint32_t max_cqs = 1U << 14;
constexpr std::uint32_t max_srqs = 1U << 12;
constexpr std::uint32_t max_mrs = 1U << 16;
constexpr std::uint32_t max_channels = 1U << 12;
constexpr std::uint32_t max_pds = 1U << 14;
constexpr std::uint32_t max_ahs = 1U << 16;

constexpr std::uint32_t slot_of(std::uint32_t qp_number) {
    return qp_number >> index_bits;
}
constexpr std::uint32_t index_of(std::uint32_t qp_number) {
    return qp_number & (max_qps - 1);
}

constexpr std::uint32_t no_index = 0xffffffff;

struct scatter_entry {
    std::uint64_t address;
    std::uint32_t length;
    std::uint32_t key;
};

// The destination of a packet: a LID or a GID.
struct route {
    std::uint8_t gid[16];
    std::uint16_t lid;
    std::uint8_t by_gid;
    std::uint8_t port;
};

struct datagram_target {
    route where;
    std::uint32_t qp_number;
    std::uint32_t qkey;
};

struct rdma_target {
    std::uint64_t address;
    std::uint64_t compare_or_add;
    std::uint64_t swap;
    std::uint32_t key;
};

// One send request. Scatter entries or inline bytes follow it in the ring.
struct send_request {
    std::uint64_t wr_id;
    std::uint32_t immediate; // network order
    std::uint32_t inline_length;
    std::uint16_t entries;
    std::uint8_t opcode; // ibv_wr_opcode
    std::uint8_t flags;  // ibv_send_flags
    std::uint32_t reserved;
    std::uint64_t due_ns; // deferred mode: do not run before this time
    union {
        rdma_target rdma;
        datagram_target datagram;
    };
};
static_assert(sizeof(send_request) == 64);

struct receive_request {
    std::uint64_t wr_id;
    std::uint32_t entries;
    std::uint32_t reserved;
};

// A ring of requests. Counters run freely. posted - done are outstanding in the device, posted - released
// occupy a place: as on a real device, a place is free again when a completion at or after it was polled.
//
// Laid out by writer: a cache line that two processes write moves back and forth between their cores.
struct shared_queue {
    // Written by executors.
    alignas(64) shared_lock lock;
    std::atomic<std::uint32_t> posted;
    std::atomic<std::uint32_t> done;
    // Receive queues: index + 1 of the queue pair whose executor is taking a receive at the moment.
    std::uint32_t taking;
    std::atomic<std::uint32_t> sender_waits; // the peer's head request waits for this side
    // The receive that an executor has taken and not completed: if the executor dies, the owner completes it.
    // Used for a queue pair's own queue and, in the queue pair's otherwise unused queue, for a shared queue.
    // On a separate line: the executor writes it once more when the owner may already post again.
    alignas(64) std::atomic<std::uint32_t> taken;
    std::uint64_t taken_wr_id;
    std::uint32_t taken_place;    // its counter in its queue
    std::uint32_t taken_sequence; // its number among the receives of this queue pair
    // Written by the owner when it polls.
    alignas(64) std::atomic<std::uint32_t> released;
    std::atomic<std::uint32_t> receives_polled;
    // Never changes.
    alignas(64) std::uint32_t capacity; // a power of two, at least `granted`
    std::uint32_t granted;
    std::uint32_t stride;
    std::uint32_t max_entries;
    std::uint32_t max_inline;
    std::uint64_t ring; // offset in the segment
};

enum class wait_reason : std::uint32_t { none, receive, peer };

// What happened at a queue pair. The process that detects it sets the bit; the owner raises the event.
enum attention_bit : std::uint32_t {
    needs_flush = 1,
    event_access_error = 2,
    event_request_error = 4,
    event_fatal = 8,
    event_established = 16,
    event_drained = 32,
};

struct traffic_counters {
    std::atomic<std::uint64_t> messages, bytes, errors;
    std::atomic<std::uint64_t> bytes_mapped, bytes_copied_across, bytes_tcp;
    std::atomic<std::uint64_t> bytes_from_dmabuf, bytes_to_dmabuf; // between hosts: only local memory

    void clear() {
        for (const auto& each : all())
            this->*each.counter = 0;
    }
    void add(const traffic_counters& more) {
        for (const auto& each : all())
            this->*each.counter += (more.*each.counter).load();
    }

    // All counters, with the names under which they are printed.
    struct named {
        const char* name;
        std::atomic<std::uint64_t> traffic_counters::*counter;
    };
    static const std::array<named, 8>& all();
};

inline const std::array<traffic_counters::named, 8>& traffic_counters::all() {
    static constexpr std::array<named, 8> list = {
        {{"messages", &traffic_counters::messages},
         {"bytes", &traffic_counters::bytes},
         {"errors", &traffic_counters::errors},
         {"bytes_mapped", &traffic_counters::bytes_mapped},
         {"bytes_process_vm", &traffic_counters::bytes_copied_across},
         {"bytes_tcp", &traffic_counters::bytes_tcp},
         {"bytes_from_dmabuf", &traffic_counters::bytes_from_dmabuf},
         {"bytes_to_dmabuf", &traffic_counters::bytes_to_dmabuf}}};
    return list;
}

// The last bytes of a message on their way to device memory: see posted_writes.hpp.
struct posted_write {
    static constexpr std::uint32_t most = 64;
    shared_lock lock;
    std::atomic<std::uint32_t> length; // 0: none
    std::uint32_t gaudi;
    std::uint64_t hbm_size; // of the whole device
    std::uint64_t offset;   // in the device's memory
    std::uint64_t due_ns;
    std::byte bytes[most];
};

struct shared_qp {
    // What the peer reads with every request; it changes only with the state.
    alignas(64) std::atomic<std::uint32_t> in_use;
    std::atomic<std::uint32_t> state; // ibv_qp_state
    std::uint32_t number;
    std::uint32_t type; // ibv_qp_type
    std::uint32_t pd;
    std::uint32_t access;
    std::uint32_t peer_number;
    std::uint32_t receive_psn;
    std::atomic<std::uint32_t> life;        // counts resets
    std::uint32_t send_cq, receive_cq, srq; // indices; srq may be no_index
    std::uint16_t own_lid;
    std::uint8_t min_rnr_timer, dest_rd_atomic;
    std::uint32_t device;
    std::uint32_t port;
    std::uint32_t qkey;
    std::uint32_t scatters;                 // see scattered.hpp
    std::atomic<std::uint32_t> remote;      // the peer is on another host
    std::atomic<std::uint32_t> established; // a request arrived in RTR, before this side could send
    std::uint8_t own_gids[2][16];           // the GIDs of its port
    // What the requester needs.
    alignas(64) std::atomic<std::uint64_t> peer_incarnation; // 0: not connected yet
    route destination;
    std::uint32_t signal_all;
    std::uint32_t send_psn;
    std::uint32_t path_mtu; // bytes
    std::uint8_t timeout, retry_count, rnr_retry, rd_atomic;
    // How the head request waits.
    alignas(64) std::atomic<std::uint32_t> waits; // wait_reason
    std::uint32_t tries;
    std::atomic<std::uint64_t> waits_since_ns;
    std::uint64_t next_try_ns;
    std::uint32_t sent;        // remote: requests before this one were sent
    std::uint32_t expected;    // remote: the sequence number of the peer's next request
    std::uint64_t link;        // remote: the connection over which the outstanding requests were sent
    std::uint64_t progress_ns; // remote: when a request was last sent or answered
    // In state SQD: requests before this one had begun and still complete. notify_drained: the program asked
    // for an event when they have.
    std::atomic<std::uint32_t> drains_to;
    std::uint32_t notify_drained;
    std::atomic<std::uint32_t> attention;
    shared_lock inbound; // held during a delivery that is not under a local send queue's lock
    shared_queue sq, rq;
    alignas(64) traffic_counters counted; // written under the send queue's lock
    // What peers write here, and what its own reads bring.
    alignas(64) posted_write on_its_way[2];
};

struct completion {
    std::uint64_t wr_id;
    std::uint64_t time_ns;
    std::uint32_t status, opcode;
    std::uint32_t byte_count, immediate;
    std::uint32_t qp_number, source_qp;
    std::uint32_t flags;
    std::uint32_t place; // counter of the request in its queue
    std::uint16_t source_lid;
    std::uint8_t service_level, path_bits;
    std::uint8_t solicited, of_send_queue, of_srq, reserved;
    std::uint32_t vendor_error;
    std::uint32_t turn; // counter of the entry + 1, written last; pollers read this
};
static_assert(sizeof(completion) == 64);

enum armed_for : std::uint32_t { nothing = 0, solicited_only = 1, anything = 2 };

struct shared_cq {
    alignas(64) std::atomic<std::uint32_t> in_use;
    std::uint32_t device;
    std::uint64_t ring;
    std::uint32_t capacity; // a power of two
    std::uint32_t channel;  // index or no_index
    std::uint32_t timestamps;
    std::uint32_t serial;                   // distinguishes its events from those of an earlier queue
    std::atomic<std::uint32_t> signal_owed; // the producer could not signal; the guard thread does
    alignas(64) shared_lock producers;
    std::atomic<std::uint32_t> produced;
    // The producers' copy of `consumed`; they reload it only when the queue seems full.
    std::uint32_t consumed_seen;
    std::atomic<std::uint32_t> armed;
    std::atomic<std::uint32_t> reported; // entries before this one were reported by an event
    std::atomic<std::uint32_t> overrun;
    alignas(64) shared_lock consumers;
    std::atomic<std::uint32_t> consumed;
};

struct shared_srq {
    std::atomic<std::uint32_t> in_use;
    std::uint32_t device;
    std::uint32_t pd;
    std::atomic<std::uint32_t> limit;
    std::atomic<std::uint32_t> limit_event;
    std::atomic<std::uint32_t> senders_wait;
    shared_queue queue;
};

enum class mr_kind : std::uint32_t { none, host, hbm, null };

struct hbm_piece {
    static constexpr std::uint64_t unreachable = ~0ULL;
    std::uint64_t offset; // in the device's memory; unreachable: what the NIC reads and writes is lost
    std::uint64_t length;
};

struct shared_mr {
    std::atomic<std::uint32_t> key; // 0: invalid
    std::uint32_t pd;
    std::uint32_t access;
    mr_kind kind;
    std::atomic<std::uint64_t> registrations; // at this place so far: keys repeat
    std::uint32_t gaudi;                      // index of the device, for hbm
    std::uint64_t iova;
    std::uint64_t length;
    std::uint64_t address;  // in the owner, for host
    std::uint64_t hbm_size; // of the whole device
    std::uint64_t pieces;   // offset of hbm_piece[] in the segment
    std::uint32_t piece_count;
    std::uint32_t reserved;
};

} // namespace lab::hca
