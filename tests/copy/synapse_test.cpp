// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: detection dmabuf
// Pitfall 36: SynapseAI in the same process holds the device and all of its memory.
#include <gaudi/gaudi.hpp>

#include "lab/dmabuf.h"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"

#include <dlfcn.h>
#include <poll.h>

namespace {

using namespace gaudi;
using namespace testing_support;

class synapse_test : public test_lab {
protected:
    static constexpr std::uint64_t pool = 768ULL << 22;

    void SetUp() override {
        library_ = ::dlopen(FAKE_SYNAPSE, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library_, nullptr) << ::dlerror();
        const auto acquire =
            reinterpret_cast<int (*)(const char*, std::uint64_t)>(::dlsym(library_, "fake_synapse_acquire"));
        ASSERT_EQ(acquire("0000:1a:00.0", pool), 0);
    }
    void TearDown() override {
        reinterpret_cast<void (*)()>(::dlsym(library_, "fake_synapse_release"))();
        ::dlclose(library_);
        test_lab::TearDown();
    }
    // Device address of the fake's memory, from the call that the library also uses.
    std::uint64_t pool_base() const {
        std::uint64_t info[64] = {};
        reinterpret_cast<int (*)(std::uint32_t, void*)>(::dlsym(library_, "synDeviceGetInfoV2"))(0, info);
        return info[8];
    }
    int call(const char* name, int argument = 0) const {
        return reinterpret_cast<int (*)(int)>(::dlsym(library_, name))(argument);
    }
    void* library_ = nullptr;
};

std::vector<std::byte> numbered(std::size_t size, unsigned seed) {
    std::vector<std::byte> made(size);
    for (std::size_t i = 0; i < size; ++i)
        made[i] = static_cast<std::byte>(i * 7 + i / 253 + seed);
    return made;
}

TEST_F(synapse_test, its_own_call_copies_where_the_queues_are_its) {
    const auto opened_device = *open_device(by_index{1});
    const device_address base(pool_base());
    const auto before = call("fake_synapse_copied");
    {
        auto engine = expect(opened_device->copies());
        for (const std::size_t size :
             {std::size_t{1}, std::size_t{4096}, std::size_t{16384}, std::size_t{5} << 20}) {
            const auto out = numbered(size, 1);
            auto in = numbered(size, 2);
            expect(expect(engine.write(base + 100, out)).wait());
            expect(expect(engine.copy(base + (64 << 20), base + 100, size)).wait());
            expect(expect(engine.read(in, base + (64 << 20))).wait());
            EXPECT_EQ(in, out) << size;
        }
        EXPECT_EQ(call("fake_synapse_copied") - before, 12);
        EXPECT_EQ(engine.statistics().bounced, 6U);
        EXPECT_EQ(engine.statistics().mapped, 2U);

        auto memory = numbered(1 << 20, 3);
        {
            const auto pinned = expect(engine.pin(memory));
            expect(expect(engine.write(base, std::span(memory).subspan(1000, 100000))).wait());
            EXPECT_EQ(engine.statistics().pinned, 1U);
        }
        EXPECT_EQ(call("fake_synapse_mapped"), 1) << "its slab alone";

        EXPECT_EQ(engine.write(base + (pool - 10), std::span(memory).first(11)).error().code(),
                  errc::not_allocated);
        EXPECT_EQ(engine.write(device_address(4096), memory).error().code(), errc::not_allocated);
        EXPECT_EQ(engine.write(base, std::span(memory).first(0)).error().code(), errc::size_zero);
        EXPECT_EQ(engine.copy(base, base + 10, 100).error().code(), errc::ranges_overlap);
    }
    EXPECT_EQ(call("fake_synapse_mapped"), 0);
}

TEST_F(synapse_test, its_copies_are_asynchronous_and_wake_a_sleeper) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    const int event = expect(engine.event_fd());
    const auto out = numbered(64 << 20, 1);
    std::vector<copy_ticket> tickets;
    for (int i = 0; i < 8; ++i)
        tickets.push_back(expect(engine.write(device_address(pool_base()), out)));
    EXPECT_FALSE(tickets.back().done());
    while (!tickets.back().finished()) {
        pollfd waiting{event, POLLIN, 0};
        ASSERT_EQ(::poll(&waiting, 1, 10000), 1) << "nothing woke the sleeper";
        std::uint64_t count = 0;
        ASSERT_EQ(::read(event, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
        engine.poll();
    }
}

TEST_F(synapse_test, tickets_dropped_in_flight_end_their_copies) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    const device_address base(pool_base());
    constexpr std::size_t size = 8 << 20;
    const auto out = numbered(8 * size, 1);
    const int before = call("fake_synapse_copied");
    {
        std::vector<copy_ticket> tickets;
        for (std::size_t i = 0; i < 8; ++i)
            tickets.push_back(expect(engine.write(base + i * size, std::span(out).subspan(i * size, size))));
        EXPECT_FALSE(tickets.back().finished());
    }
    EXPECT_EQ(call("fake_synapse_mapped"), 1 + 8) << "memory of copies in flight is no longer mapped";
    while (engine.statistics().completed < 8)
        engine.poll();
    EXPECT_EQ(call("fake_synapse_copied") - before, 8);
    EXPECT_EQ(call("fake_synapse_mapped"), 1) << "a copy that has ended keeps its mapping";
    std::vector<std::byte> in(out.size());
    expect(expect(engine.read(in, base)).wait());
    EXPECT_EQ(in, out);
}

TEST_F(synapse_test, what_its_copies_answer_reaches_the_ticket) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    const auto out = numbered(4096, 1);
    call("fake_synapse_break", 26);
    const auto refused = expect(engine.write(device_address(pool_base()), out)).wait();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::copy_refused);
    EXPECT_FALSE(engine.lost());
    call("fake_synapse_break", 17);
    const auto lost = expect(engine.write(device_address(pool_base()), out)).wait();
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), errc::device_lost);
    EXPECT_EQ(engine.write(device_address(pool_base()), out).error().code(), errc::device_lost);
    call("fake_synapse_break", 0);
}

