// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: detection dmabuf
// Pitfall 36: SynapseAI in the same process holds the device and all of its memory.
#include <gaudi/gaudi.hpp>

#include "lab/dmabuf.h"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"
#include "tests/support/virtual_synapse.hpp"

#include <dlfcn.h>
#include <optional>
#include <poll.h>

namespace {

using namespace gaudi;
using namespace testing_support;

class synapse_test : public test_lab {
protected:
    void SetUp() override { synapse.emplace("0000:1a:00.0", RTLD_LOCAL); }
    void TearDown() override {
        synapse.reset();
        test_lab::TearDown();
    }
    [[nodiscard]] device_address pool_base() const { return device_address(synapse->pool()); }
    std::optional<virtual_synapse> synapse;
};

std::vector<std::byte> numbered(std::size_t size, unsigned seed) {
    std::vector<std::byte> made(size);
    for (std::size_t i = 0; i < size; ++i)
        made[i] = static_cast<std::byte>(i * 7 + i / 253 + seed);
    return made;
}

TEST_F(synapse_test, its_own_call_copies_where_the_queues_are_its) {
    const auto opened_device = *open_device(by_index{1});
    const auto base = pool_base();
    const auto before = synapse->copied();
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
        EXPECT_EQ(synapse->copied() - before, 12U);
        EXPECT_EQ(engine.statistics().bounced, 6U);
        EXPECT_EQ(engine.statistics().mapped, 2U);

        auto memory = numbered(1 << 20, 3);
        {
            const auto pinned = expect(engine.pin(memory));
            expect(expect(engine.write(base, std::span(memory).subspan(1000, 100000))).wait());
            EXPECT_EQ(engine.statistics().pinned, 1U);
        }
        EXPECT_EQ(synapse->mapped(), 1U) << "its slab alone";

        EXPECT_EQ(
            engine.write(base + (synapse->pool_size() - 10), std::span(memory).first(11)).error().code(),
            errc::not_allocated);
        EXPECT_EQ(engine.write(device_address(4096), memory).error().code(), errc::not_allocated);
        EXPECT_EQ(engine.write(base, std::span(memory).first(0)).error().code(), errc::size_zero);
        EXPECT_EQ(engine.copy(base, base + 10, 100).error().code(), errc::ranges_overlap);
    }
    EXPECT_EQ(synapse->mapped(), 0U);
}

TEST_F(synapse_test, its_copies_are_asynchronous_and_wake_a_sleeper) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    const int event = expect(engine.event_fd());
    const auto out = numbered(64 << 20, 1);
    std::vector<copy_ticket> tickets;
    for (int i = 0; i < 8; ++i)
        tickets.push_back(expect(engine.write(pool_base(), out)));
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
    const auto base = pool_base();
    constexpr std::size_t size = 8 << 20;
    const auto out = numbered(8 * size, 1);
    const auto before = synapse->copied();
    {
        std::vector<copy_ticket> tickets;
        for (std::size_t i = 0; i < 8; ++i)
            tickets.push_back(expect(engine.write(base + i * size, std::span(out).subspan(i * size, size))));
        EXPECT_FALSE(tickets.back().finished());
    }
    EXPECT_EQ(synapse->mapped(), 1U + 8) << "memory of copies in flight is no longer mapped";
    while (engine.statistics().completed < 8)
        engine.poll();
    EXPECT_EQ(synapse->copied() - before, 8U);
    EXPECT_EQ(synapse->mapped(), 1U) << "a copy that has ended keeps its mapping";
    std::vector<std::byte> in(out.size());
    expect(expect(engine.read(in, base)).wait());
    EXPECT_EQ(in, out);
}

TEST_F(synapse_test, what_its_copies_answer_reaches_the_ticket) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    const auto out = numbered(4096, 1);
    synapse->arm_faults("synEventQuery 1 errno EIO");
    const auto refused = expect(engine.write(pool_base(), out)).wait();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::copy_refused);
    EXPECT_FALSE(engine.lost());
    synapse->arm_faults("synEventQuery 1 errno ENODEV");
    const auto lost = expect(engine.write(pool_base(), out)).wait();
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), errc::device_lost);
    EXPECT_EQ(engine.write(pool_base(), out).error().code(), errc::device_lost);
    synapse->arm_faults("");
}

