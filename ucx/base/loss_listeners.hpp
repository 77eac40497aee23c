// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mutex>
#include <set>

namespace gaudi_ucx {

// An object that keeps devices open. A device that was reset can be opened again only when nothing in the
// process holds it.
class loss_listener {
public:
    // Releases what the object holds of lost devices. Any thread may call it, at any time.
    virtual void drop_lost() = 0;

protected:
    loss_listener() = default;
    ~loss_listener() = default;
    loss_listener(const loss_listener&) = delete;
    loss_listener& operator=(const loss_listener&) = delete;
};

// The listeners of a module. Thread-safe. remove() waits while the listener is being called.
class loss_listeners {
public:
    void add(loss_listener& listener) { // adding twice has no effect
        const std::lock_guard guard(mutex_);
        all_.insert(&listener);
    }
    void remove(loss_listener& listener) {
        const std::lock_guard guard(mutex_);
        all_.erase(&listener);
    }
    void drop_lost() {
        const std::lock_guard guard(mutex_);
        for (auto* each : all_)
            each->drop_lost();
    }

private:
    std::mutex mutex_;
    std::set<loss_listener*> all_;
};

} // namespace gaudi_ucx
