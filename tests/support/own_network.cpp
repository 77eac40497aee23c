// SPDX-License-Identifier: BSD-3-Clause
// Every test program runs in a network namespace of its own, where the kernel permits it: no other test, and
// no other checkout's, can have its ports or the names of its sockets. Without the right to make one, tests
// choose ports that are free when they look.
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

bool bring_up_loopback() {
    const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    bool up = ::ioctl(socket, SIOCGIFFLAGS, &request) == 0;
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    up = up && ::ioctl(socket, SIOCSIFFLAGS, &request) == 0;
    ::close(socket);
    return up;
}

class own_network : public ::testing::Environment {
    void SetUp() override {
        const int before = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (::unshare(CLONE_NEWNET) == 0 && !bring_up_loopback()) { // before the first thread is made
            ASSERT_EQ(::setns(before, CLONE_NEWNET), 0);
        }
        ::close(before);
    }
};

[[maybe_unused]] const auto* const registered = ::testing::AddGlobalTestEnvironment(new own_network);

} // namespace
