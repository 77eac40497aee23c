// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mutex>
#include <set>

namespace gaudi_ucx {

// Something that keeps devices open. One that was reset opens again only when nothing in the process holds on
// to it.
class device_holder {
public:
    // Any thread may call it, at any time.
    virtual void let_go_of_lost() = 0;

protected:
    device_holder() = default;
    ~device_holder() = default;
    device_holder(const device_holder&) = delete;
    device_holder& operator=(const device_holder&) = delete;
};

// All of a module. Thread-safe. A holder that is being told is not removed meanwhile: remove() waits.
class device_holders {
public:
    void add(device_holder& which) { // a second time is nothing
        const std::lock_guard guard(mutex_);
        all_.insert(&which);
    }
    void remove(device_holder& which) {
        const std::lock_guard guard(mutex_);
        all_.erase(&which);
    }
    void let_go_of_lost() {
        const std::lock_guard guard(mutex_);
        for (auto* each : all_)
            each->let_go_of_lost();
    }

private:
    std::mutex mutex_;
    std::set<device_holder*> all_;
};

} // namespace gaudi_ucx
