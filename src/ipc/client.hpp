// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>

#include "src/ipc/lease_set.hpp"

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
    bool give_back();
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

} // namespace gaudi
