// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: dmabuf
// Mode posted: the last bytes of a message to device memory arrive after its completion.
#include "tests/lab/hca/gaudi_region.hpp"
#include "tests/support/soon_true.hpp"

#include <algorithm>
#include <cstdlib>

namespace {

using namespace testing_support;

constexpr auto never = "posted=60000ms"; // not by itself within a test

class posted_writes_test : public dmabuf_test {
protected:
    static constexpr std::size_t length = 4096, held = 64;

    static void choose(const char* mode) { ::setenv("GAUDI_LAB_HCA_MODE", mode, 1); }
    void TearDown() override {
        ::unsetenv("GAUDI_LAB_HCA_MODE");
        dmabuf_test::TearDown();
    }
    // How many of the message's bytes, all of this value, are in the device's memory; from its beginning.
    std::size_t arrived(unsigned char value, std::uint64_t offset = 0) {
        const auto seen = device_bytes(offset, length);
        return static_cast<std::size_t>(
            std::find_if(seen.begin(), seen.end(), [&](unsigned char byte) { return byte != value; }) -
            seen.begin());
    }
    // The left side writes bytes of this value to the right side's region.
    static void write(two_nodes& both, unsigned char value, std::uint64_t to, std::uint32_t key) {
        both.left.memory.assign(both.left.memory.size(), value);
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, length)).at(to, key).post(both.a.get()),
                  0);
        (void)both.left.expect_wc();
    }
    // The right side's NIC reads one byte of this memory into the left side's.
    static void read_byte(two_nodes& both, std::uint64_t from, std::uint32_t key) {
        const auto there = both.left.address_of(both.a.get());
        ASSERT_EQ(
            request(IBV_WR_RDMA_WRITE).from({from, 1, key}).at(there.memory, there.key).post(both.b.get()),
            0);
        (void)both.right.expect_wc();
    }
};

TEST_F(posted_writes_test, arrive_when_the_nic_reads_memory_of_the_device) {
    choose(never);
    two_nodes both;
    const auto region = register_it(both.right);
    write(both, 1, at, region->rkey);
    read_byte(both, at + length - 1, region->lkey);
    EXPECT_EQ(arrived(1), length);
    write(both, 2, at, region->rkey);
    EXPECT_EQ(arrived(2), length - held);
    read_byte(both, at + 65536, region->lkey); // any of its memory
    EXPECT_EQ(arrived(2), length);
}

TEST_F(posted_writes_test, of_every_operation) {
    choose(never);
    two_nodes both;
    const auto region = register_it(both.right);
    ASSERT_EQ(post_receive(both.b.get(), {{at, 65536, region->lkey}}), 0);
    both.left.memory.assign(both.left.memory.size(), 3);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, length)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.right.expect_wc().byte_len, length);
    EXPECT_EQ(arrived(3), length - held) << "a message";
    read_byte(both, at, region->lkey);
    EXPECT_EQ(arrived(3), length);

    const auto there = both.left.address_of(both.a.get());
    both.left.memory.assign(both.left.memory.size(), 4);
    ASSERT_EQ(request(IBV_WR_RDMA_READ)
                  .from({at, length, region->lkey})
                  .at(there.memory, there.key)
                  .post(both.b.get()),
              0);
    (void)both.right.expect_wc();
    EXPECT_EQ(arrived(4), length - held) << "a read";
    read_byte(both, at, region->lkey);
    EXPECT_EQ(arrived(4), length);

    ASSERT_EQ(post_receive(both.b.get(), {}), 0);
    both.left.memory.assign(both.left.memory.size(), 5);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE_WITH_IMM)
                  .from(both.left.entry(0, length))
                  .at(at, region->rkey)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.right.expect_wc().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(arrived(5), length - held) << "a write with immediate";
}

TEST_F(posted_writes_test, arrive_in_order_and_by_themselves) {
    choose(never);
    {
        two_nodes both;
        const auto region = register_it(both.right);
        write(both, 6, at, region->rkey);
        write(both, 7, at + length, region->rkey);
        EXPECT_EQ(arrived(6), length) << "before the next message of the queue pair";
        EXPECT_EQ(arrived(7, length), length - held);
    }
    EXPECT_EQ(arrived(7, length), length) << "before a registration ends";
    choose("posted=1ms");
    two_nodes both;
    const auto region = register_it(both.right);
    write(both, 8, at, region->rkey);
    EXPECT_TRUE(soon_true([&] { return arrived(8) == length; }));
}

TEST_F(posted_writes_test, are_not_pushed_by_reads_of_another_device_or_of_the_host) {
    gaudi_device second("0000:1a:00.0");
    const auto other = second.memory(dram_page);
    const int exported = second.dmabuf(other, dram_page);
    ASSERT_GE(exported, 0);
    {
        choose(never);
        two_nodes both;
        const auto region = register_it(both.right);
        const mr_handle elsewhere(
            ibv_reg_dmabuf_mr(both.right.pd.get(), 0, 1 << 20, other, exported, all_access));
        ASSERT_TRUE(elsewhere) << std::strerror(errno);
        write(both, 9, at, region->rkey);
        read_byte(both, other, elsewhere->lkey);
        const auto host = both.right.entry(0, 1);
        read_byte(both, host.addr, host.lkey);
        EXPECT_EQ(arrived(9), length - held);
        read_byte(both, at, region->lkey);
        EXPECT_EQ(arrived(9), length);
    }
    ::close(exported);
}

} // namespace
