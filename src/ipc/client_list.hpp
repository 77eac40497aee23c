// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/ipc/client.hpp"
#include "src/os/poller.hpp"

namespace gaudi {

// The importers that are connected to a broker: who may connect and how many, and what becomes of those whose
// connection has ended.
class client_list {
public:
    static constexpr std::size_t most_clients = 1024;
    static constexpr std::ptrdiff_t most_of_one_process = 64; // an importer has one
    static constexpr std::ptrdiff_t most_ungreeted = 64;      // that have not made a request

    client_list(const poller& events, const ipc_settings& settings);

    // Accepts those that wait at a listening socket, a few at a time. Others are refused with the reason.
    void accept_from(int listener);
    [[nodiscard]] client* find(int descriptor);
    // Ends the connection. The client stays until nothing that it began can touch memory.
    void disconnect(client& ended);
    // Disconnects those that have connected and asked for nothing in two seconds.
    void disconnect_ungreeted();
    // Removes the disconnected for which `finished` says that nothing is left.
    void reap(const std::function<bool(client&)>& finished);

    [[nodiscard]] std::list<client>& all() { return clients_; }
    [[nodiscard]] const std::list<client>& all() const { return clients_; }

private:
    [[nodiscard]] bool serves(std::uint32_t user) const;
    void make_room_for_ungreeted();
    void refuse_for_want_of_descriptors(int listener);
    void keep_spare();

    const poller& events_;
    const ipc_settings& settings_;
    std::list<client> clients_;
    fork_private_fd spare_; // a descriptor to free when there are no others
};

} // namespace gaudi
