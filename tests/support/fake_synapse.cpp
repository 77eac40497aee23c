// SPDX-License-Identifier: BSD-3-Clause
// A fake SynapseAI: it opens a device in this process, owns all of its memory and its queues, returns its
// descriptor on request, and runs copies asynchronously, in order within each stream.
#include "tests/support/gaudi_device.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace {

struct device_info_v2 {
    std::uint64_t sram_base, dram_base;
    std::uint32_t sram_size;
    std::uint64_t dram_size, tpc_enabled_mask;
    std::uint8_t dram_enabled;
    std::uint32_t device_id, fd, device_type;
    std::uint8_t device_index;
    std::uint64_t global_hbm_base;
};

device_info_v2 acquired{};

std::mutex mutex;
std::map<const void*, std::pair<std::uint64_t, std::uint64_t>> mapped; // device address, length
std::atomic<int> copied{0}, broken{0};                                 // broken: status of all later copies

// Device address of mapped host memory; 0 if it is not mapped.
std::uint64_t device_address_of(std::uint64_t host) {
    const std::lock_guard guard(mutex);
    for (const auto& [begin, where] : mapped)
        if (const auto at = reinterpret_cast<std::uint64_t>(begin); host >= at && host < at + where.second)
            return where.first + (host - at);
    return 0;
}

// Runs jobs in order, in its own thread.
class stream {
public:
    stream() : thread_([this] { run(); }) {}
    ~stream() {
        {
            const std::lock_guard guard(own_);
            ending_ = true;
            wake_.notify_one();
        }
        thread_.join();
    }
    void push(std::function<void()> job) {
        const std::lock_guard guard(own_);
        jobs_.push_back(std::move(job));
        wake_.notify_one();
    }

private:
    void run() {
        std::unique_lock lock(own_);
        for (;;) {
            wake_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
            if (jobs_.empty())
                return;
            auto job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            job();
            lock.lock();
        }
    }
    std::mutex own_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> jobs_;
    bool ending_ = false;
    std::thread thread_;
};

struct event {
    std::atomic<int> status{0};
};

// The fake owns the descriptor: the destructor must not close it.
class borrowed_device : public testing_support::gaudi_device {
public:
    explicit borrowed_device(int descriptor) : gaudi_device("none") { fd = descriptor; }
    ~borrowed_device() { fd = -1; }
};

} // namespace

extern "C" [[gnu::visibility("default")]] int fake_synapse_acquire(const char* bus_id,
                                                                   std::uint64_t pool_size) {
    const int fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id);
    if (fd < 0)
        return fd;
    const auto handle = hlthunk_device_memory_alloc(fd, pool_size, 0, false, false);
    acquired.fd = static_cast<std::uint32_t>(fd);
    acquired.global_hbm_base = hlthunk_device_memory_map(fd, handle, 0);
    acquired.dram_size = pool_size;
    return 0;
}

extern "C" [[gnu::visibility("default")]] std::uint64_t fake_synapse_pool() {
    return acquired.global_hbm_base;
}

extern "C" [[gnu::visibility("default")]] void fake_synapse_release() {
    broken = 0;
    hlthunk_close(static_cast<int>(acquired.fd));
    acquired = {};
}

extern "C" [[gnu::visibility("default")]] int synDeviceGetInfoV2(std::uint32_t device, device_info_v2* info) {
    if (device != 0 || acquired.fd == 0)
        return 1;
    std::memcpy(static_cast<void*>(info), &acquired, sizeof(acquired));
    return 0;
}

#define FAKE extern "C" [[gnu::visibility("default")]] int

FAKE synHostMap(std::uint32_t, std::uint64_t size, const void* memory) {
    const auto address =
        hlthunk_host_memory_map(static_cast<int>(acquired.fd), const_cast<void*>(memory), 0, size);
    if (address == 0)
        return 1;
    const std::lock_guard guard(mutex);
    mapped[memory] = {address, size};
    return 0;
}

FAKE synHostUnmap(std::uint32_t, const void* memory) {
    const std::lock_guard guard(mutex);
    const auto found = mapped.find(memory);
    if (found == mapped.end())
        return 34;
    hlthunk_memory_unmap(static_cast<int>(acquired.fd), found->second.first);
    mapped.erase(found);
    return 0;
}

FAKE synStreamCreateGeneric(void** made, std::uint32_t, std::uint32_t) {
    *made = new stream;
    return 0;
}

FAKE synStreamDestroy(void* gone) {
    delete static_cast<stream*>(gone);
    return 0;
}

FAKE synMemCopyAsync(void* on, std::uint64_t from, std::uint64_t size, std::uint64_t to, int direction) {
    const auto source = direction == 0 ? device_address_of(from) : from;
    const auto target = direction == 1 ? device_address_of(to) : to;
    if (source == 0 || target == 0)
        return 34; // host memory that was not mapped
    static_cast<stream*>(on)->push([=] {
        const borrowed_device device(static_cast<int>(acquired.fd));
        if (broken != 0)
            return;
        if (testing_support::copy(device, source, target, static_cast<std::uint32_t>(size),
                                  direction == 1 ? 4 : 0) == 0)
            ++copied;
        else
            broken = 26; // the copy failed; a virtual Gaudi3 has no queues
    });
    return 0;
}

FAKE synEventCreate(void** made, std::uint32_t, std::uint32_t) {
    *made = new event;
    return 0;
}

FAKE synEventDestroy(void* gone) {
    delete static_cast<event*>(gone);
    return 0;
}

FAKE synEventRecord(void* which, void* on) {
    auto* const noted = static_cast<event*>(which);
    noted->status = 22; // busy
    static_cast<stream*>(on)->push([noted] { noted->status = broken.load(); });
    return 0;
}

FAKE synEventQuery(void* which) {
    return static_cast<event*>(which)->status;
}

// Number of copies that ran. fake_synapse_break() sets the status of all later copies.
FAKE fake_synapse_copied() {
    return copied;
}

FAKE fake_synapse_break(int status) {
    broken = status;
    return 0;
}

FAKE fake_synapse_mapped() {
    const std::lock_guard guard(mutex);
    return static_cast<int>(mapped.size());
}