// SynapseAI maps the same memory once, however often it is asked, and the first unmapping ends it.
TEST_F(synapse_test, copies_of_overlapping_memory_share_their_mappings) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    constexpr std::size_t mib = 1 << 20;
    auto out = numbered(8 * mib, 1);
    {
        const auto pinned = expect(engine.pin(std::span(out).subspan(4 * mib, mib)));
        std::vector<copy_ticket> tickets;
        // The same range, ranges that overlap it on either side, and one around a pinned one.
        for (const auto& [begin, length] : {std::pair(mib, mib), std::pair(mib, mib), std::pair(mib / 2, mib),
                                            std::pair(3 * mib / 2, mib), std::pair(3 * mib, 3 * mib)})
            tickets.push_back(
                expect(engine.write(pool_base() + begin, std::span(out).subspan(begin, length))));
        for (auto& ticket : tickets)
            expect(ticket.wait());
        EXPECT_EQ(synapse->mapped(), 2U) << "the slab, and what is pinned";
    }
    EXPECT_EQ(synapse->mapped(), 1U);
    std::vector<std::byte> in(out.size());
    expect(expect(engine.read(in, pool_base())).wait());
    for (const auto& [begin, end] : {std::pair(mib / 2, 5 * mib / 2), std::pair(3 * mib, 6 * mib)})
        EXPECT_TRUE(std::equal(in.begin() + static_cast<std::ptrdiff_t>(begin),
                               in.begin() + static_cast<std::ptrdiff_t>(end),
                               out.begin() + static_cast<std::ptrdiff_t>(begin)));
    EXPECT_FALSE(engine.lost());
}

// The copy has started by then, and nothing will report its end.
TEST_F(synapse_test, a_copy_without_an_event_keeps_its_memory) {
    const auto opened_device = *open_device(by_index{1});
    auto engine = expect(opened_device->copies());
    const auto out = numbered(64 << 20, 1);
    const auto before = synapse->copied();
    synapse->arm_faults("synEventRecord 1 errno EIO");
    EXPECT_EQ(engine.write(pool_base(), out).error().code(), errc::copy_refused);
    EXPECT_EQ(synapse->copied() - before, 1U) << "it ran before its memory was unmapped";
    EXPECT_EQ(synapse->mapped(), 1U);
    synapse->arm_faults("");
    expect(expect(engine.write(pool_base(), out)).wait());
}

TEST_F(synapse_test, p36_attaches_to_its_descriptor_and_never_closes_it) {
    int fd = -1;
    {
        const auto opened = open_device(by_index{1});
        ASSERT_TRUE(opened) << opened.error().message();
        EXPECT_TRUE((*opened)->attached());
        fd = (*opened)->descriptor();
        EXPECT_EQ((*opened)->heap().allocate(4096).error().code(), errc::memory_exhausted);
        EXPECT_EQ(known_memory().device_of(pool_base() + 12345), 1U);
    }
    EXPECT_NE(hlthunk_get_device_id_from_fd(fd), 0U) << "closed by us";
    const auto other = open_device(by_index{0});
    ASSERT_TRUE(other);
    EXPECT_FALSE((*other)->attached());
}

TEST_F(synapse_test, p36_exports_from_the_base_of_its_pool) {
    const auto opened = *open_device(by_index{1});
    const auto found = pool_base();
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
    EXPECT_EQ(opened->export_foreign(found + (synapse->pool_size() - 10), 11).error().code(),
              errc::range_leaves_allocation);
    const auto own = *open_device(by_index{0});
    EXPECT_EQ(own->export_foreign(found, 10).error().code(), errc::not_allocated);
}

// Where the pool is, by each source.
class synapse_pool_test : public synapse_test {
protected:
    void SetUp() override {}
    void start(std::string_view description) {
        describe(description);
        synapse.emplace("", RTLD_LOCAL);
    }
    void TearDown() override {
        ::unsetenv("GAUDI_LAB_SYNAPSE_VERSION");
        synapse_test::TearDown();
    }
};

