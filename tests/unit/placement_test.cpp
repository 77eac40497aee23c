// SPDX-License-Identifier: BSD-3-Clause
#include "lab/gaudi/placement.hpp"

#include <gtest/gtest.h>
#include <thread>
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

// Where a stream of an engine may run after looks that found so many threads, each many times.
std::vector<std::size_t> allowed_after(unsigned engine, std::vector<unsigned> found) {
    std::vector<std::size_t> result;
    std::thread([&] {
        placement stream(engine);
        for (const auto runnable : found)
            for (int i = 0; i < 200; ++i)
                stream.note(runnable);
        result = processors_of_this_thread();
    }).join();
    return result;
}

TEST(placement_test, crowded_streams_keep_to_the_processor_of_their_engine) {
    const auto all = processors_of_this_thread();
    const auto count = static_cast<unsigned>(all.size());
    for (unsigned engine = 0; engine < 2 * count; ++engine)
        EXPECT_EQ(allowed_after(engine, {count * 3}), std::vector<std::size_t>{all[engine % count]});
}

TEST(placement_test, streams_with_room_run_anywhere) {
    const auto all = processors_of_this_thread();
    EXPECT_EQ(allowed_after(1, {1}), all);
    const auto count = static_cast<unsigned>(all.size());
    EXPECT_EQ(allowed_after(1, {count * 3, 0}), all) << "when it is no longer crowded";
    EXPECT_EQ(allowed_after(0, {0, 1, 0, 1}), all) << "where the number is not known";
}

} // namespace
