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
    // The owner is gone.
    virtual void hung_up() = 0;
    // Sends what could not be sent before. False while there is more.
    virtual bool flush() { return true; }
};

// Watches this process's connections to the owners of what it imports: whether they end, and whether an owner
// revokes a lease.
class hangup_watch {
public:
    using watchers = std::vector<std::shared_ptr<hangup_watcher>>;

    explicit hangup_watch(const poller& events) : events_(events) {}

    result<void> add(int socket, const std::shared_ptr<hangup_watcher>& watcher);
    result<void> add_revoke_socket(int socket);
    void remove(int socket);

    struct event {
        bool mine = false;                       // the descriptor is one of these
        bool revoked = false;                    // an owner has revoked a lease
        std::shared_ptr<hangup_watcher> hung_up; // to be told without the broker's lock
    };
    [[nodiscard]] event handle(int descriptor);
    [[nodiscard]] watchers all() const;
    // Empties the list.
    [[nodiscard]] watchers take_all();

private:
    const poller& events_;
    std::map<int, std::weak_ptr<hangup_watcher>> watched_;
    std::set<int> revoke_sockets_;
};

} // namespace gaudi
