// SPDX-License-Identifier: BSD-3-Clause
// Every path between two processes, with every byte checked.
#include "tests/ipc/ipc_test.hpp"

namespace {

using namespace testing_support;

struct path_case {
    copy_path path;
    bool device; // the importer's end is device memory
    ipc_give give = ipc_give::context;
};

// The lab makes every path possible; the owner gives what the tested path needs.
class path_test : public ipc_test, public ::testing::WithParamInterface<path_case> {
protected:
    void SetUp() override {
        ipc_test::SetUp();
        describe("gaudis = 2\nhcas = 1\ndmabuf_import = yes");
        settings.give = GetParam().give;
    }
    ipc_settings settings;
    const import_options only{GetParam().path};
};

std::string test_name(const ::testing::TestParamInfo<path_case>& of) {
    constexpr const char* names[] = {"cpu", "engine", "context", "import", "nic", "staged", "proxy"};
    return std::string(names[static_cast<int>(of.param.path)]) + (of.param.device ? "_device" : "_host");
}

INSTANTIATE_TEST_SUITE_P(all, path_test,
                         ::testing::Values(path_case{copy_path::owner_context, false},
                                           path_case{copy_path::peer_dmabuf, true},
                                           path_case{copy_path::nic_loopback, false, ipc_give::dmabuf},
                                           path_case{copy_path::nic_loopback, true, ipc_give::dmabuf},
                                           path_case{copy_path::staged, true},
                                           path_case{copy_path::owner_proxy, false, ipc_give::nothing},
                                           path_case{copy_path::owner_proxy, true, ipc_give::nothing}),
                         test_name);

// Leases of importers, in use or cached, do not keep the owner's device busy.
TEST_P(path_test, the_owner_closes_its_device_and_opens_it_again_at_once) {
    owner other(0, settings);
    destination to(GetParam().device, mebibyte);
    const auto free = other.open_again();
    ASSERT_GT(free, 0U);
    for (const bool kept : {false, true})
        for (unsigned round = 0; round < 10; ++round) {
            std::optional<imported_buffer> imported = expect(import_memory(other.share(mebibyte, 7), only));
            auto reading = to.read(*imported);
            ASSERT_TRUE(reading) << reading.error().message();
            ASSERT_TRUE(reading->wait());
            if (!kept) {
                reading = copy_ticket{};
                imported.reset();
            }
            EXPECT_TRUE(soon_true([&] { return other.open_again() > 0; })) << round;
            if (kept) {
                EXPECT_TRUE(imported->gone());
                EXPECT_EQ(to.read(*imported).error().code(), errc::lease_revoked);
            }
        }
    // All memory of the device becomes free again.
    EXPECT_TRUE(soon_true([&] { return other.open_again() == free; }));
}

TEST_P(path_test, a_device_that_its_owner_closed_is_free_for_others) {
    owner other(0, settings);
    destination to(GetParam().device, 4096);
    {
        auto imported = expect(import_memory(other.share(4096, 7), only));
        auto reading = expect(to.read(imported));
        ASSERT_TRUE(reading.wait());
    }
    EXPECT_EQ(open_device(by_index{0}).error().code(), errc::device_busy);
    other.close();
    EXPECT_TRUE(soon_true([&] { return open_device(by_index{0}).has_value(); }));
}

// The path that the library chooses by default.
copy_path chosen(owner& other, bool device, const std::shared_ptr<gaudi::device>& own) {
    auto imported = expect(import_memory(other.share(4096, 1)));
    auto local = expect(own->heap().allocate(4096));
    std::vector<std::byte> host(4096);
    auto reading = expect(device ? imported.read(local.address(), 0, 4096) : imported.read(host));
    expect(reading.wait());
    return reading.path();
}

TEST_F(ipc_test, the_best_viable_path_is_taken) {
    for (const bool import : {true, false})
        for (const std::string nics : {"hcas = 1", "hcas = 0", "hcas = 1\n[hca 0]\ndmabuf = no"})
            for (const auto give : {ipc_give::context, ipc_give::dmabuf, ipc_give::nothing}) {
                SCOPED_TRACE(fmt::format("import {}, {}, gives {}", import, nics, static_cast<int>(give)));
                describe(fmt::format("gaudis = 2\ndmabuf_import = {}\n{}", import ? "yes" : "no", nics));
                const bool nic = nics == "hcas = 1";
                ipc_settings settings;
                settings.give = give;
                {
                    owner other(0, settings);
                    const auto own = expect(open_device(by_index{1}));
                    const bool dmabuf = give != ipc_give::nothing;
                    EXPECT_EQ(chosen(other, true, own), import && dmabuf            ? copy_path::peer_dmabuf
                                                        : nic && dmabuf             ? copy_path::nic_loopback
                                                        : give == ipc_give::context ? copy_path::staged
                                                                                    : copy_path::owner_proxy);
                    EXPECT_EQ(chosen(other, false, own), give == ipc_give::context ? copy_path::owner_context
                                                         : nic && dmabuf           ? copy_path::nic_loopback
                                                                                   : copy_path::owner_proxy);
                }
                stop_ipc();
            }
}

TEST_F(ipc_test, zero_copy_can_be_required) {
    ipc_settings settings;
    settings.give = ipc_give::nothing;
    owner other(0, settings);
    import_options options;
    options.zero_copy = true;
    auto imported = expect(import_memory(other.share(4096, 1), options));
    std::vector<std::byte> host(4096);
    const auto refused = imported.read(host);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::zero_copy_impossible);
    EXPECT_NE(refused.error().observed().find("the owner passes no DMA-BUF"), std::string::npos)
        << refused.error().message();
    EXPECT_NE(refused.error().observed().find("does not pass its device's descriptor"), std::string::npos)
        << refused.error().message();
}

