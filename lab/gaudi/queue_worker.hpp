// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/gaudi/device.hpp"

#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>

namespace lab::gaudi {

// A submission in progress; its last job completes it.
struct submission {
    virtual_device& device;
    std::uint64_t sequence;
    std::uint64_t deadline_ns; // the driver's lockup timer
    bool reset_on_timeout;
    std::shared_ptr<const int> held; // keeps the device busy while this runs
    std::atomic<std::uint32_t> jobs_left;

    // Whether the engines must stop working on it: aborted, timed out, or the device is being reset.
    [[nodiscard]] bool cancelled() const;
};

struct job {
    std::shared_ptr<submission> owner;
    std::uint64_t buffer; // device address, or handle of a command buffer
    std::uint32_t size;
    bool kernel_buffer;
    // `bytes` is what runs; of a kernel buffer, the bytes that the driver checked.
    bool fetched = kernel_buffer;
    std::vector<unsigned char> bytes = {};
    std::uint64_t since_ns = 0;     // when it was queued
    std::uint64_t help_from_ns = 0; // no other thread may execute it before this time
};

// One stream of an engine: runs jobs in order, in its own thread, which starts with the first job and ends
// after a time without any. Streams run concurrently and unordered, as on hardware. A virtual device has no
// processor of its own: a thread that waits for it executes a short copy itself.
class queue_worker {
public:
    queue_worker(virtual_device& device, unsigned queue) : device_(device), queue_(queue) {}
    ~queue_worker();
    queue_worker(const queue_worker&) = delete;
    queue_worker& operator=(const queue_worker&) = delete;

    // Does not wake the thread: if it were woken under a lock that it needs, it would only sleep again.
    void push(job added);
    void wake() { wake_.notify_one(); }
    // Executes the next job in the caller's thread if it is a short copy and no other job is running. False:
    // nothing done.
    bool help();
    [[nodiscard]] bool awaits(std::uint64_t begin, std::uint64_t end);

private:
    void run();
    void carry_out(job& current);
    std::optional<std::vector<unsigned char>> peek(const job& next);
    // False: its buffer cannot be read; the error was raised.
    bool fetch(job& current);

    virtual_device& device_;
    const unsigned queue_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<job> jobs_;
    std::thread thread_;
    bool running_ = false;
    bool busy_ = false; // a job is running
    bool ending_ = false;
};

} // namespace lab::gaudi
