// SPDX-License-Identifier: BSD-3-Clause
// The contract of every path, for every pair of places that it serves: it writes exactly the requested bytes,
// its ticket reports path and length, each finished copy is counted once, and copier::paths() lists the path
// as possible.
// labels of every test here: copies
#include "tests/contract/machine_test.hpp"
#include "tests/transfer/ends.hpp"

namespace {

using namespace testing_support;

enum class memory { host, first, second, foreign, leased }; // `first`, `second`: two devices of this process

struct path_case {
    copy_path path;
    memory to, from;
};

std::string test_name(const ::testing::TestParamInfo<path_case>& of) {
    constexpr const char* paths[] = {"host_copy",    "engine", "owner_context", "peer_dmabuf",
                                     "nic_loopback", "staged", "owner_proxy"};
    constexpr const char* memories[] = {"host", "first", "second", "foreign", "leased"};
    return fmt::format("{}_{}_to_{}", paths[static_cast<int>(of.param.path)],
                       memories[static_cast<int>(of.param.from)], memories[static_cast<int>(of.param.to)]);
}

class contract_test : public ipc_fixture<machine_test>, public ::testing::WithParamInterface<path_case> {
protected:
    static constexpr std::size_t largest = 3 * mebibyte + 4099;

    void SetUp() override {
        const auto& ends = GetParam();
        const bool second_device = ends.to != ends.from && on_device(ends.to) && on_device(ends.from);
        need(on_device(ends.to) || on_device(ends.from) ? second_device ? 2 : 1 : 0,
             ends.path == copy_path::nic_loopback ? 1 : 0);
    }
    static bool on_device(memory what) { return what != memory::host; }
    // Each kind of device memory is on a device of its own.
    std::unique_ptr<copy_place> make(memory what) {
        const unsigned number = what == GetParam().from && on_device(GetParam().to) ? 1 : 0;
        ipc_settings settings; // the owner gives only what the path needs
        if (GetParam().path == copy_path::owner_proxy)
            settings.give = ipc_give::nothing;
        else if (GetParam().path == copy_path::nic_loopback || GetParam().path == copy_path::peer_dmabuf)
            settings.give = ipc_give::dmabuf;
        switch (what) {
        case memory::host:
            return std::make_unique<host_place>(largest);
        case memory::first:
        case memory::second:
            return std::make_unique<device_place>(device_for_test(number), largest);
        case memory::foreign:
            return std::make_unique<foreign_place>(device_for_test(number), largest);
        case memory::leased:
            return std::make_unique<leased_place>(largest, settings, index_for_others(number));
        }
        return nullptr;
    }
    // Whether the path is possible here; if not, the test is skipped or has failed.
    static bool possible(copier& copies, const place& to, const place& from) {
        const auto verdicts = copies.paths(to, from);
        const auto& verdict = verdicts.at(static_cast<std::size_t>(GetParam().path));
        EXPECT_EQ(verdict.path, GetParam().path);
        if (verdict.why_not)
            skip(*verdict.why_not);
        return !verdict.why_not;
    }
};

using enum memory;
INSTANTIATE_TEST_SUITE_P(every, contract_test,
                         ::testing::Values(path_case{copy_path::host_copy, host, host},         //
                                           path_case{copy_path::engine, first, host},           //
                                           path_case{copy_path::engine, host, first},           //
                                           path_case{copy_path::engine, first, first},          //
                                           path_case{copy_path::owner_context, host, leased},   //
                                           path_case{copy_path::owner_context, leased, host},   //
                                           path_case{copy_path::peer_dmabuf, first, second},    //
                                           path_case{copy_path::peer_dmabuf, first, leased},    //
                                           path_case{copy_path::peer_dmabuf, leased, first},    //
                                           path_case{copy_path::peer_dmabuf, first, foreign},   //
                                           path_case{copy_path::peer_dmabuf, foreign, first},   //
                                           path_case{copy_path::nic_loopback, first, host},     //
                                           path_case{copy_path::nic_loopback, host, first},     //
                                           path_case{copy_path::nic_loopback, first, first},    //
                                           path_case{copy_path::nic_loopback, first, second},   //
                                           path_case{copy_path::nic_loopback, host, leased},    //
                                           path_case{copy_path::nic_loopback, leased, host},    //
                                           path_case{copy_path::nic_loopback, leased, first},   //
                                           path_case{copy_path::nic_loopback, first, leased},   //
                                           path_case{copy_path::nic_loopback, host, foreign},   //
                                           path_case{copy_path::nic_loopback, foreign, host},   //
                                           path_case{copy_path::nic_loopback, foreign, first},  //
                                           path_case{copy_path::nic_loopback, first, foreign},  //
                                           path_case{copy_path::nic_loopback, foreign, leased}, //
                                           path_case{copy_path::staged, first, second},         //
                                           path_case{copy_path::staged, first, leased},         //
                                           path_case{copy_path::staged, leased, first},         //
                                           path_case{copy_path::owner_proxy, host, leased},     //
                                           path_case{copy_path::owner_proxy, leased, host},     //
                                           path_case{copy_path::owner_proxy, first, leased},    //
                                           path_case{copy_path::owner_proxy, leased, first}),
                         test_name);

TEST_P(contract_test, is_kept) {
    const auto to = make(GetParam().to), from = make(GetParam().from);
    const auto path = GetParam().path;
    copier copies;
    const copy_policy only{path};
    const auto sent = pattern(largest, 5);
    auto expected = pattern(largest, 6);
    from->fill(sent);
    to->fill(expected);
    if (!possible(copies, to->part(0, largest), from->part(0, largest)))
        return;
    ASSERT_EQ(to->bytes(), expected) << "a look at the paths changed something";

    const auto before = process_statistics().copies.by(path);
    std::uint64_t count = 0, moved = 0, at = 0;
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{64}, std::size_t{4099}, 3 * mebibyte - 10000}) {
        const auto source = at + 3 * count;
        auto started = copies.copy(to->part(at, size), from->part(source, size), only);
        ASSERT_TRUE(started) << size << ": " << started.error().message();
        EXPECT_EQ(started->path(), path);
        EXPECT_EQ(started->bytes(), size);
        const auto done = started->wait();
        ASSERT_TRUE(done) << size << ": " << done.error().message();
        EXPECT_TRUE(started->done());
        std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(source), size,
                    expected.begin() + static_cast<std::ptrdiff_t>(at));
        at += size + 100;
        moved += size;
        ++count;
    }
    const auto after = process_statistics().copies.by(path);
    EXPECT_TRUE(to->bytes() == expected);
    EXPECT_TRUE(from->bytes() == sent);
    EXPECT_EQ(after.operations - before.operations, count);
    EXPECT_EQ(after.bytes - before.bytes, moved);
}