TEST_F(ipc_test, the_only_allowed_path_fails_with_its_reason) {
    owner other;
    import_options options;
    options.only = copy_path::peer_dmabuf; // this driver cannot import
    auto imported = expect(import_memory(other.share(4096, 1), options));
    std::vector<std::byte> host(4096);
    const auto refused = imported.read(host);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), errc::no_path) << refused.error().message();
    EXPECT_NE(refused.error().message().find("no import_options::only"), std::string::npos)
        << refused.error().message();
}

TEST_F(ipc_test, other_generations_by_the_paths_they_have) {
    struct generation_case {
        const char* name;
        std::vector<copy_path> possible, impossible;
    };
    for (const auto& [name, possible, impossible] :
         {generation_case{
              "gaudi", {copy_path::owner_context, copy_path::nic_loopback, copy_path::owner_proxy}, {}},
          generation_case{
              "gaudi3", {copy_path::nic_loopback}, {copy_path::owner_context, copy_path::owner_proxy}}}) {
        SCOPED_TRACE(name);
        describe(fmt::format("gaudis = 2\nhcas = 1\ngeneration = {}", name));
        gate over;
        int ends[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        child other([&] { // the owner does not fill the memory: Gaudi3 has no engine
            const auto opened_device = expect(open_device(by_index{0}));
            auto buffer = expect(opened_device->heap().allocate(mebibyte));
            const auto handle = expect(share(buffer));
            if (::send(ends[1], &handle, sizeof(handle), 0) != sizeof(handle) || !over.wait())
                return 1;
            buffer = {};
            stop_ipc();
            return 0;
        });
        memory_handle handle;
        ASSERT_EQ(::recv(ends[0], &handle, sizeof(handle), 0), static_cast<ssize_t>(sizeof(handle)));
        std::vector<std::byte> seen(mebibyte);
        for (const auto path : possible) {
            auto imported = expect(import_memory(handle, {path}));
            const auto bytes = pattern(mebibyte, static_cast<unsigned>(path));
            expect(expect(imported.write(0, bytes)).wait());
            expect(expect(imported.read(seen)).wait());
            EXPECT_EQ(seen, bytes) << name_of(path);
        }
        for (const auto path : impossible) {
            auto imported = expect(import_memory(handle, {path}));
            auto begun = imported.read(seen);
            const auto outcome = begun ? begun->wait() : result<void>(tl::unexpected(begun.error()));
            ASSERT_FALSE(outcome) << name_of(path);
            EXPECT_EQ(outcome.error().code(), errc::copies_absent) << outcome.error().message();
        }
        over.open();
        EXPECT_EQ(other.wait(), 0);
        ::close(ends[0]);
        ::close(ends[1]);
        stop_ipc();
    }
}

TEST_F(ipc_test, own_memory_needs_no_broker) {
    const auto own = expect(open_device(by_index{0}));
    auto buffer = expect(own->heap().allocate(10000));
    auto imported = expect(import_memory(expect(share(buffer))));
    const auto bytes = pattern(10000, 3);
    auto writing = expect(imported.write(0, bytes));
    EXPECT_EQ(writing.path(), copy_path::engine);
    expect(writing.wait());
    std::vector<std::byte> seen(10000);
    expect(expect(imported.read(seen)).wait());
    EXPECT_EQ(seen, bytes);
    buffer = {};
    EXPECT_EQ(imported.read(seen).error().code(), errc::handle_stale);
}

TEST_F(ipc_test, part_of_a_buffer_is_shared_and_no_more) {
    const auto own = expect(open_device(by_index{0}));
    auto buffer = expect(own->heap().allocate(10000));
    auto imported = expect(import_memory(expect(share(buffer.address() + 1000, 500))));
    EXPECT_EQ(imported.size(), 500U);
    std::vector<std::byte> seen(501);
    EXPECT_EQ(imported.read(seen).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(imported.read(std::span(seen).first(100), 401).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(imported.read(std::span(seen).first(0)).error().code(), errc::size_zero);
    EXPECT_TRUE(expect(imported.read(std::span(seen).first(100), 400)).wait());
    EXPECT_EQ(share(buffer.address(), 10001).error().code(), errc::range_leaves_allocation);
    EXPECT_EQ(share(device_address(64), 1).error().code(), errc::not_allocated);
    EXPECT_EQ(share(device_buffer()).error().code(), errc::not_allocated);
}

// Two processes have memory on one device: the second joins the context of the first.
TEST_F(ipc_test, two_processes_on_one_device) {
    describe("gaudis = 1\nhcas = 0");
    gate offered, over;
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    child first([&] {
        const auto opened_device = expect(open_device(by_index{0}));
        expect(offer_device(*opened_device));
        auto buffer = expect(opened_device->heap().allocate(5 * mebibyte));
        auto engine = expect(opened_device->copies());
        expect(expect(engine.write(buffer.address(), pattern(5 * mebibyte, 1))).wait());
        const auto handle = expect(share(buffer));
        if (::send(ends[1], &handle, sizeof(handle), 0) != sizeof(handle))
            return 1;
        memory_handle theirs; // the context owner imports memory of the member
        if (::recv(ends[1], &theirs, sizeof(theirs), 0) != sizeof(theirs))
            return 2;
        auto imported = expect(import_memory(theirs));
        std::vector<std::byte> seen(mebibyte);
        auto reading = expect(imported.read(seen));
        if (!reading.wait() || reading.path() != copy_path::owner_context || seen != pattern(mebibyte, 3))
            return 3;
        offered.open();
        if (!over.wait())
            return 4;
        std::vector<std::byte> mine(5 * mebibyte);
        expect(expect(engine.read(mine, buffer.address())).wait());
        buffer = {};
        stop_ipc();
        return mine == pattern(5 * mebibyte, 2) ? 0 : 5;
    });
    memory_handle handle;
    ASSERT_EQ(::recv(ends[0], &handle, sizeof(handle), 0), static_cast<ssize_t>(sizeof(handle)));
    {
        const auto opened_device = expect(open_device(by_index{0})); // the device is busy: joins its context
        auto engine = expect(opened_device->copies());
        auto own = expect(opened_device->heap().allocate(5 * mebibyte));
        auto small = expect(opened_device->heap().allocate(mebibyte));
        expect(expect(engine.write(small.address(), pattern(mebibyte, 3))).wait());
        const auto theirs = expect(share(small));
        ASSERT_EQ(::send(ends[0], &theirs, sizeof(theirs), 0), static_cast<ssize_t>(sizeof(theirs)));
        ASSERT_TRUE(offered.wait());
        auto imported = expect(import_memory(handle));
        auto reading = expect(imported.read(own.address(), 0, 5 * mebibyte));
        EXPECT_EQ(reading.path(), copy_path::owner_context);
        expect(reading.wait());
        std::vector<std::byte> seen(5 * mebibyte);
        expect(expect(engine.read(seen, own.address())).wait());
        EXPECT_EQ(seen, pattern(5 * mebibyte, 1));
        expect(expect(engine.write(own.address(), pattern(5 * mebibyte, 2))).wait());
        expect(expect(imported.write(0, own.address(), 5 * mebibyte)).wait());
    }
    stop_ipc();
    over.open();
    EXPECT_EQ(first.wait(), 0);
    ::close(ends[0]);
    ::close(ends[1]);
    EXPECT_TRUE(open_device(by_index{0})) << "free again";
}

// Owner and importer submit on one context at the same time, more than the driver accepts. Neither may call
// hl-thunk with more than 64 submissions in flight: the 65th call spins there.
TEST_F(ipc_test, a_member_and_the_owner_share_the_queues) {
    owner other;
    const auto handle = other.share(mebibyte, 5);
    const import_options only{copy_path::owner_context};
    auto imported = expect(import_memory(handle, only));
    std::thread owners_own([&] { EXPECT_TRUE(other.copies(0, 1000)); });
    std::vector<std::vector<std::byte>> targets(64, std::vector<std::byte>(8192));
    for (int round = 0; round < 16; ++round) {
        std::vector<copy_ticket> tickets;
        for (auto& each : targets)
            tickets.push_back(expect(imported.read(each, 4096)));
        for (auto& each : tickets)
            EXPECT_TRUE(each.wait());
    }
    owners_own.join();
    const auto all = pattern(mebibyte, 5);
    for (const auto& each : targets)
        EXPECT_TRUE(std::equal(each.begin(), each.end(), all.begin() + 4096));
}

} // namespace
