// SPDX-License-Identifier: BSD-3-Clause
#include "src/ipc/client.hpp"

#include "src/hl/hl_device.hpp"
#include "src/os/channel.hpp"

#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gaudi {
namespace {

// Where there is no pidfd: the time after which a disconnected process counts as ended.
constexpr auto time_to_end = std::chrono::seconds(5);

} // namespace

client::client(unique_fd connected, const ucred& peer)
    : socket(std::move(connected)),
      process(unique_fd(peer.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)) : -1)),
      credentials(peer), since(clock::now()) {}

bool client::send_or_park(answer_head head, message_bytes message, std::span<const int> descriptors) {
    const auto sent = send_message(socket.get(), message, descriptors, {});
    if (sent && !descriptors.empty())
        parked.clear(); // the kernel holds its own references now
    if (sent || descriptors.empty())
        return sent.has_value();
    head.fetch = static_cast<std::uint32_t>(descriptors.size()); // too many descriptors are in flight
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
        parked.emplace_back(::fcntl(descriptors[i], F_DUPFD_CLOEXEC, 0));
        head.numbers[i] = parked.back().get();
    }
    std::memcpy(message.data(), &head, sizeof(head));
    return send_message(socket.get(), message, {}, {}).has_value();
}

bool client::is_harmless() const {
    pollfd ended{process.get(), POLLIN, 0};
    if (process && ::poll(&ended, 1, 0) > 0) // a process that has ended has closed everything
        return true;
    // Without a pidfd (another pid namespace, an old kernel) time decides.
    if (!process && clock::now() - since > time_to_end)
        return true;
    // The process lives and only its connection has ended: it may still use what it mapped and started.
    return leases.quiet() && std::all_of(memberships.begin(), memberships.end(), [](const membership& each) {
               return each.context->sharing().shared()->holds_nothing(each.member);
           });
}

bool client::give_back() {
    std::erase_if(memberships, [](const membership& each) {
        auto& device = *each.context;
        return device.lost() || device.sharing().shared()->reap(device.api(), device.fd(), each.member,
                                                                device.traits().max_in_flight);
    });
    if (!memberships.empty())
        return false;
    slab_pins.clear();
    return true;
}

bool client::drop_lost_devices() {
    if (copies.empty())
        std::erase_if(slab_pins, [](const auto& each) { return each.second.engine.lost(); });
    return std::erase_if(memberships, [](const membership& each) { return each.context->lost(); }) == 0;
}

} // namespace gaudi
