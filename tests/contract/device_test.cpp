// SPDX-License-Identifier: BSD-3-Clause
// What a user expects of any Gaudi: it is described, hands out memory, copies, exports.
#include "tests/contract/machine_test.hpp"
#include "tests/support/device_bytes.hpp"
#include "tests/support/pattern.hpp"

#include <algorithm>
#include <fcntl.h>
#include <numeric>

namespace {

using namespace gaudi;
using namespace testing_support;

constexpr std::uint64_t mib = 1 << 20;

class any_device : public machine_test {
protected:
    void SetUp() override {
        need(1);
        if (!IsSkipped() && !HasFatalFailure())
            device_ = device_for_test(0);
    }
    void TearDown() override {
        device_.reset();
        machine_test::TearDown();
    }
    std::shared_ptr<device> device_;
};

TEST_F(any_device, is_described) {
    const auto& info = device_->info();
    EXPECT_TRUE(info.generation);
    EXPECT_FALSE(info.bus_id.empty());
    EXPECT_TRUE(info.operational) << info.status;
    EXPECT_GE(info.memory_total, info.memory_free);
    EXPECT_GT(info.memory_free, 0U);
    EXPECT_GT(info.allocation_page, 0U);
    EXPECT_EQ(find_open_device(info.index), device_);
    EXPECT_EQ(expect(open_device(by_bus_id{info.bus_id})), device_) << "one context a process";
}

TEST_F(any_device, its_memory_is_known_until_it_is_freed) {
    auto buffer = expect(device_->heap().allocate(3 * mib + 5));
    const auto found = known_memory().find(buffer.address() + 3 * mib, 1);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->device_index, device_->info().index);
    EXPECT_EQ(found->base, buffer.address());
    EXPECT_EQ(found->length, buffer.size());
    EXPECT_EQ(known_memory().find(buffer.address() + 3 * mib, mib).error().code(),
              errc::range_leaves_allocation);
    std::byte of_the_host{};
    EXPECT_FALSE(known_memory().device_of(device_address(reinterpret_cast<std::uintptr_t>(&of_the_host))));
    const auto address = buffer.address();
    buffer = {};
    EXPECT_EQ(known_memory().find(address, 1).error().code(), errc::not_allocated);
}

TEST_F(any_device, keeps_every_byte) {
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{4095}, std::size_t{4097}, std::size_t{33 * mib + 1}}) {
        SCOPED_TRACE(size);
        auto buffer = expect(device_->heap().allocate(size));
        const auto sent = pattern(size, 1);
        write_bytes(*device_, buffer.address(), sent);
        std::vector<std::byte> seen(size);
        read_bytes(*device_, seen, buffer.address());
        EXPECT_TRUE(seen == sent);
    }
}

TEST_F(any_device, a_write_changes_nothing_around_it) {
    auto buffer = expect(device_->heap().allocate(mib));
    auto expected = pattern(mib, 2);
    write_bytes(*device_, buffer.address(), expected);
    for (const std::size_t at : {std::size_t{1}, std::size_t{4093}, std::size_t{500001}}) {
        const auto piece = pattern(777, static_cast<unsigned>(at));
        write_bytes(*device_, buffer.address() + at, piece);
        std::ranges::copy(piece, expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::vector<std::byte> seen(mib);
    read_bytes(*device_, seen, buffer.address());
    EXPECT_TRUE(seen == expected);
}

TEST_F(any_device, buffers_do_not_overlap) {
    std::vector<device_buffer> buffers;
    for (unsigned i = 0; i < 50; ++i) {
        buffers.push_back(expect(device_->heap().allocate(5000 + 97 * i)));
        write_bytes(*device_, buffers.back().address(), pattern(buffers.back().size(), i));
    }
    for (unsigned i = 0; i < buffers.size(); ++i) {
        std::vector<std::byte> seen(buffers[i].size());
        read_bytes(*device_, seen, buffers[i].address());
        EXPECT_TRUE(seen == pattern(seen.size(), i)) << i;
    }
}

TEST_F(any_device, exports_its_memory_as_a_dmabuf) {
    auto buffer = expect(device_->heap().allocate(mib));
    const auto exported = buffer.dmabuf();
    ASSERT_TRUE(exported) << exported.error().message();
    EXPECT_GE(::fcntl(exported->fd, F_GETFD), 0);
    EXPECT_EQ(exported->length, buffer.size());
    EXPECT_EQ(exported->iova, buffer.address());
}

TEST_F(any_device, copies_are_asynchronous) {
    auto engine = device_->copies();
    if (!engine) // Gaudi3 has none
        return skip(engine.error());
    constexpr std::size_t size = 200000, count = 16;
    auto buffer = expect(device_->heap().allocate(size * count));
    const auto sent = pattern(size * count, 3);
    std::vector<std::byte> seen(size * count);
    std::vector<copy_ticket> tickets;
    for (std::size_t i = 0; i < count; ++i)
        tickets.push_back(
            expect(engine->write(buffer.address() + i * size, std::span(sent).subspan(i * size, size))));
    for (auto& each : tickets)
        EXPECT_TRUE(each.wait());
    tickets.clear();
    for (std::size_t i = 0; i < count; ++i)
        tickets.push_back(
            expect(engine->read(std::span(seen).subspan(i * size, size), buffer.address() + i * size)));
    for (auto& each : tickets)
        EXPECT_TRUE(each.wait());
    EXPECT_TRUE(seen == sent);
}

} // namespace
