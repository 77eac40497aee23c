// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include "src/ipc/lease_set.hpp"
#include "src/os/poller.hpp"

#include <chrono>
#include <list>
#include <sys/socket.h>

namespace gaudi {

class hl_device;

// One importer's connection, as the owner's broker keeps it.
struct client {
    using clock = std::chrono::steady_clock;
    // A copy by the owner for an importer that has no descriptor of the memory.
    struct proxy_copy {
        copy_ticket ticket;
        std::uint64_t request_id = 0;
        lease_set::slot_number lease = 0;
    };
    // A device context that the importer shares.
    struct membership {
        std::shared_ptr<hl_device> context;
        unsigned member = 0;
    };
    struct slab_pin {
        copy_engine engine;
        pinned_memory pinned;
    };

    client(unique_fd connected, const ucred& peer);

    // Sends an answer. Descriptors that cannot be passed at the moment are parked, where the importer may
    // fetch them with pidfd_getfd. False where the connection is broken.
    template <typename Answer>
    bool send(const answer_head& head, const Answer& body, std::span<const int> descriptors = {}) {
        return send_or_park(head, message_of(head, body), descriptors);
    }
    bool send_or_park(answer_head head, message_bytes message, std::span<const int> descriptors);
    // Whether no copy that the importer started can access memory any more.
    [[nodiscard]] bool is_harmless() const;
    // After disconnection: releases the client's memberships in shared contexts and its pins. False while
    // some remain.
    bool release_resources();
    // Drops what the client uses of devices that were reset; such a device cannot be opened again before
    // that. False where the importer has a descriptor of such a context, so that it must be disconnected.
    bool drop_lost_devices();

    fork_private_fd socket, process; // process: a pidfd, where the kernel supports it
    ucred credentials{};
    clock::time_point since; // time of connection, then of disconnection
    bool greeted = false, disconnected = false;
    bool unresponsive = false; // it did not release revoked memory in time, and has sent no message since
    lease_set leases;
    std::vector<membership> memberships;
    shared_memory slab;
    std::map<unsigned, slab_pin> slab_pins; // by device
    std::list<proxy_copy> copies;
    std::vector<unique_fd> parked; // until the importer has fetched them
};

// The importers of a broker: which processes may connect and how many, and which disconnected ones still have
// resources to release.
class client_list {
public:
    static constexpr std::size_t most_clients = 1024;
    static constexpr std::ptrdiff_t most_of_one_process = 64; // an importer opens one
    static constexpr std::ptrdiff_t most_ungreeted = 64;      // that have not sent a request

    client_list(const poller& events, const ipc_settings& settings);

    // Accepts the pending connections of a listening socket, a few at a time. A client that may not connect
    // is refused with the reason.
    void accept_from(int listener);
    [[nodiscard]] client* find(int descriptor);
    // Ends the connection. The client stays in the list until nothing that it started can access memory.
    void disconnect(client& ended);
    // Disconnects clients that sent no request within two seconds of connecting.
    void disconnect_ungreeted();
    // Removes the disconnected clients for which `finished` returns true.
    void reap(const std::function<bool(client&)>& finished);

    [[nodiscard]] std::list<client>& all() { return clients_; }
    [[nodiscard]] const std::list<client>& all() const { return clients_; }

private:
    [[nodiscard]] bool serves(std::uint32_t user) const;
    void make_room_for_ungreeted();
    void refuse_without_descriptors(int listener);
    void keep_spare();

    const poller& events_;
    const ipc_settings& settings_;
    std::list<client> clients_;
    fork_private_fd spare_; // closed when no descriptor is left, to accept and refuse a client
};

} // namespace gaudi
