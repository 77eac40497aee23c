// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>
#include <gaudi/region.hpp>
#include <gaudi/unique_handle.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gaudi {

class connection_core;
class stream;

// How a thread waits.
enum class wait_mode {
    poll,  // looks at the completion queue again and again: lowest latency
    events // sleeps until something happens
};

struct connection_options {
    std::chrono::milliseconds deadline{5000}; // for every step of making the connection
    unsigned depth = 128;                     // requests that the NIC has at a time, each way
    unsigned operations = 1024;               // operations under way, each with a ticket
    wait_mode wait = wait_mode::poll;
    // Retransmission: 4.096 us x 2^timeout, `retries` times; a receiver that is not ready is waited for.
    unsigned timeout = 16;
    unsigned retries = 7;
};

// What an operation came to.
struct completion {
    std::uint64_t bytes = 0;                // received, for a receive
    std::uint64_t value = 0;                // before an atomic operation
    std::optional<std::uint32_t> immediate; // that came with a message
};

// Bytes moved by this side's operations, by the way they went. One operation counts once, on each side that
// posts it: a one-sided write or read only at its initiator.
struct path_report {
    struct count {
        std::uint64_t operations = 0, bytes = 0;
    };
    count host, zero_copy, staged;
    std::string why_staged; // the last reason

    [[nodiscard]] const count& by(memory_path path) const;
};

// One operation under way. Dropping a ticket does not cancel the operation; memory must stay valid until it
// is done.
class transfer {
public:
    transfer() = default;
    transfer(connection_core* core, std::uint32_t slot);

    // Never blocks; drives the connection.
    [[nodiscard]] bool done();
    // The outcome; blocks until there is one. errc::wait_timeout (the operation goes on), or why it failed.
    result<completion> wait(std::chrono::milliseconds limit = std::chrono::hours(1));

private:
    struct operation {
        connection_core* core = nullptr; // kept alive
        std::uint32_t slot = 0;
        explicit operator bool() const { return core != nullptr; }
        void close() noexcept;
    };
    unique_handle<operation> operation_;
};

// Two processes joined by a reliable queue pair, with a TCP connection beside it that made it and watches
// over it. A connection and its tickets belong to one thread at a time.
//
// Operations start in the order of the calls. Messages arrive in that order, each in the receive that was
// posted in its place: a sender never overruns its peer, it waits for the next receive. Sizes are limited by
// the regions alone. A device's memory goes by the way of its region, see path_report.
class connection {
public:
    explicit connection(connection_core* core) : open_({core}) {} // its destructor tells the peer

    // errc::message_too_long where the peer's receive is smaller: nothing is sent, the receive stays.
    // errc::too_many_operations, peer_gone, connection_broken.
    [[nodiscard]] result<transfer> send(const local_region& from,
                                        std::optional<std::uint32_t> immediate = {});
    [[nodiscard]] result<transfer> receive(const local_region& into);
    // One-sided; lengths must be equal. errc::length_mismatch, remote_access.
    [[nodiscard]] result<transfer> write(const local_region& from, const remote_region& to);
    // Also completes the peer's next receive, which keeps its memory and learns the number.
    [[nodiscard]] result<transfer> write_with_immediate(const local_region& from, const remote_region& to,
                                                        std::uint32_t immediate);
    [[nodiscard]] result<transfer> read(const local_region& into, const remote_region& from);
    // Whether both NICs have atomic operations: errc::atomics_absent.
    [[nodiscard]] bool atomics() const;
    // On 8 aligned bytes at the beginning of the region; completion::value is what was there before.
    [[nodiscard]] result<transfer> fetch_add(const remote_region& where, std::uint64_t add);
    [[nodiscard]] result<transfer> compare_swap(const remote_region& where, std::uint64_t expected,
                                                std::uint64_t desired);

    // Drives everything without blocking. Returns how much happened.
    std::size_t poll();

    // A note beside the data, over TCP: up to 64 KiB, in order. hear() blocks until one came. More
    // than 64 MiB of them that nobody has heard end the connection.
    result<void> send_note(std::span<const std::byte> note);
    [[nodiscard]] result<std::vector<std::byte>> receive_note(std::chrono::milliseconds limit);
    // Gives the peer a key to exactly this region, with these rights, and takes such an offer. The key ends
    // with withdraw(), with the connection, or when the device buffer is freed. Staged memory too: then this
    // side must be driven (poll, wait, hear) while the peer reads or writes.
    result<void> offer(const local_region& region, remote_access rights);
    // Ends every offer of the region on this connection. The peer is not told: a request that it makes
    // afterwards fails and breaks the connection.
    void withdraw(const local_region& region);
    [[nodiscard]] result<remote_region> take_offer(std::chrono::milliseconds limit);

    // Ends it: what is under way fails, the peer learns that it was on purpose.
    void close();
    // Whether operations can still succeed, as far as is known.
    [[nodiscard]] bool alive() const;
    [[nodiscard]] path_report report() const;
    // HOST:PORT of the other side.
    [[nodiscard]] const std::string& peer() const;

    [[nodiscard]] connection_core* core() const { return open_->core; }

private:
    struct open_connection {
        connection_core* core = nullptr;
        explicit operator bool() const { return core != nullptr; }
        void close() noexcept;
    };
    unique_handle<open_connection> open_;
};

// Makes one as a client. "host", "host:port", "[v6]:port". errc::host_unknown, connection_refused,
// handshake_timeout, handshake_refused, version_mismatch.
[[nodiscard]] result<connection> connect(const std::shared_ptr<nic>& nic, const std::string& peer,
                                         const connection_options& options = {});

// Somebody who connected and has not said yet what it is. One that never does costs only its thread, and no
// longer than the deadline.
class pending_connection {
public:
    explicit pending_connection(std::unique_ptr<stream> joined);
    pending_connection(pending_connection&&) noexcept;
    pending_connection& operator=(pending_connection&&) noexcept;
    ~pending_connection();

    [[nodiscard]] const std::string& peer() const;
    // Once.
    [[nodiscard]] result<connection> handshake(const std::shared_ptr<nic>& nic,
                                               const connection_options& options = {});

private:
    std::unique_ptr<stream> joined_;
    std::string peer_;
};

// Makes them as a server; any number, also from several threads.
class listener {
public:
    // Every address of the host where `address` is empty; port 0 takes a free one. errc::address_in_use.
    static result<listener> open(std::uint16_t port, const std::string& address = {});

    [[nodiscard]] std::uint16_t port() const { return socket_->port; }
    // Readable when somebody knocks.
    [[nodiscard]] int descriptor() const { return socket_->fd; }
    // errc::wait_timeout when nobody came.
    [[nodiscard]] result<pending_connection> next(std::chrono::milliseconds limit) const;
    // next() and welcome(). errc::wait_timeout when nobody came; anything else concerns this caller only.
    [[nodiscard]] result<connection> accept(const std::shared_ptr<nic>& nic, std::chrono::milliseconds limit,
                                            const connection_options& options = {}) const;

private:
    struct socket {
        int fd = -1;
        std::uint16_t port = 0;
        explicit operator bool() const { return fd >= 0; }
        void close() noexcept;
    };
    explicit listener(socket listening) : socket_(listening) {}

    unique_handle<socket> socket_;
};

constexpr std::uint16_t default_port = 20000;

} // namespace gaudi
