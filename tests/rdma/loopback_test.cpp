// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/loopback.hpp>

#include "tests/rdma/rdma_test.hpp"

namespace {

using namespace testing_support;

std::vector<std::byte> numbered(std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<std::byte>(i * 5 + i / 251 + seed);
    return bytes;
}

class loopback_test : public rdma_test {
protected:
    void open() {
        left.gaudi = expect(open_device(by_index{0}));
        left.nic = expect(open_nic());
    }
};

TEST_F(loopback_test, moves_every_byte_both_ways) {
    open();
    auto copies = expect(loopback::make(left.nic));
    auto engine = expect(left.gaudi->copies());
    const auto buffer = expect(left.gaudi->heap().allocate(1 << 20));
    for (const std::size_t size : {1UL, 8UL, 63UL, 4096UL, 16384UL, 16385UL, 100001UL}) {
        const auto at = buffer.address() + 13;
        const auto out = numbered(size, static_cast<unsigned>(size));
        expect(copies.write(*left.gaudi, at, out));
        std::vector<std::byte> seen(size), back(size);
        expect(expect(engine.read(seen, at)).wait()); // the device itself
        EXPECT_EQ(seen, out) << size;
        const auto other = numbered(size, 77);
        expect(expect(engine.write(at, other)).wait());
        expect(copies.read(*left.gaudi, back, at));
        EXPECT_EQ(back, other) << size;
    }
}

TEST_F(loopback_test, stays_within_an_allocation_that_lives) {
    open();
    auto copies = expect(loopback::make(left.nic));
    auto buffer = expect(left.gaudi->heap().allocate(4096));
    const auto beside = expect(left.gaudi->heap().allocate(4096)); // the chunk stays
    std::array<std::byte, 8> word{};
    EXPECT_TRUE(copies.write(*left.gaudi, buffer.address() + 4088, word));
    EXPECT_EQ(copies.write(*left.gaudi, buffer.address() + 4089, word).error().code(),
              errc::range_leaves_allocation);
    const auto gone = buffer.address();
    buffer = {};
    EXPECT_EQ(copies.read(*left.gaudi, word, gone).error().code(), errc::not_allocated);
    EXPECT_TRUE(copies.read(*left.gaudi, word, beside.address())) << "a refusal broke it";
}

TEST_F(loopback_test, a_chunk_goes_back_although_it_was_used) {
    open();
    auto copies = expect(loopback::make(left.nic));
    {
        const auto buffer = expect(left.gaudi->heap().allocate(4096));
        std::array<std::byte, 8> word{};
        expect(copies.write(*left.gaudi, buffer.address(), word));
    }
    left.gaudi->heap().trim();
    EXPECT_EQ(left.gaudi->heap().statistics().chunks, 0U);
}

TEST_F(loopback_test, a_nic_without_dmabufs_is_refused) {
    describe("gaudis = 1\nhcas = 1\n[hca 0]\ndmabuf = no\n");
    open();
    const auto made = loopback::make(left.nic);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), errc::dmabuf_unsupported);
    nic_choice choice;
    choice.needs_dmabuf = true;
    const auto opened = open_nic(choice);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), errc::dmabuf_unsupported) << opened.error().message();
    EXPECT_NE(opened.error().observed().find("vhca0 port 1: "), std::string::npos)
        << opened.error().message();
}

TEST_F(loopback_test, works_over_ethernet) {
    describe("gaudis = 1\nhcas = 1\nlink_layer = ethernet\n");
    open();
    auto copies = expect(loopback::make(left.nic));
    const auto buffer = expect(left.gaudi->heap().allocate(4096));
    const auto out = numbered(4096, 3);
    std::vector<std::byte> back(4096);
    expect(copies.write(*left.gaudi, buffer.address(), out));
    expect(copies.read(*left.gaudi, back, buffer.address()));
    EXPECT_EQ(out, back);
}

} // namespace
