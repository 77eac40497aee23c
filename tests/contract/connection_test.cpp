// SPDX-License-Identifier: BSD-3-Clause
// Every operation of a connection between every two kinds of memory, with every byte checked.
// labels of every test here: rdma
#include "tests/contract/machine_test.hpp"
#include "tests/rdma/two_sides.hpp"
#include "tests/support/own_process.hpp"

#include <fmt/format.h>

namespace {

using namespace testing_support;

class every_pair : public two_sides<machine_test>,
                   public ::testing::WithParamInterface<std::tuple<memory_path, memory_path, std::size_t>> {
protected:
    void SetUp() override {
        const auto [here, there, size] = GetParam();
        const bool on_device = here != memory_path::host || there != memory_path::host;
        need(on_device ? 1 : 0, 1, 2);
        if (IsSkipped() || HasFatalFailure())
            return;
        make_pair(here, there, size);
        size_ = size;
    }
    std::size_t size_ = 0;
};

TEST_P(every_pair, send_and_receive) {
    for (unsigned round = 0; round < 3; ++round) {
        const auto data = pattern(size_, round);
        left.put(data);
        auto into = expect(right.link->receive(right.region));
        auto out = expect(left.link->send(left.region, round));
        finish_all(into, out);
        EXPECT_EQ(expect(out.wait(soon)).bytes, size_);
        const auto got = expect(into.wait(soon));
        EXPECT_EQ(got.bytes, size_);
        EXPECT_EQ(got.immediate, round);
        EXPECT_EQ(right.get(), data);
    }
    const auto [here, there, size] = GetParam();
    EXPECT_EQ(left.link->statistics().by(here).bytes, 3 * size_);
    EXPECT_EQ(right.link->statistics().by(there).bytes, 3 * size_);
}

TEST_P(every_pair, write_and_read) {
    const auto [here, there, size] = GetParam();
    expect(right.link->offer(right.region, remote_access::all));
    const auto remote = expect(left.link->take_offer(soon));
    EXPECT_EQ(remote.path, there);
    const auto data = pattern(size_, 5);
    left.put(data);
    auto out = expect(left.link->write(left.region, remote));
    finish_all(out);
    expect(out.wait(soon));
    // The bytes are certain to be in device memory when the target knows of them, not when the writer does.
    expect(left.link->send_note(std::vector<std::byte>(1)));
    (void)expect(right.link->receive_note(soon));
    EXPECT_EQ(right.get(), data);
    const auto other = pattern(size_, 6);
    right.put(other);
    auto in = expect(left.link->read(left.region, remote));
    finish_all(in);
    expect(in.wait(soon));
    EXPECT_EQ(left.get(), other);
}

TEST_P(every_pair, write_with_immediate) {
    expect(right.link->offer(right.region, remote_access::all));
    const auto remote = expect(left.link->take_offer(soon));
    std::vector<std::byte> word(8);
    const auto place = expect(right.nic->region(word));
    auto into = expect(right.link->receive(place));
    const auto data = pattern(size_, 8);
    left.put(data);
    auto out = expect(left.link->write_with_immediate(left.region, remote, 0xfeedf00d));
    finish_all(out, into);
    expect(out.wait(soon));
    EXPECT_EQ(expect(into.wait(soon)).immediate, 0xfeedf00dU);
    EXPECT_EQ(right.get(), data);
}

std::string name_of_pair(const ::testing::TestParamInfo<every_pair::ParamType>& info) {
    auto text = fmt::format("{}_{}_{}", name_of(std::get<0>(info.param)), name_of(std::get<1>(info.param)),
                            std::get<2>(info.param));
    std::replace(text.begin(), text.end(), '-', '_');
    return text;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t longest = (3 << 20) + 7;
#else
constexpr std::size_t longest = (20 << 20) + 7; // longer than all slabs of a connection together
#endif
constexpr memory_path memory_paths[] = {memory_path::host, memory_path::zero_copy, memory_path::staged};
INSTANTIATE_TEST_SUITE_P(sizes, every_pair,
                         ::testing::Combine(::testing::ValuesIn(memory_paths),
                                            ::testing::ValuesIn(memory_paths),
                                            ::testing::Values(1, 4095, 4097, 4 << 20, longest)),
                         name_of_pair);

} // namespace
