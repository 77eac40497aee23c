// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/os/fork_private_fd.hpp"
#include "src/os/poller.hpp"

#include <map>
#include <memory>

namespace gaudi {

class hl_device;

// The devices whose contexts this process shares with other processes of its user, each with a listening
// socket.
class device_offers {
public:
    explicit device_offers(const poller& events) : events_(events) {}

    // errc::copies_absent, address_in_use.
    result<void> add(const std::shared_ptr<hl_device>& context);
    // The device, while it is open and has not been reset.
    [[nodiscard]] std::shared_ptr<hl_device> find(std::uint64_t node) const;
    [[nodiscard]] bool listens_on(int descriptor) const;
    void drop_closed();
    void clear() { offers_.clear(); }

private:
    struct offer {
        std::weak_ptr<hl_device> context;
        fork_private_fd listener;
    };
    const poller& events_;
    std::map<std::uint64_t, offer> offers_; // by node
};

} // namespace gaudi
