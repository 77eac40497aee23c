// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/client.hpp"
#include "src/os/poller.hpp"

namespace gaudi {

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