TEST_F(synapse_pool_test, is_told_by_scal) {
    for (const auto* generation : {"gaudi2", "gaudi3"}) {
        SCOPED_TRACE(generation);
        start(std::string("gaudis = 1\ngeneration = ") + generation);
        const auto opened = *open_device(by_index{0});
        const auto pool = expect(opened->synapse_pool());
        EXPECT_EQ(pool.told_by, gaudi::synapse_pool::source::scal);
        EXPECT_EQ(pool.base, pool_base());
        EXPECT_EQ(pool.size, synapse->pool_size());
        EXPECT_EQ(pool.mapping.value(), synapse->mapping());
        EXPECT_EQ(known_memory().device_of(device_address(synapse->allocate(4096))), 0U);
        EXPECT_EQ(known_memory().device_of(pool.base + (pool.size - 1)), 0U);
        EXPECT_FALSE(known_memory().device_of(pool.base + pool.size));
        EXPECT_FALSE(known_memory().device_of(device_address(pool.base.value() - 1)));
        synapse.reset();
    }
}

TEST_F(synapse_pool_test, is_told_by_the_device_information_where_scal_does_not) {
    ::setenv("GAUDI_LAB_SYNAPSE_VERSION", "1.18", 1);
    for (const auto* generation : {"gaudi2", "gaudi3"}) {
        SCOPED_TRACE(generation);
        start(std::string("gaudis = 1\ngeneration = ") + generation);
        synapse->arm_faults("scal_get_handle_from_fd every errno EIO");
        const auto opened = *open_device(by_index{0});
        const auto pool = expect(opened->synapse_pool());
        EXPECT_EQ(pool.told_by, gaudi::synapse_pool::source::device_info);
        EXPECT_EQ(pool.base.value(), synapse->mapping());
        EXPECT_EQ(known_memory().device_of(pool_base()), 0U);
        EXPECT_EQ(known_memory().device_of(pool_base() + (synapse->pool_size() - 1)), 0U)
            << "to its last byte";
        synapse->arm_faults("");
        synapse.reset();
    }
}

TEST_F(synapse_pool_test, is_not_published_where_nothing_proves_it) {
    for (const bool told : {false, true}) {
        SCOPED_TRACE(told);
        start("gaudis = 1");
        if (told)
            gaudi_lab_arm_faults("hlthunk_device_mapped_memory_export_dmabuf_fd every errno EINVAL");
        else
            synapse->arm_faults("scal_pool_get_infoV2 every errno EIO");
        const auto opened = *open_device(by_index{0});
        EXPECT_TRUE(opened->attached());
        const auto pool = opened->synapse_pool();
        ASSERT_FALSE(pool);
        EXPECT_EQ(pool.error().code(), errc::not_allocated);
        EXPECT_NE(pool.error().observed().find(told ? "hlthunk_device_mapped_memory_export_dmabuf_fd"
                                                    : "neither SCAL nor SynapseAI's device information"),
                  std::string::npos)
            << pool.error().message();
        EXPECT_FALSE(known_memory().device_of(pool_base()));
        EXPECT_EQ(opened->export_foreign(pool_base(), 4096).error().observed(), pool.error().observed());
        gaudi_lab_arm_faults("");
        synapse->arm_faults("");
        synapse.reset();
    }
}

TEST_F(synapse_pool_test, leaves_the_memory_of_scal_before_it_alone) {
    start("gaudis = 1");
    const auto opened = *open_device(by_index{0});
    for (const auto address : {synapse->mapping(), pool_base().value() - 1})
        EXPECT_EQ(opened->export_foreign(device_address(address), 1).error().code(),
                  errc::range_leaves_allocation);
    const auto window = expect(opened->export_foreign(pool_base(), 1));
    ::close(window.fd);
}

// SCAL's mappings begin where the driver's range for hints begins on Gaudi3.
TEST_F(synapse_pool_test, lies_beside_the_memory_of_another_device_of_this_process) {
    for (const auto* generation : {"gaudi2", "gaudi3"}) {
        SCOPED_TRACE(generation);
        describe(std::string("gaudis = 2\ngeneration = ") + generation);
        synapse.emplace("0000:1a:00.0", RTLD_LOCAL);
        const auto own = expect(open_device(by_index{0})), attached = expect(open_device(by_index{1}));
        const auto buffer = expect(own->heap().allocate(1 << 20));
        EXPECT_EQ(known_memory().device_of(buffer.address()), 0U);
        EXPECT_EQ(known_memory().device_of(pool_base()), 1U);
        synapse.reset();
    }
}

} // namespace
