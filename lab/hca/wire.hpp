// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/endpoint.hpp"
#include "lab/hca/memory_access.hpp"
#include "lab/hca/receive.hpp"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <set>
#include <sys/uio.h>
#include <thread>

// Between hosts: TCP. The GID of a queue pair contains the address, its number gives the port: no daemon is
// needed.
namespace lab::hca {

constexpr std::uint16_t first_port = 47000; // of slot 0

constexpr std::uint32_t frame_magic = 0x76686361;

// What is sent: this header, then `length` bytes. In the sender's byte order; the magic number shows a
// different one.
struct frame {
    std::uint32_t magic;
    std::uint8_t kind; // frame_kind
    std::uint8_t opcode;
    std::uint16_t flags;
    std::uint32_t source_qp, target_qp;
    std::uint32_t sequence;
    // In an answer: its status. In a request: the packet sequence number of the connection.
    std::uint32_t status;
    std::uint64_t length;
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t immediate;
    std::uint64_t compare_or_add, swap;
};
static_assert(sizeof(frame) == 64);

enum class frame_kind : std::uint8_t { hello = 1, request, answer, datagram };
// Statuses of an answer in addition to those of a work completion.
constexpr std::uint32_t answer_not_ready = 1000, answer_no_receive = 1001;

struct wire_address {
    std::uint32_t ip = 0; // network order
    std::uint16_t port = 0;
    auto operator<=>(const wire_address&) const = default;
};

// The bytes that follow a frame. Their memory is looked up each time that some of them are sent, because it
// may be gone by then.
struct payload {
    enum class source { nothing, bytes, request, region } from = source::nothing;
    std::vector<std::byte> bytes;
    std::uint32_t qp = 0;    // index of the local queue pair
    std::uint32_t place = 0; // of the send request
    std::uint32_t life = 0;  // of the queue pair
    std::uint64_t address = 0;
    std::uint32_t key = 0;
};

// The ranges of `memory` after its first `skip` bytes, as a system call takes them: at most `room` entries,
// and `bytes` bytes in all. The null region is replaced by `nowhere`, which ends the list.
constexpr std::size_t most_entries = 64;
[[nodiscard]] std::size_t entries_of(const side& memory, std::uint64_t skip, std::uint64_t bytes,
                                     std::vector<std::byte>& nowhere, iovec* into, std::size_t room);

// The address in an IPv4-mapped GID.
[[nodiscard]] std::uint32_t ipv4_of(const std::uint8_t* gid);

class wire;

// One connection to another process.
class link {
public:
    link(wire& home, int fd, bool established) : home_(home), fd_(fd), established_(established) {}
    ~link();
    link(const link&) = delete;
    link& operator=(const link&) = delete;

    // Sends what the socket accepts now, and the rest when it accepts more. The caller may hold the send
    // queue's lock.
    void send(const frame& head, payload body);

    [[nodiscard]] std::uint64_t id() const { return id_; }
    [[nodiscard]] bool lost() const { return lost_.load(); }
    [[nodiscard]] bool established() const { return established_.load(); }

private:
    friend class wire;
    struct outgoing {
        frame head;
        payload body;
        std::uint64_t sent = 0;
    };
    enum class progress { done, later, broken };
    progress transmit(outgoing& what, bool holds_queue);
    void drain();
    // Before the connection is closed: sends what is queued, and waits until the peer has read it.
    void close_in_order();
    void arm(bool for_writing);

    wire& home_;
    int fd_;
    const std::uint64_t id_ = next_id++;
    static inline std::atomic<std::uint64_t> next_id{1};
    wire_address peer_;
    std::uint32_t peer_slot_ = 0;
    bool said_hello_ = false;
    std::uint64_t since_ns_ = 0;
    std::atomic<bool> established_, lost_{false};
    std::mutex mutex_; // guards the queue
    std::deque<outgoing> queue_;
    bool sending_ = false;
    // The frame that is being received; only the wire's thread uses it.
    frame head_{};
    std::size_t head_got_ = 0;
    std::uint64_t got_ = 0; // bytes of the payload
    enum class sink { discard, buffers, region, read_back, datagram } sink_ = sink::discard;
    taken_receive taken_;
    bool has_taken_ = false;
    std::uint32_t reply_ = 0; // status of the answer at the end of the request; IBV_WC_SUCCESS or an error
    bool replies_ = false;
    std::uint32_t local_status_ = 0; // of the receive that the message took
    std::uint32_t life_ = 0;         // of the queue pair when the message began
    bool spoiled_ = false;           // bytes of a read had no memory to go to
    std::uint32_t rnr_timer_ = 0;
    std::uint32_t event_ = 0;  // attention bits for the queue pair that refused it
    std::uint64_t before_ = 0; // the value that an atomic found
    std::vector<std::byte> small_;
};

// The sockets of a process and the thread that polls them.
class wire {
public:
    // Listens on these addresses at the port of a slot. EADDRINUSE: try another slot.
    static tl::expected<std::unique_ptr<wire>, int> listen(const std::set<std::uint32_t>& addresses,
                                                           std::uint32_t slot);
    ~wire();
    wire(const wire&) = delete;
    wire& operator=(const wire&) = delete;

    void start(process& home);
    // Before the process leaves the lab.
    void stop();
    // In a forked child, which has the descriptors but not the thread: closes them, the connections belong to
    // the parent.
    void abandon();

    // The connection to a process on another host, opened if there is none. nullptr if it cannot be opened;
    // it may already be lost.
    [[nodiscard]] std::shared_ptr<link> find_or_connect(wire_address peer, std::uint32_t from_ip);
    [[nodiscard]] process& home() const { return *home_; }

private:
    friend class link;
    wire() = default;
    void run();
    void accept_from(int listener);
    void add(const std::shared_ptr<link>& added, wire_address peer, bool writing);
    void serve(const std::shared_ptr<link>& from, std::uint32_t events);
    // Reads what is available; false: the connection is closed.
    bool receive(link& from);
    bool read_head(link& from);
    void begin_request(link& from);
    bool begin_datagram(link& from);
    std::uint32_t find_sink(link& from, endpoint target);
    access_result run_atomic(link& from, const shared_qp& qp);
    static void lose_sink(link& from, const shared_qp& qp);
    bool is_from_peer(const link& from, const shared_qp& qp) const;
    endpoint same_life(const link& from) const;
    int receive_some(link& from);
    void finish_frame(link& from);
    void finish_request(link& from);
    void finish_answer(link& from);
    void finish_datagram(link& from);
    void lose(const std::shared_ptr<link>& gone);
    void expire();
    endpoint own_qp(std::uint32_t number) const;
    void answer(link& to, std::uint32_t status, payload body = {}, std::uint64_t length = 0,
                std::uint64_t value = 0);

    process* home_ = nullptr;
    int epoll_ = -1, wake_ = -1;
    std::vector<int> listeners_;
    std::uint16_t port_ = 0;
    std::mutex mutex_;
    std::map<wire_address, std::shared_ptr<link>> by_peer_;
    std::map<int, std::shared_ptr<link>> by_fd_;
    std::atomic<bool> ending_{false};
    std::thread thread_;
};

// Runs the send queue of a queue pair whose peer is on another host. The caller holds its lock.
[[nodiscard]] std::uint64_t run_remote_send_queue(process& here, const endpoint& requester);

// Sends a datagram to another host. `from` is its content.
void send_remote_datagram(process& here, const endpoint& requester, const send_request& request,
                          const side& from);

} // namespace lab::hca
