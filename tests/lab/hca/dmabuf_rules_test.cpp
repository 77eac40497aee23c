// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: dmabuf
// Registration of virtual Gaudi memory with the virtual NIC: effects, and which registrations are refused.
#include "lab/dmabuf.h"
#include "tests/lab/hca/gaudi_region.hpp"
#include "tests/lab/hca/newer_verbs.h"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/test_lab.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

using namespace testing_support;

TEST_F(dmabuf_test, registrations_come_and_go_without_growth) {
    node here;
    const auto cycle = [&](int times) {
        for (int i = 0; i < times; ++i)
            ASSERT_TRUE(register_it(here)) << i;
    };
    cycle(1000);
    const auto descriptors = open_descriptors();
    const auto stored = stored_bytes(lab());
    cycle(20000);
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(stored_bytes(lab()), stored);
}

// ibv_reg_mr_ex of rdma-core 65.
TEST_F(dmabuf_test, registered_by_description) {
    two_nodes both;
    newer_mr_init_attr wanted{};
    wanted.comp_mask = newer_mr_fd | newer_mr_fd_offset | newer_mr_iova;
    wanted.fd = fd;
    wanted.fd_offset = 8192;
    const std::uint64_t chosen = 0x7000000; // the iova differs from the device address
    wanted.iova = chosen;
    wanted.length = 1 << 16;
    wanted.access = all_access;
    const mr_handle mr(newer_reg_mr_ex(both.right.pd.get(), &wanted));
    ASSERT_TRUE(mr) << std::strerror(errno);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(mr->addr), 8192U);
    for (std::size_t i = 0; i < 60000; ++i)
        both.left.memory[i] = static_cast<unsigned char>(i * 11);
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 60000)).at(chosen, mr->rkey).post(both.a.get()),
        0);
    (void)both.left.expect_wc();
    EXPECT_EQ(std::memcmp(device_bytes(8192, 60000).data(), both.left.memory.data(), 60000), 0);
    wanted.iova += 1;
    EXPECT_EQ(newer_reg_mr_ex(both.right.pd.get(), &wanted), nullptr);
    EXPECT_EQ(errno, EINVAL);
    wanted.comp_mask |= newer_mr_addr;
    EXPECT_EQ(newer_reg_mr_ex(both.right.pd.get(), &wanted), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(dmabuf_test, rules_of_registration) {
    node here;
    const auto refused = [&](std::uint64_t offset, std::size_t length, std::uint64_t iova, int which,
                             int access) {
        errno = 0;
        const mr_handle made(ibv_reg_dmabuf_mr(here.pd.get(), offset, length, iova, which, access));
        return made ? 0 : errno;
    };
    EXPECT_EQ(refused(0, 4096, 0, -1, all_access), EBADF) << "how programs ask whether it is supported";
    EXPECT_EQ(refused(0, 0, 1, -1, -1), EBADF) << "before anything else";
    const int closed = ::dup(fd);
    ::close(closed);
    EXPECT_EQ(refused(0, 4096, 0, closed, all_access), EBADF) << "it was one";
    const int plain = ::memfd_create("plain", MFD_CLOEXEC);
    ASSERT_EQ(::ftruncate(plain, 65536), 0);
    EXPECT_EQ(refused(0, 4096, 0, plain, all_access), EINVAL) << "not a DMA-BUF";
    ::close(plain);
    EXPECT_EQ(refused(0, dram_page, at, fd, all_access), 0);
    EXPECT_EQ(refused(4096, dram_page, at, fd, all_access), EINVAL) << "beyond the end";
    EXPECT_EQ(refused(dram_page, 1, at, fd, all_access), EINVAL);
    EXPECT_EQ(refused(0, 0, at, fd, all_access), EINVAL);
    EXPECT_EQ(refused(0, 4096, at, fd, all_access | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
    EXPECT_EQ(refused(0, 4096, at, fd, all_access | IBV_ACCESS_MW_BIND), EOPNOTSUPP);
    EXPECT_EQ(refused(0, 4096, at, fd, all_access | IBV_ACCESS_ZERO_BASED), EINVAL);
    EXPECT_EQ(refused(0, 4096, at, fd, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    EXPECT_EQ(refused(0, 4096, at, fd, all_access | IBV_ACCESS_RELAXED_ORDERING), 0);
}

TEST_F(dmabuf_test, p15_offset_and_address_agree_within_the_page) {
    node here;
    const auto taken = [&](std::uint64_t offset, std::uint64_t iova) {
        errno = 0;
        return mr_handle(ibv_reg_dmabuf_mr(here.pd.get(), offset, 4096, iova, fd, all_access)) != nullptr;
    };
    EXPECT_TRUE(taken(0, at));
    EXPECT_TRUE(taken(8, at + 8));
    EXPECT_TRUE(taken(8, 0x7008)) << "any address that fits the page";
    EXPECT_TRUE(taken(4096 + 8, at + 8));
    for (const auto& [offset, iova] : {std::pair(8UL, at), std::pair(0UL, at + 1), std::pair(2048UL, at)}) {
        EXPECT_FALSE(taken(offset, iova)) << offset;
        EXPECT_EQ(errno, EINVAL);
    }
}

TEST_F(dmabuf_test, p32_errors_of_registration_that_are_no_bugs) {
    node here;
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(here.pd.get(), reinterpret_cast<void*>(at), 4096, all_access), nullptr)
        << "a device address is no pointer";
    EXPECT_EQ(errno, EFAULT);
    // No PCI path between NIC and Gaudi. The lab always has one, so a fault script fails the registration.
    for (const auto& [name, error] : {std::pair("EPERM", EPERM), std::pair("EIO", EIO)}) {
        ASSERT_EQ(gaudi_lab_hca_arm_faults(fmt::format("ibv_reg_dmabuf_mr 1 errno {}", name).c_str()), 0);
        errno = 0;
        EXPECT_FALSE(register_it(here));
        EXPECT_EQ(errno, error);
        EXPECT_TRUE(register_it(here));
    }
    gaudi_lab_hca_arm_faults("");
}

TEST_F(dmabuf_test, descriptors_run_out) {
    const node here;
    ASSERT_TRUE(register_it(here)); // opens the descriptors that the lab keeps open
    bool refused = false, granted = false;
    for (rlim_t room = 0; room < 8; ++room) {
        const descriptors_left few(room);
        errno = 0;
        const auto mr = register_it(here);
        const int why = errno;
        EXPECT_EQ(mr == nullptr, why == EMFILE) << room << " " << std::strerror(why);
        EXPECT_FALSE(granted && !mr) << room;
        (mr ? granted : refused) = true;
    }
    EXPECT_TRUE(refused && granted);
}

TEST_F(dmabuf_test, bounds_are_those_of_the_region) {
    two_nodes both;
    const auto mr = register_it(both.right, 8192, 4096);
    ASSERT_TRUE(mr);
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 4096)).at(at + 8192, mr->rkey).post(both.a.get()),
        0);
    (void)both.left.expect_wc();
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 8)).at(at + 8184, mr->rkey).post(both.a.get()), 0);
    (void)both.left.expect_wc(IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(next_event(both.right.context.get()), IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(dmabuf_test, p33_a_nic_that_cannot_register_dmabufs) {
    ::close(fd);
    gaudi->close();
    describe("gaudis = 1\nhbm_pages = 4\ndmabuf = no\n");
    gaudi.emplace();
    fd = gaudi->dmabuf(gaudi->memory(1), 4096);
    ASSERT_GE(fd, 0) << "the Gaudi exports as ever";
    node here; // registers host memory, which suffices for staging
    for (const int which : {-1, fd}) {
        errno = 0;
        EXPECT_EQ(ibv_reg_dmabuf_mr(here.pd.get(), 0, 4096, 0, which, all_access), nullptr);
        EXPECT_EQ(errno, EOPNOTSUPP);
    }
}

} // namespace
