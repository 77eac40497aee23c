// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>
#include <gaudi/region.hpp>
#include <gaudi/statistics.hpp>
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
struct internals;

/// How a thread waits for completions.
enum class wait_mode {
    poll,  ///< polls the completion queue: lowest latency
    events ///< sleeps until an event arrives
};

/// How a connection is established and driven.
struct connection_options {
    std::chrono::milliseconds deadline{5000}; ///< for the TCP connect and the handshake
    unsigned depth = 128;                     ///< work requests outstanding at the NIC, in each direction
    unsigned operations = 1024;               ///< outstanding operations, each with a ticket
    wait_mode wait = wait_mode::poll;
    /// Retransmission timeout of 4.096 us x 2^timeout, `retries` times. A receiver that is not ready is
    /// retried without limit.
    unsigned timeout = 16;
    unsigned retries = 7;
    /// Pushes what the NIC wrote to device memory into it before a receive, a read or a note is reported, by
    /// a read of one byte: without it the completion may be seen before the bytes (docs/rdma.md).
    bool flush_device = true;
};

/// The outcome of an operation.
struct completion {
    std::uint64_t bytes = 0;                ///< bytes received, for a receive
    std::uint64_t value = 0;                ///< the value before an atomic operation
    std::optional<std::uint32_t> immediate; ///< the immediate value that came with a message
};

/// The ticket of one outstanding operation. Destroying a ticket does not cancel the operation: its memory
/// must stay valid until the operation has completed. A default-constructed ticket is done. One thread at a
/// time may use a ticket and its connection.
class transfer {
public:
    transfer() = default;

    /// Whether the operation has completed. Never blocks; drives the connection.
    [[nodiscard]] bool done();
    /// Blocks until the operation has completed and returns its outcome. errc::wait_timeout: the limit
    /// expired, and the operation continues. Any other error says why the operation failed.
    result<completion> wait(std::chrono::milliseconds limit = no_limit);

private:
    friend struct internals;
    transfer(connection_core* core, std::uint32_t slot);

    struct operation {
        connection_core* core = nullptr; ///< a counted reference
        std::uint32_t slot = 0;
        explicit operator bool() const { return core != nullptr; }
        void close() noexcept;
    };
    unique_handle<operation> operation_;
};

/// Two processes joined by a reliable queue pair and a TCP stream. The stream carries the handshake and
/// detects the end of the peer. One thread at a time may use a connection and its tickets.
///
/// Operations start in the order of the calls. Messages arrive in that order, the n-th message in the n-th
/// receive: a sender never overruns its peer, it waits until the peer has posted the next receive. Only the
/// regions limit the size. Device memory goes by the path of its region, see statistics(). The destructor
/// closes the connection.
class connection {
public:
    /// Posts a message. errc::message_too_long: the peer's receive is smaller; nothing is sent, and the
    /// receive stays posted. errc::too_many_operations, peer_gone, connection_broken.
    [[nodiscard]] result<transfer> send(const local_region& from,
                                        std::optional<std::uint32_t> immediate = {});
    /// Posts a receive. completion::bytes is the length of the message.
    [[nodiscard]] result<transfer> receive(const local_region& into);
    /// One-sided write; both lengths must be equal. errc::length_mismatch, remote_access.
    [[nodiscard]] result<transfer> write(const local_region& from, const remote_region& to);
    /// As write(); also completes the peer's next receive. The memory of that receive is not written, and its
    /// completion carries the immediate value.
    [[nodiscard]] result<transfer> write_with_immediate(const local_region& from, const remote_region& to,
                                                        std::uint32_t immediate);
    /// One-sided read; both lengths must be equal. errc::length_mismatch, remote_access.
    [[nodiscard]] result<transfer> read(const local_region& into, const remote_region& from);
    /// Whether both NICs support atomic operations. Where they do not, fetch_add() and compare_swap() fail
    /// with errc::atomics_absent.
    [[nodiscard]] bool atomics() const;
    /// Atomically adds to the 8 aligned bytes at the beginning of the region; completion::value is their
    /// value before.
    [[nodiscard]] result<transfer> fetch_add(const remote_region& where, std::uint64_t add);
    /// Atomically replaces the 8 aligned bytes at the beginning of the region if they equal `expected`;
    /// completion::value is their value before.
    [[nodiscard]] result<transfer> compare_swap(const remote_region& where, std::uint64_t expected,
                                                std::uint64_t desired);

    /// Drives the connection without blocking: posts work requests, collects completions, reads the TCP
    /// stream. Returns how many events it handled.
    std::size_t poll();

