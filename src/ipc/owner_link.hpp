// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/broker.hpp"
#include "src/ipc/joined_contexts.hpp"
#include "src/ipc/owner_slabs.hpp"
#include "src/os/fork_count.hpp"

#include <deque>
#include <functional>

namespace gaudi {

// An importer's connection to one owner. Any thread may send requests; answers arrive in any order.
//
// It has about thirty functions, because one socket and one mutex serve all of them: requests that wait,
// requests that must not wait, the answers of all threads, and the end of the owner, after which none of them
// may go on. Table, contexts and slabs are kept here because they end with the connection.
class owner_link : public hangup_watcher, public std::enable_shared_from_this<owner_link> {
public:
    // errc::peer_gone, peer_refused.
    static result<std::shared_ptr<owner_link>>
    connect(const process_identity& owner, const ipc_settings& settings, std::function<void()> when_gone);
    // Connects to the process that offers the device.
    static result<std::shared_ptr<owner_link>> connect_to_device(std::uint64_t node,
                                                                 const ipc_settings& settings);
    owner_link(fork_private_fd socket, process_identity owner, const ipc_settings& settings)
        : owner_(owner), settings_(settings), socket_(std::move(socket)) {}
    ~owner_link() override;

    using descriptors = std::array<unique_fd, most_passed>;
    template <typename Answer>
    struct answered {
        Answer body;
        descriptors passed;
    };
    // Sends a request and waits for its answer. errc::peer_gone, peer_silent, and the owner's own errors.
    template <typename Request>
    result<answered<typename Request::answer>> ask(const Request& request, std::span<const int> passed = {}) {
        const auto id = next_id_++;
        auto raw = send_and_wait(id, request_message(id, request), passed,
                                 std::is_same_v<Request, open_lease_request>);
        if (!raw)
            return tl::unexpected(raw.error());
        const auto body = read_as<typename Request::answer>(raw->body);
        if (!body)
            return tl::unexpected(error(errc::protocol_violated, "an answer of another size"));
        return answered<typename Request::answer>{*body, std::move(raw->passed)};
    }
    // Sends a request and returns its id for answer_to(), which returns nothing until the answer has arrived.
    // Never blocks: where the socket is full, the broker's thread sends it later.
    template <typename Request>
    result<std::uint64_t> post(const Request& request) {
        if (gone())
            return tl::unexpected(gone_error());
        const auto id = next_id_++;
        send_later(request_message(id, request));
        return id;
    }
    std::optional<result<void>> answer_to(std::uint64_t id);
    // Sleeps until a message arrives, or the limit has passed.
    void wait(std::chrono::milliseconds limit);
    // Sends a request without an answer. Never blocks, as post().
    template <typename Request>
    void post_unanswered(const Request& request) {
        static_assert(std::is_void_v<typename Request::answer>);
        send_later(request_message(next_id_++, request));
    }
    bool flush() override;

    [[nodiscard]] bool gone() const { return gone_.load(std::memory_order_acquire); }
    [[nodiscard]] error gone_error() const;
    [[nodiscard]] const process_identity& owner() const { return owner_; }
    [[nodiscard]] const ipc_settings& settings() const { return settings_; }
    // The lease table; nullptr until an answer has passed it.
    [[nodiscard]] lease_word* table();
    result<void> set_table(unique_fd descriptor);
    // The socket on which the owner announces that it revokes a lease.
    void set_revoke_socket(unique_fd descriptor);
    [[nodiscard]] joined_contexts& contexts() { return contexts_; }
    [[nodiscard]] owner_slabs& slabs() { return slabs_; }

    // Ends the connection to an owner that does not answer: no request is sent any more, and later answers
    // are ignored.
    void disconnect();
    void hung_up() override;

private:
    static result<std::shared_ptr<owner_link>> connect(std::string_view name, const process_identity& owner,
                                                       const ipc_settings& settings,
                                                       std::function<void()> when_gone);
    struct raw_answer {
        message_bytes body;
        descriptors passed;
    };
    result<void> send(const message_bytes& message, std::span<const int> passed);
    void send_later(message_bytes message);
    result<raw_answer> send_and_wait(std::uint64_t id, const message_bytes& message,
                                     std::span<const int> passed, bool opens_lease);
    // With the mutex held.
    std::optional<result<raw_answer>> take_answer(std::uint64_t id);
    std::optional<result<raw_answer>> pop_answer(std::uint64_t id);
    result<void> collect();
    void answer_came_late(bool opened_lease, const answer_head& head, std::span<const std::byte> body);
    // With the mutex held, without blocking. False where messages are still unsent.
    bool send_unsent();
    void wait_for(short events, std::chrono::milliseconds limit);
    result<raw_answer> complete(const answer_head& head, std::span<const std::byte> body,
                                received_message& with);

    const process_identity owner_;
    const ipc_settings settings_;
    const unsigned forks_ = fork_count(); // at the time of the connection
    fork_private_fd socket_, revoke_socket_;
    std::function<void()> when_gone_; // called once
    std::optional<error> refusal_;    // set before gone_
    std::atomic<bool> gone_{false};
    std::mutex mutex_;
    std::atomic<std::uint64_t> next_id_{1};
    std::deque<message_bytes> unsent_; // in order, sent before any other message
    std::map<std::uint64_t, result<raw_answer>> answers_;
    std::map<std::uint64_t, bool> abandoned_; // requests that timed out, and whether each opens a lease
    std::atomic<lease_word*> table_{nullptr};
    shared_memory table_memory_;
    joined_contexts contexts_;
    owner_slabs slabs_;
};

} // namespace gaudi