// Several copies in flight at a time; only copier::poll() drives them until they complete.
TEST_P(contract_test, is_kept_by_many_at_a_time) {
    const auto to = make(GetParam().to), from = make(GetParam().from);
    copier copies;
    if (!possible(copies, to->part(0, largest), from->part(0, largest)))
        return;
    const auto sent = pattern(largest, 7);
    from->fill(sent);
    constexpr std::size_t size = 200001, step = 200704;
    std::vector<copy_ticket> tickets;
    for (std::uint64_t at = 0; at + size <= largest; at += step) {
        auto started = copies.copy(to->part(at, size), from->part(at, size), {GetParam().path});
        if (!started && started.error().code() == errc::too_many_operations) { // the owner has no free slab
            while (!tickets.front().finished())
                copies.poll();
            tickets.erase(tickets.begin());
            at -= step;
            continue;
        }
        ASSERT_TRUE(started) << started.error().message();
        tickets.push_back(std::move(*started));
    }
    EXPECT_TRUE(soon_true([&] {
        copies.poll();
        return std::all_of(tickets.begin(), tickets.end(), [](auto& each) { return each.finished(); });
    }));
    for (auto& each : tickets)
        EXPECT_TRUE(each.wait(milliseconds(0)));
    const auto seen = to->bytes();
    for (std::uint64_t at = 0; at + size <= largest; at += step)
        ASSERT_TRUE(std::equal(seen.begin() + static_cast<std::ptrdiff_t>(at),
                               seen.begin() + static_cast<std::ptrdiff_t>(at + size),
                               sent.begin() + static_cast<std::ptrdiff_t>(at)))
            << at;
}

} // namespace
