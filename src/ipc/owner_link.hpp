// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/copy_engine.hpp>

#include "src/ipc/broker.hpp"

#include <deque>
#include <functional>

namespace gaudi {

class hl_device;
class hlthunk_api;

// An importer's connection to one owner. Requests may be made from any thread; answers come in any order.
class owner_link : public hangup_watcher, public std::enable_shared_from_this<owner_link> {
public:
    // errc::peer_gone, peer_refused.
    static result<std::shared_ptr<owner_link>>
    connect(const process_identity& owner, const ipc_settings& settings, std::function<void()> when_gone);
    // To whoever offers the device.
    static result<std::shared_ptr<owner_link>> connect_to_device(std::uint64_t node,
                                                                 const ipc_settings& settings);
    owner_link(lone_fd socket, process_identity owner, const ipc_settings& settings)
        : owner_(owner), settings_(settings), socket_(std::move(socket)) {}
    ~owner_link() override;

    struct answered {
        wire_reply reply;
        std::array<unique_fd, most_passed> passed;
    };
    // Asks and waits for the answer. errc::peer_gone, peer_silent, and whatever the owner says.
    result<answered> ask(wire_request& request, std::span<const int> passed = {});
    // Asks; the number to look for the answer with. Nothing: it is not there yet.
    result<std::uint64_t> post(wire_request& request, std::span<const int> passed = {});
    std::optional<result<answered>> answer_to(std::uint64_t id);
    // Sleeps until something came, or the time is over.
    void wait(std::chrono::milliseconds limit);
    // No answer is expected. Does not wait: what the owner has no room for is sent later.
    void tell(const wire_request& request);
    bool flush() override;

    [[nodiscard]] bool gone() const { return gone_.load(std::memory_order_acquire); }
    [[nodiscard]] error gone_error() const;
    [[nodiscard]] const process_identity& owner() const { return owner_; }
    [[nodiscard]] const ipc_settings& settings() const { return settings_; }
    // The board, once the first lease brought it.
    [[nodiscard]] lease_word* board();
    result<void> take_board(unique_fd descriptor);
    // What the owner rings when it takes a lease back.
    void take_bell(unique_fd descriptor);
    // The context that an answer passed: descriptor, ledger and place.
    static result<std::shared_ptr<hl_device>> join(const std::shared_ptr<const hlthunk_api>& api,
                                                   answered& passed, std::shared_ptr<void> host = {});
    // An engine on the owner's device, by the lease of memory on it.
    result<copy_engine> guest_engine(std::uint64_t node, std::uint32_t lease);
    // Room that both sides see, for copies that the owner makes.
    struct slab {
        std::span<std::byte> bytes;
        std::uint64_t offset = 0;
    };
    static constexpr std::size_t slab_bytes = 1 << 20, slabs = 8;
    result<std::optional<slab>> take_slab(); // nothing: all are in use
    void return_slab(std::uint64_t offset);

    // It does not answer: nothing more is asked of it, and what it still does goes nowhere.
    void give_up();
    void hung_up() override;

private:
    static result<std::shared_ptr<owner_link>> connect(std::string_view name, const process_identity& owner,
                                                       const ipc_settings& settings,
                                                       std::function<void()> when_gone);
    result<void> collect();
    // With the mutex held. False: there is more, and no room for it in time.
    bool send_unsent(channel_deadline deadline);
    result<answered> fetched(const wire_reply& reply, received_message& with);

    const process_identity owner_;
    const ipc_settings settings_;
    lone_fd socket_, bell_;
    std::function<void()> when_gone_; // called once
    std::optional<error> refusal_;    // set before gone_
    std::atomic<bool> gone_{false};
    std::mutex mutex_;
    std::uint64_t next_id_ = 1;
    std::deque<wire_request> unsent_; // in their order, before anything else
    std::map<std::uint64_t, result<answered>> answers_;
    std::map<std::uint64_t, wire_ask> abandoned_; // whose answers nobody waits for any more
    std::atomic<lease_word*> board_{nullptr};
    shared_memory board_memory_;
    std::mutex guests_mutex_;
    std::map<std::uint64_t, copy_engine> guests_; // by node
    std::map<std::uint64_t, error> refused_;      // contexts that the owner does not give
    shared_memory slab_memory_;
    std::vector<std::uint64_t> free_slabs_;
};

} // namespace gaudi