    /// A descriptor for an event loop: it becomes readable when poll() has something to do, after arm()
    /// returned true. It belongs to the connection. errc::setting_malformed where the connection was made
    /// with wait_mode::poll, whose credits arrive without an event; descriptors_exhausted.
    [[nodiscard]] result<int> event_fd();
    /// Before sleeping on that descriptor. False: something has happened already; poll, and arm again.
    [[nodiscard]] bool arm();

    /// Sends a note over the TCP stream: up to 64 KiB, in order with other notes. More than 64 MiB that the
    /// receiver has not read end the connection.
    result<void> send_note(std::span<const std::byte> note);
    /// Blocks until a note arrives.
    [[nodiscard]] result<std::vector<std::byte>> receive_note(std::chrono::milliseconds limit);
    /// Sends the peer a key to exactly this region, with these rights. The key is valid until withdraw(),
    /// until the connection ends, or until the device buffer is freed. Staged memory can be offered too: this
    /// side must then be driven (poll(), wait(), receive_note()) while the peer reads or writes.
    result<void> offer(const local_region& region, remote_access rights);
    /// Ends every offer of the region on this connection. The peer is not notified: a request that it posts
    /// afterwards fails and breaks the connection.
    void withdraw(const local_region& region);
    /// Blocks until an offer of the peer arrives.
    [[nodiscard]] result<remote_region> take_offer(std::chrono::milliseconds limit);

    /// Closes the connection: outstanding operations fail, and the peer learns that it was closed on purpose.
    void close();
    /// Whether operations can still succeed, as far as this side knows.
    [[nodiscard]] bool alive() const;
    /// Operations and bytes of this side by path, since the connection was established.
    [[nodiscard]] const connection_traffic& statistics() const;
    /// Why the latest staged operation was staged; empty: none was.
    [[nodiscard]] const std::string& why_staged() const;
    /// HOST:PORT of the peer.
    [[nodiscard]] const std::string& peer() const;

private:
    friend struct internals;
    explicit connection(connection_core* core) : open_({core}) {}
    [[nodiscard]] connection_core* core() const { return open_->core; }

    struct open_connection {
        connection_core* core = nullptr;
        explicit operator bool() const { return core != nullptr; }
        void close() noexcept;
    };
    unique_handle<open_connection> open_;
};

/// Connects to a listener as a client. `peer` is "host", "host:port" or "[v6]:port"; without a port it is
/// default_port. errc::host_unknown, connection_refused, handshake_timeout, handshake_refused,
/// version_mismatch.
[[nodiscard]] result<connection> connect(const std::shared_ptr<nic>& nic, const std::string& peer,
                                         const connection_options& options = {});

/// An accepted TCP connection whose handshake has not run. A silent peer blocks only the thread that calls
/// handshake(), up to the deadline.
class pending_connection {
public:
    pending_connection(pending_connection&&) noexcept;
    pending_connection& operator=(pending_connection&&) noexcept;
    ~pending_connection();

    /// HOST:PORT of the peer.
    [[nodiscard]] const std::string& peer() const;
    /// Runs the handshake and connects the queue pair. Call it once. errc::handshake_timeout,
    /// handshake_refused, version_mismatch.
    [[nodiscard]] result<connection> handshake(const std::shared_ptr<nic>& nic,
                                               const connection_options& options = {});

private:
    friend struct internals;
    explicit pending_connection(std::unique_ptr<stream> joined);

    std::unique_ptr<stream> joined_;
    std::string peer_;
};

/// Accepts connections as a server, any number of them. Several threads may call it.
class listener {
public:
    /// Listens on `address`, or on every address of the host if it is empty; port 0 chooses a free port.
    /// errc::address_in_use.
    static result<listener> open(std::uint16_t port, const std::string& address = {});

    /// The port that the listener is bound to.
    [[nodiscard]] std::uint16_t port() const { return socket_->port; }
    /// Readable when a connection is pending. The listener owns the descriptor.
    [[nodiscard]] int descriptor() const { return socket_->fd; }
    /// Accepts the next TCP connection. errc::wait_timeout: none arrived within the limit.
    [[nodiscard]] result<pending_connection> next(std::chrono::milliseconds limit) const;
    /// next() and handshake(). errc::wait_timeout: no connection arrived within the limit. Any other error
    /// concerns this connection only.
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

/// The port where none is named.
constexpr std::uint16_t default_port = 20000;

} // namespace gaudi
