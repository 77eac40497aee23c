// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include "src/os/mapping.hpp"
#include "src/os/ring.hpp"
#include "src/rdma/control_channel.hpp"
#include "src/rdma/grants.hpp"
#include "src/rdma/lender.hpp"
#include "src/rdma/queue_pair.hpp"
#include "src/rdma/staging.hpp"

#include <array>
#include <deque>

namespace gaudi {

enum class transfer_kind : std::uint8_t { send, receive, write, read, fetch_add, compare_swap };

// An operation as the caller states it.
struct transfer_request {
    transfer_kind kind;
    const local_region* local = nullptr;
    const remote_region* remote = nullptr;
    std::optional<std::uint32_t> immediate = {};
    std::uint64_t operand = 0, compare = 0;
};

// A connection's state. For one thread at a time; counted by hand, without atomics, by the connection and its
// tickets.
//
// Operations wait in two queues in the order of the calls, one for what this side initiates and one for
// receives. Only the first of a queue is cut into parts and handed to the NIC, as far as there is room, as
// the peer's grants allow, and as staged memory has been copied. What the NIC has is remembered in two rings,
// which its completions empty in order. Requests are posted in chains of which only the last asks for a
// completion.
class connection_core {
public:
    enum class role { client, server };
    // Takes part in the handshake. Throws nothing, leaves nothing.
    static result<connection_core*> join(const std::shared_ptr<nic>& card, stream joined, role side,
                                         const connection_options& options, time_point deadline);
    connection_core(const connection_core&) = delete;
    connection_core& operator=(const connection_core&) = delete;

    void retain() { ++users_; }
    void release() {
        if (--users_ == 0)
            delete this;
    }

    result<std::uint32_t> start(const transfer_request& wanted);
    std::size_t progress();
    [[nodiscard]] bool done(std::uint32_t slot);
    result<completion> wait(std::uint32_t slot, std::chrono::milliseconds limit);
    void drop(std::uint32_t slot);

    // A region as the peer may address it, until withdraw() or the end of the connection.
    result<remote_region> offer(const local_region& region, remote_access rights);
    void withdraw(const local_region& region);
    result<void> tell(frame_kind kind, std::span<const std::byte> body);
    result<std::vector<std::byte>> hear(frame_kind kind, std::chrono::milliseconds limit);
    // Reads everything that the peer has sent so far. Whether it is still there.
    bool look_after();
    void close();
    [[nodiscard]] bool alive() const { return !failure_; }
    // Nothing is under way.
    [[nodiscard]] bool idle() const { return free_slots_.size() == operations_.size() && heard_.empty(); }
    [[nodiscard]] bool atomics() const { return atomics_; }
    // What the peer's handshake gave this side: where its grants arrive.
    [[nodiscard]] remote_region peers_grants() const {
        return {theirs_.grants_address, sizeof(shared_words::grants_from_peer), theirs_.grants_key,
                memory_way::host, remote_access::all};
    }
    void forget_offers() { offers_.clear(); }
    [[nodiscard]] const path_report& report() const { return report_; }
    [[nodiscard]] const std::string& peer() const { return control_.peer(); }

private:
    enum class state : std::uint8_t { unused, pending, finished };
    static constexpr std::uint32_t nobody = ~0U; // a request of our own
    static constexpr int no_slab = -1;
    static constexpr std::size_t longest_chain = 16;
    static constexpr std::size_t kept_for_grants = 8;

    struct operation {
        transfer_kind kind = transfer_kind::send;
        connection_core::state state = state::unused;
        memory_way way = memory_way::host;
        bool dropped = false;   // nobody will ask for the outcome
        bool begun = false;     // it has the peer's receive, or its own is announced
        bool all_given = false; // the NIC has, or had, all of it
        bool immediate_given = false;
        bool by_lending = false; // the peer's memory is staged
        bool peer_is_done = false;
        std::uint64_t serial = 0; // tells it from earlier ones in its slot
        std::uint32_t local_key = 0, remote_key = 0;
        std::uint64_t address = 0, remote_address = 0, length = 0;
        std::uint64_t operand = 0, compare = 0;
        std::uint64_t fetched = 0; // staged: bytes whose copy into a slab has begun
        std::uint64_t given = 0, landed = 0;
        std::uint32_t outstanding = 0; // parts under way
        staging* stage = nullptr;
        std::shared_ptr<const registration> lease; // the registration stays until it is over
        std::optional<std::uint32_t> immediate;
        completion outcome;
        std::optional<error> failure;
    };
    // A request that the NIC has.
    struct posted {
        std::uint32_t slot = nobody;
        std::uint32_t bytes = 0;
        int slab = no_slab;
        std::uint64_t offset = 0; // in the operation, for what a slab receives
        int lent_slab = no_slab;  // the peer's
    };
    // Where the NIC finds or leaves a part of an operation.
    struct local_part {
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        int slab = no_slab;
    };
    // A region that the peer may address.
    struct offered_region {
        local_region region;
        remote_access rights = remote_access::none;
        remote_key key;           // none for staged memory, which is lent slab by slab
        std::uint32_t number = 0; // what stands for the key of staged memory; never repeats
    };
    // Words that the peer's NIC writes, and words that only ours reads or writes.
    struct shared_words {
        std::uint64_t grants_from_peer[grant::ring_words];
        std::uint64_t grants_to_peer[grant::ring_words];
        std::uint64_t atomic_results[1]; // one an operation
    };

