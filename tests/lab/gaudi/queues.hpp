// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/dmabuf.h"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/test_lab.hpp"

#include <algorithm>
#include <unistd.h>

namespace testing_support {

// A command buffer that stays in flight until open_fence() is called.
class blocked_queue {
public:
    explicit blocked_queue(gaudi_device& where) : device_(where), buffer_(where, 4096) {
        packets wait;
        wait.fence(0, 1, 1);
        std::copy(wait.bytes().begin(), wait.bytes().end(), buffer_.bytes().begin());
    }
    // Closes the device before the buffer is freed: the device may still read it.
    ~blocked_queue() { device_.close(); }
    blocked_queue(const blocked_queue&) = delete;
    blocked_queue& operator=(const blocked_queue&) = delete;

    int submit(std::uint64_t* sequence, std::uint32_t flags = 0) {
        return device_.submit(buffer_.address, 8, 0, sequence, user_buffer, flags);
    }
    void open_fence(std::uint32_t times = 1) {
        packets signal;
        signal.msg_long(fence_of_queue_0, times);
        EXPECT_EQ(run(device_, signal, 4), 0);
    }

private:
    gaudi_device& device_;
    host_memory buffer_;
};

// A device with a notifier: after a fault the driver reports it there and does not kill the process at once.
class notified_device : public gaudi_device {
public:
    notified_device() : notifier(hlthunk_notifier_create(fd)) {}
    ~notified_device() {
        if (fd >= 0)
            hlthunk_notifier_release(fd, notifier);
        else
            ::close(notifier);
    }
    [[nodiscard]] std::uint64_t events() const {
        std::uint64_t mask = 0, count = 0;
        EXPECT_EQ(hlthunk_notifier_recv(fd, notifier, &mask, &count, 0, 5000), 0);
        EXPECT_GT(count, 0U);
        return mask;
    }
    int notifier;
};

// Resets the device while it is open. The owner has a notifier, so it is not killed during the test.
inline void reset(const notified_device& opened) {
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_is_device_idle 1 reset"), 0);
    EXPECT_FALSE(hlthunk_is_device_idle(opened.fd));
    EXPECT_EQ(gaudi_lab_faults_fired(), 1U);
}

} // namespace testing_support
