// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/placement.hpp"

#include "lab/gaudi/context.hpp"

#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using lab::gaudi::placement;

std::vector<std::size_t> processors_of_this_thread() {
    cpu_set_t set{};
    EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &set))
            all.push_back(i);
    return all;
}

// Processors that a stream of `engine` may use after 200 checks with each number of busy devices in `found`.
std::vector<std::size_t> allowed_after(unsigned engine, std::vector<unsigned> found) {
    std::vector<std::size_t> result;
    std::thread([&] {
        placement stream(engine, {});
        for (const auto devices : found)
            for (int i = 0; i < 200; ++i)
                stream.note(devices);
        result = processors_of_this_thread();
    }).join();
    return result;
}

TEST(placement_test, crowded_streams_keep_to_the_processor_of_their_engine) {
    const auto all = processors_of_this_thread();
    const auto count = static_cast<unsigned>(all.size());
    for (unsigned engine = 0; engine < 2 * count; ++engine)
        EXPECT_EQ(allowed_after(engine, {count}), std::vector<std::size_t>{all[engine % count]});
}

TEST(placement_test, streams_run_anywhere_while_processors_are_free) {
    const auto all = processors_of_this_thread();
    const auto count = static_cast<unsigned>(all.size());
    EXPECT_EQ(allowed_after(1, {count / 2}), all);
    EXPECT_EQ(allowed_after(1, {count, count / 2}), all) << "when it is no longer crowded";
}

// The state file of another device, with the fields that placement reads.
class state_of_another {
public:
    state_of_another() {
        EXPECT_GE(fd_, 0);
        EXPECT_EQ(::ftruncate(fd_, sizeof(lab::gaudi::context)), 0);
    }
    ~state_of_another() {
        ::close(fd_);
        ::unlink(path_);
    }
    state_of_another(const state_of_another&) = delete;
    state_of_another& operator=(const state_of_another&) = delete;

    [[nodiscard]] const char* path() const { return path_; }
    void submit(pid_t process) {
        ++sequence_;
        write(sequence_, offsetof(lab::gaudi::context, next_sequence));
        write(process, offsetof(lab::gaudi::context, submitter));
    }

private:
    template <typename Value>
    void write(const Value& value, std::size_t offset) {
        EXPECT_EQ(::pwrite(fd_, &value, sizeof(value), static_cast<off_t>(offset)),
                  static_cast<ssize_t>(sizeof(value)));
    }
    char path_[32] = "/tmp/gaudi-state-XXXXXX";
    int fd_ = ::mkstemp(path_);
    std::uint64_t sequence_ = 0;
};

TEST(placement_test, checks_whether_other_devices_work) {
    const auto all = processors_of_this_thread();
    state_of_another other;
    std::thread([&] {
        placement stream(0, std::vector<std::filesystem::path>(all.size(), other.path()));
        const auto looks = [&](pid_t submitter) {
            for (int i = 0; i < 60; ++i) {
                if (submitter != 0)
                    other.submit(submitter);
                stream.update();
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
        };
        looks(::getpid());
        EXPECT_EQ(processors_of_this_thread(), all) << "two devices for one program";
        looks(::getppid());
        EXPECT_EQ(processors_of_this_thread(), std::vector<std::size_t>{all[0]});
        looks(0);
        EXPECT_EQ(processors_of_this_thread(), all);
    }).join();
}

TEST(placement_test, a_device_that_was_never_opened_is_not_at_work) {
    const auto all = processors_of_this_thread();
    std::thread([&] {
        placement stream(0, std::vector<std::filesystem::path>(2 * all.size(), "/tmp/gaudi-no-such-file"));
        for (int i = 0; i < 60; ++i) {
            stream.update();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        EXPECT_EQ(processors_of_this_thread(), all);
    }).join();
    EXPECT_FALSE(std::filesystem::exists("/tmp/gaudi-no-such-file"));
}

} // namespace
