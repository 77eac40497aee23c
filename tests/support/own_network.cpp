// SPDX-License-Identifier: BSD-3-Clause
// Every test program runs in its own network namespace if the kernel permits it: no other test, and no test
// of another checkout, can occupy its ports or socket names. Without a namespace, tests choose ports that are
// free at that moment.
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
        if (::unshare(CLONE_NEWNET) == 0 && !bring_up_loopback()) { // before the first thread starts
            ASSERT_EQ(::setns(before, CLONE_NEWNET), 0);
        }
        ::close(before);
    }
};

[[maybe_unused]] const auto* const registered = ::testing::AddGlobalTestEnvironment(new own_network);

} // namespace
