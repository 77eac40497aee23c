// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/poller.hpp"

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace gaudi {

// An importer's connection to an owner.
class hangup_watcher {
public:
    virtual ~hangup_watcher() = default;
    // The owner has ended, or has closed the connection.
    virtual void hung_up() = 0;
    // Sends messages that could not be sent before. False while some are left.
    virtual bool flush() { return true; }
};

// Watches this process's connections to the owners of the memory it imports, for hang-ups and revoked leases.
class hangup_watch {
public:
    using watchers = std::vector<std::shared_ptr<hangup_watcher>>;

    explicit hangup_watch(const poller& events) : events_(events) {}

    result<void> add(int socket, const std::shared_ptr<hangup_watcher>& watcher);
    result<void> add_revoke_socket(int socket);
    void remove(int socket);

    struct event {
        bool mine = false;                       // the descriptor is watched here
        bool revoked = false;                    // an owner has revoked a lease
        std::shared_ptr<hangup_watcher> hung_up; // the caller calls its hung_up() without the broker's lock
    };
    [[nodiscard]] event handle(int descriptor);
    [[nodiscard]] watchers all() const;
    // Returns all watchers and empties the list.
    [[nodiscard]] watchers take_all();

private:
    const poller& events_;
    std::map<int, std::weak_ptr<hangup_watcher>> watched_;
    std::set<int> revoke_sockets_;
};

} // namespace gaudi