TEST_F(synapse_test, p36_attaches_to_its_descriptor_and_never_closes_it) {
    int fd = -1;
    {
        const auto opened = open_device(by_index{1});
        ASSERT_TRUE(opened) << opened.error().message();
        EXPECT_TRUE((*opened)->attached());
        fd = (*opened)->descriptor();
        EXPECT_EQ((*opened)->heap().allocate(4096).error().code(), errc::memory_exhausted);
        EXPECT_EQ(known_memory().device_of(device_address(pool_base() + 12345)), 1U);
    }
    EXPECT_NE(hlthunk_get_device_id_from_fd(fd), 0U) << "closed by us";
    const auto other = open_device(by_index{0});
    ASSERT_TRUE(other);
    EXPECT_FALSE((*other)->attached());
}

TEST_F(synapse_test, p36_exports_from_the_base_of_its_pool) {
    const auto opened = *open_device(by_index{1});
    const device_address found(pool_base());
    const auto window = opened->export_foreign(found + (768ULL << 20) + 4096 + 100, 5000);
    ASSERT_TRUE(window) << window.error().message();
    EXPECT_EQ(window->offset, 100U);
    EXPECT_EQ(window->iova, found + (768ULL << 20) + 4096 + 100);
    gaudi_lab_dmabuf head{};
    gaudi_lab_range ranges[4]{};
    char path[512];
    ASSERT_EQ(gaudi_lab_dmabuf_describe(window->fd, &head, ranges, 4, path, sizeof(path)), 0);
    EXPECT_EQ(head.size, 8192U);
    ::close(window->fd);
    EXPECT_EQ(opened->export_foreign(found + (pool - 10), 11).error().code(), errc::range_leaves_allocation);
    const auto own = *open_device(by_index{0});
    EXPECT_EQ(own->export_foreign(found, 10).error().code(), errc::not_allocated);
}

} // namespace
