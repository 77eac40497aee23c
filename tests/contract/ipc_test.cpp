// SPDX-License-Identifier: BSD-3-Clause
// Every path between two processes, in both directions, with every byte checked.
// labels of every test here: ipc
#include "tests/contract/machine_test.hpp"
#include "tests/ipc/owner.hpp"

namespace {

using namespace testing_support;

struct ipc_case {
    copy_path path;
    bool device; // the importer's end is device memory
    ipc_give give = ipc_give::context;
};

// The owner gives what the tested path needs.
class every_path : public ipc_fixture<machine_test>, public ::testing::WithParamInterface<ipc_case> {
protected:
    void SetUp() override {
        need(GetParam().device ? 2 : 1, GetParam().path == copy_path::nic_loopback ? 1 : 0, 2);
        settings.give = GetParam().give;
    }
    // Whether the path is possible here; if not, the test is skipped or has failed.
    static bool possible(imported_buffer& imported, const place& local) {
        copier copies;
        const auto verdicts = copies.paths(local, imported);
        const auto& why_not = verdicts.at(static_cast<std::size_t>(GetParam().path)).why_not;
        if (why_not)
            skip(*why_not);
        return !why_not;
    }
    // For the local end; nullptr: it is host memory.
    std::shared_ptr<device> own_device() { return GetParam().device ? device_for_test(1) : nullptr; }
    ipc_settings settings;
    const import_options only{GetParam().path};
};

std::string name_of_case(const ::testing::TestParamInfo<ipc_case>& of) {
    constexpr const char* names[] = {"cpu", "engine", "context", "import", "nic", "staged", "proxy"};
    return std::string(names[static_cast<int>(of.param.path)]) + (of.param.device ? "_device" : "_host");
}

INSTANTIATE_TEST_SUITE_P(all, every_path,
                         ::testing::Values(ipc_case{copy_path::owner_context, false},
                                           ipc_case{copy_path::peer_dmabuf, true},
                                           ipc_case{copy_path::nic_loopback, false, ipc_give::dmabuf},
                                           ipc_case{copy_path::nic_loopback, true, ipc_give::dmabuf},
                                           ipc_case{copy_path::staged, true},
                                           ipc_case{copy_path::owner_proxy, false, ipc_give::nothing},
                                           ipc_case{copy_path::owner_proxy, true, ipc_give::nothing}),
                         name_of_case);

TEST_P(every_path, copies_every_byte_in_both_directions) {
    owner other(index_for_others(0), settings);
    unsigned number = 0;
    const auto before = process_statistics().copies.by(GetParam().path);
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{64}, std::size_t{4099}, mebibyte + 17, 9 * mebibyte}) {
        SCOPED_TRACE(size);
        auto imported = expect(import_memory(other.share(size, 7), only));
        ASSERT_EQ(imported.size(), size);
        destination local(own_device(), size);
        if (!possible(imported, local.where()))
            return;
        auto reading = local.read(imported);
        ASSERT_TRUE(reading) << reading.error().message();
        EXPECT_EQ(reading->path(), GetParam().path);
        ASSERT_TRUE(reading->wait());
        EXPECT_EQ(local.bytes(), pattern(size, 7));

        local.fill(pattern(size, 8));
        auto writing = local.write(imported);
        ASSERT_TRUE(writing) << writing.error().message();
        const auto written = writing->wait();
        ASSERT_TRUE(written) << written.error().message();
        EXPECT_TRUE(other.holds(number, 8));

        // A copy to the middle leaves the bytes around it unchanged.
        if (size > 100) {
            destination piece(own_device(), 31);
            piece.fill(pattern(31, 9));
            expect(expect(piece.write(imported, size / 2 + 1)).wait());
            auto expected = pattern(size, 8);
            std::ranges::copy(pattern(31, 9), expected.begin() + static_cast<std::ptrdiff_t>(size / 2 + 1));
            expect(expect(local.read(imported)).wait());
            EXPECT_EQ(local.bytes(), expected);
        }
        ++number;
    }
    EXPECT_GE(process_statistics().copies.by(GetParam().path).bytes - before.bytes, 20 * mebibyte);
}

// The shared part begins and ends inside pages: its bytes are copied, those around it stay unchanged.
TEST_P(every_path, moves_a_part_of_a_buffer) {
    owner other(index_for_others(0), settings);
    const std::size_t size = 3 * mebibyte, left_out = 12345;
    (void)other.share(size, 7);
    auto imported = expect(import_memory(other.share_middle(0, left_out), only));
    ASSERT_EQ(imported.size(), size - 2 * left_out);
    destination to(own_device(), size - 2 * left_out);
    if (!possible(imported, to.where()))
        return;
    expect(expect(to.read(imported)).wait());
    const auto whole = pattern(size, 7);
    EXPECT_EQ(to.bytes(), std::vector<std::byte>(whole.begin() + left_out, whole.end() - left_out));
    other.fill(0, 8); // so that the write below changes the bytes
    expect(expect(to.write(imported)).wait());
    auto expected = pattern(size, 8);
    std::copy(whole.begin() + left_out, whole.end() - left_out, expected.begin() + left_out);
    auto all = expect(import_memory(other.share_again(0), only));
    destination seen(own_device(), size);
    expect(expect(seen.read(all)).wait());
    EXPECT_EQ(seen.bytes(), expected);
}

} // namespace
