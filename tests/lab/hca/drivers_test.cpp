// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: dmabuf
// Exports of the drivers that a Gaudi may have, as a NIC sees them.
#include "tests/lab/hca/gaudi_region.hpp"

#include <algorithm>

namespace {

using namespace testing_support;

class drivers_test : public dmabuf_test {
protected:
    static constexpr std::size_t length = 4096;

    void SetUp() override {}
    mr_handle register_whole(const node& where, int dmabuf, std::uint64_t offset, std::size_t bytes) const {
        return mr_handle(ibv_reg_dmabuf_mr(where.pd.get(), offset, bytes, at + offset, dmabuf, all_access));
    }
    static void write(two_nodes& both, unsigned char value, std::uint64_t to, std::uint32_t key) {
        both.left.memory.assign(both.left.memory.size(), value);
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, length)).at(to, key).post(both.a.get()),
                  0);
        (void)both.left.expect_wc();
    }
    bool holds(unsigned char value, std::uint64_t offset) {
        const auto seen = device_bytes(offset, length);
        return std::ranges::all_of(seen, [&](unsigned char byte) { return byte == value; });
    }
};

TEST_F(drivers_test, before_linux_6_7_ignore_the_offset) {
    for (const auto* driver : {"upstream-6.6", "upstream", "vendor"}) {
        SCOPED_TRACE(driver);
        start(std::string("gaudis = 1\nhbm_pages = 4\ndriver = ") + driver);
        const bool old = driver == std::string("upstream-6.6");
        const int window = gaudi->dmabuf(at, 65536, 1 << 20);
        ASSERT_GE(window, 0);
        {
            two_nodes both;
            const auto region = register_whole(both.right, window, 0, 65536);
            ASSERT_TRUE(region) << std::strerror(errno);
            write(both, 5, at, region->rkey);
            EXPECT_EQ(holds(5, 0), old) << "the start of the allocation";
            EXPECT_EQ(holds(5, 1 << 20), !old);
        }
        EXPECT_EQ(gaudi->dmabuf(at, 65536, dram_page), -EINVAL) << "checked all the same";
        ::close(window);
        stop();
    }
}

TEST_F(drivers_test, before_linux_6_7_the_last_export_has_the_size_of_all) {
    start("gaudis = 1\nhbm_pages = 4\ndriver = upstream-6.6");
    const int small = gaudi->dmabuf(at, 65536);
    ASSERT_GE(small, 0);
    two_nodes both;
    const auto beyond = register_whole(both.right, fd, 1 << 20, 65536);
    ASSERT_TRUE(beyond) << std::strerror(errno);
    write(both, 6, at + (1 << 20), beyond->rkey);
    EXPECT_FALSE(holds(6, 1 << 20)) << "the NIC has no address for it";
    const int again = gaudi->dmabuf(at, dram_page);
    ASSERT_GE(again, 0);
    const auto whole = register_whole(both.right, fd, 1 << 20, 65536);
    ASSERT_TRUE(whole) << std::strerror(errno);
    write(both, 7, at + (1 << 20), whole->rkey);
    EXPECT_TRUE(holds(7, 1 << 20));
    ::close(small);
    ::close(again);
}

// PCIe that carries nothing between NIC and Gaudi: a wrong root complex, ACS, an IOMMU.
TEST_F(drivers_test, upstream_refuses_to_map_where_the_vendor_loses_the_data) {
    start("gaudis = 1\nhbm_pages = 4\ndriver = upstream\npeer_to_peer = no");
    {
        node here;
        EXPECT_FALSE(register_it(here));
        EXPECT_EQ(errno, EPERM);
    }
    stop();
    start("gaudis = 1\nhbm_pages = 4\npeer_to_peer = no");
    two_nodes both;
    const auto region = register_it(both.right);
    ASSERT_TRUE(region) << std::strerror(errno);
    write(both, 8, at, region->rkey);
    EXPECT_FALSE(holds(8, 0));
    ASSERT_EQ(
        request(IBV_WR_RDMA_READ).from(both.left.entry(0, length)).at(at, region->rkey).post(both.a.get()),
        0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.left.memory[0], 0xff);
    EXPECT_EQ(both.left.memory[length - 1], 0xff);
    const auto there = both.left.address_of(both.a.get());
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from({at, length, region->lkey})
                  .at(there.memory + length, there.key)
                  .post(both.b.get()),
              0);
    (void)both.right.expect_wc();
    EXPECT_EQ(both.left.memory[length], 0xff);
    EXPECT_EQ(both.left.memory[2 * length - 1], 0xff);
}

} // namespace