    connection_core(std::shared_ptr<nic> card, control_channel control, const connection_options& options);
    ~connection_core();
    result<void> prepare();
    [[nodiscard]] hello greeting() const;
    result<void> shake_hands(role side, time_point deadline);
    result<staging*> staging_for(const local_region& region);

    // What has finished.
    std::size_t collect();
    std::size_t collect_copies();
    void sent(const ibv_wc& entry);
    void arrived(const ibv_wc& entry);
    void part_done(std::uint32_t slot, std::uint64_t bytes);
    void finish(std::uint32_t slot);
    // What can go on.
    void advance();
    void advance_initiated();
    bool give_message(std::uint32_t slot);
    bool give_data(std::uint32_t slot);
    bool give_immediate(std::uint32_t slot);
    bool give_atomic(std::uint32_t slot);
    bool open_peers_receive();
    [[nodiscard]] bool peers_part_granted() const;
    void use_peers_part();
    bool burn_rest_of_receive(std::uint32_t slot);
    void keep_filling(std::uint32_t slot);
    // Of the first operation: its own memory, or the next slab. None while there is no slab, or after a
    // failure.
    std::optional<local_part> part_of(std::uint32_t slot, std::uint64_t offset, std::uint32_t bytes);
    void advance_receives();
    void tell_grants();
    // One-sided access to staged memory.
    bool give_lent(std::uint32_t slot);
    [[nodiscard]] result<const offered_region*> offered(const ask_frame& words) const;
    void asked(const ask_frame& words);
    void lent(const lend_frame& words);
    void returned(const back_frame& words);
    void ended(const over_frame& words);
    std::size_t serve_lenders();
    [[nodiscard]] std::uint64_t identity_of(std::uint32_t slot) const;
    // Requests to the NIC.
    [[nodiscard]] bool room_to_send() const;
    ibv_send_wr& next_request(const posted& what, const local_part& where);
    void flush();
    bool post_receive(const posted& what, const local_part& where);
    // The TCP connection, the clock, the end.
    std::size_t look_at_control(); // how many frames came
    bool handle(frame& received);
    void take_grants(std::span<const std::byte> body);
    void sleep_until(time_point deadline);
    // Ends everything, and tells the peer why.
    void fail(const error& why);
    // The same after the peer's own end.
    void peer_ended(const error& why);
    void end_operations(const error& why);
    [[nodiscard]] error describe_failure(const ibv_wc& entry) const;

    const std::shared_ptr<nic> card_;
    const connection_options options_;
    unsigned users_ = 1;
    control_channel control_;
    std::deque<frame> heard_; // notes and offers that nobody has asked for yet
    std::size_t heard_bytes_ = 0;
    mapping memory_;
    shared_words* words_ = nullptr;
    mr_handle words_region_;                         // local rights
    mr_handle grants_region_;                        // grants_from_peer alone, which the peer may write
    std::vector<std::unique_ptr<staging>> stagings_; // one a device
    std::vector<std::unique_ptr<lender>> lenders_;   // one a device
    std::vector<offered_region> offers_;
    std::uint32_t next_offer_ = 1;
    const std::uint64_t holder_;                   // of the keys it offers, never repeats in a process
    std::deque<lend_frame> lends_, filling_lends_; // what the peer has lent to the first operation
    std::uint64_t serials_ = 0;
    queue_pair pair_;
    std::uint32_t first_sequence_;
    hello theirs_;
    std::uint32_t segment_ = 0; // longest part of a message
    std::uint64_t longest_write_ = 0;
    bool atomics_ = false;

    std::vector<operation> operations_;
    std::vector<std::uint32_t> free_slots_;
    ring<std::uint32_t> initiated_, receives_; // not all given to the NIC yet
    ring<posted> at_send_queue_, at_receive_queue_;
    std::size_t chained_ = 0;   // the last ones of at_send_queue_, not posted yet
    std::uint64_t retired_ = 0; // requests that left at_send_queue_
    std::array<ibv_send_wr, longest_chain> chain_{};
    std::array<ibv_sge, longest_chain> chain_entries_{};

    std::uint64_t peer_index_ = 0; // next word of the peer's grants
    bool peer_open_ = false;       // a receive of the peer's is being filled
    std::uint64_t peer_total_ = 0, peer_used_ = 0;
    std::uint64_t granted_ = 0, told_ = 0, consumed_ = 0; // words for the peer

    std::optional<error> failure_;
    bool closing_ = false;
    time_point last_look_{};
    path_report report_;
};

} // namespace gaudi
