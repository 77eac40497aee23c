// SPDX-License-Identifier: BSD-3-Clause
// Memory of a virtual Gaudi as a region of the virtual NIC.
#include "lab/dmabuf.h"
#include "tests/hca/newer_verbs.h"
#include "tests/hca/verbs_node.hpp"
#include "tests/support/card.hpp"
#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

using namespace testing_support;

// A Gaudi with memory, exported, and a NIC that has it registered under the device address.
class dmabuf_test : public test_lab {
protected:
    void SetUp() override {
        describe("gaudis = 2\nhbm_pages = 4\n");
        gaudi.emplace();
        ASSERT_GE(gaudi->fd, 0);
        at = gaudi->memory(dram_page);
        ASSERT_NE(at, 0U);
        fd = gaudi->dmabuf(at, dram_page);
        ASSERT_GE(fd, 0);
    }
    void TearDown() override {
        if (fd >= 0)
            ::close(fd);
        gaudi.reset();
        test_lab::TearDown();
    }
    mr_handle register_it(const node& where, std::uint64_t offset = 0, std::size_t length = 1 << 20,
                          int access = all_access) const {
        return mr_handle(ibv_reg_dmabuf_mr(where.pd.get(), offset, length, at + offset, fd, access));
    }
    // Through the device's own DMA engine: what is really in HBM.
    std::vector<unsigned char> device_bytes(std::uint64_t offset, std::size_t length) {
        host_memory buffer(*gaudi, 65536);
        EXPECT_EQ(copy(*gaudi, at + offset, buffer.address, static_cast<std::uint32_t>(length), 4), 0);
        return {buffer.bytes().begin(), buffer.bytes().begin() + static_cast<std::ptrdiff_t>(length)};
    }

    std::optional<card> gaudi;
    std::uint64_t at = 0;
    int fd = -1;
};

void expect_free_soon(const char* bus_id) {
    int opened = -1;
    for (int i = 0; i < 200 && opened < 0; ++i) {
        opened = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_GE(opened, 0) << bus_id;
    hlthunk_close(opened);
}

TEST_F(dmabuf_test, write_read_send_and_atomics) {
    two_nodes both;
    const auto mr = register_it(both.right);
    ASSERT_TRUE(mr) << std::strerror(errno);
    for (std::size_t i = 0; i < 60000; ++i)
        both.left.memory[i] = static_cast<unsigned char>(i * 7);
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 60000)).at(at + 4321, mr->rkey).post(both.a.get()),
        0);
    (void)both.left.expect_wc();
    const auto seen = device_bytes(4321, 60000);
    EXPECT_EQ(std::memcmp(seen.data(), both.left.memory.data(), 60000), 0);
    std::fill(both.left.memory.begin(), both.left.memory.end(), 0);
    ASSERT_EQ(
        request(IBV_WR_RDMA_READ).from(both.left.entry(0, 60000)).at(at + 4321, mr->rkey).post(both.a.get()),
        0);
    (void)both.left.expect_wc();
    EXPECT_EQ(std::memcmp(seen.data(), both.left.memory.data(), 60000), 0);
    ASSERT_EQ(post_receive(both.b.get(), {{at + 200000, 1000, mr->lkey}}), 0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(5, 1000)).post(both.a.get()), 0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.right.expect_wc().byte_len, 1000U);
    EXPECT_EQ(device_bytes(200000, 1000)[999], seen[1004]);
    const std::uint64_t zero = 0;
    std::memcpy(both.left.memory.data(), &zero, 8);
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 8)).at(at + 512, mr->rkey).post(both.a.get()), 0);
    for (int i = 0; i < 5; ++i)
        ASSERT_EQ(request(IBV_WR_ATOMIC_FETCH_AND_ADD)
                      .from(both.left.entry(8, 8))
                      .atomic(at + 512, mr->rkey, 3)
                      .post(both.a.get()),
                  0);
    for (int i = 0; i < 6; ++i)
        (void)both.left.expect_wc();
    EXPECT_EQ(device_bytes(512, 8)[0], 15);
}

// As programs for rdma-core 65 register it.
TEST_F(dmabuf_test, registered_by_description) {
    two_nodes both;
    newer_mr_init_attr wanted{};
    wanted.comp_mask = newer_mr_fd | newer_mr_fd_offset | newer_mr_iova;
    wanted.fd = fd;
    wanted.fd_offset = 8192;
    wanted.iova = at + 8192;
    wanted.length = 1 << 16;
    wanted.access = all_access;
    const mr_handle mr(newer_reg_mr_ex(both.right.pd.get(), &wanted));
    ASSERT_TRUE(mr) << std::strerror(errno);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(mr->addr), 8192U);
    for (std::size_t i = 0; i < 60000; ++i)
        both.left.memory[i] = static_cast<unsigned char>(i * 11);
    ASSERT_EQ(
        request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 60000)).at(at + 8192, mr->rkey).post(both.a.get()),
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

TEST_F(dmabuf_test, from_device_to_device_without_the_host) {
    card second("0000:1a:00.0");
    const auto there = second.memory(dram_page);
    const int other = second.dmabuf(there, dram_page);
    ASSERT_GE(other, 0);
    {
        two_nodes both;
        const auto mine = register_it(both.left);
        const mr_handle theirs(ibv_reg_dmabuf_mr(both.right.pd.get(), 0, 1 << 20, there, other, all_access));
        ASSERT_TRUE(mine && theirs);
        host_memory buffer(*gaudi, 65536);
        for (std::size_t i = 0; i < 65536; ++i)
            buffer.bytes()[i] = static_cast<unsigned char>(i * 13);
        ASSERT_EQ(copy(*gaudi, buffer.address, at, 65536), 0);
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                      .from({at, 65536, mine->lkey})
                      .at(there + 100, theirs->rkey)
                      .post(both.a.get()),
                  0);
        (void)both.left.expect_wc();
        host_memory back(second, 65536);
        ASSERT_EQ(copy(second, there + 100, back.address, 65536, 4), 0);
        EXPECT_EQ(back.bytes(), buffer.bytes());
    }
    ::close(other);
}

TEST_F(dmabuf_test, scatter_over_regions_of_different_kinds) {
    two_nodes both;
    const auto mr = register_it(both.right);
    for (std::size_t i = 0; i < 300; ++i)
        both.left.memory[i] = static_cast<unsigned char>(i);
    ASSERT_EQ(post_receive(both.b.get(),
                           {both.right.entry(0, 100), {at + 64, 100, mr->lkey}, both.right.entry(500, 100)}),
              0);
    ASSERT_EQ(request(IBV_WR_SEND).from(both.left.entry(0, 300)).post(both.a.get()), 0);
    (void)both.right.expect_wc();
    EXPECT_EQ(both.right.memory[99], 99);
    EXPECT_EQ(device_bytes(64, 100)[0], 100);
    EXPECT_EQ(device_bytes(64, 100)[99], 199);
    EXPECT_EQ(both.right.memory[500], 200);
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

TEST_F(dmabuf_test, p31_inline_data_is_read_by_the_cpu) {
    gate ordinary;
    child sender([&] {
        ::signal(SIGSEGV, SIG_DFL);
        ::signal(SIGBUS, SIG_DFL);
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        two_nodes both;
        const auto mr = register_it(both.left);
        const auto send = [&](unsigned flags) {
            (void)post_receive(both.b.get(), {both.right.entry(0, 64)});
            return request(IBV_WR_SEND, 1, IBV_SEND_SIGNALED | flags)
                           .from({at, 64, mr->lkey})
                           .post(both.a.get()) == 0 &&
                   both.left.expect_wc().status == IBV_WC_SUCCESS;
        };
        if (!send(0) || both.right.memory[0] == 0)
            return 1;
        ordinary.open();
        return send(IBV_SEND_INLINE) ? 2 : 3;
    });
    EXPECT_TRUE(ordinary.wait()) << "the NIC reads the same bytes by itself";
    const int status = sender.wait();
    EXPECT_TRUE(status > 3) << "the access went through: " << status; // a signal, or the sanitizer's own exit
}

TEST_F(dmabuf_test, p32_errors_of_registration_that_are_no_bugs) {
    node here;
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(here.pd.get(), reinterpret_cast<void*>(at), 4096, all_access), nullptr)
        << "a device address is no pointer";
    EXPECT_EQ(errno, EFAULT);
    // No way from NIC to Gaudi: the lab's PCI has one everywhere, a script takes it away.
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
    ASSERT_TRUE(register_it(here)); // whatever is opened once is open
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

TEST_F(dmabuf_test, the_region_outlives_the_descriptor_and_pins_the_device) {
    {
        two_nodes both;
        const auto mr = register_it(both.right);
        ASSERT_TRUE(mr);
        ::close(fd);
        fd = -1;
        both.left.memory[0] = 77;
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 8)).at(at, mr->rkey).post(both.a.get()),
                  0);
        (void)both.left.expect_wc();
        EXPECT_EQ(device_bytes(0, 1)[0], 77);
        gaudi->close(); // the owner goes; the region stays
        const int again = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:19:00.0");
        EXPECT_LT(again, 0) << "busy while the region lives";
        std::fill(both.left.memory.begin(), both.left.memory.end(), 0);
        ASSERT_EQ(request(IBV_WR_RDMA_READ).from(both.left.entry(0, 8)).at(at, mr->rkey).post(both.a.get()),
                  0);
        (void)both.left.expect_wc();
        EXPECT_EQ(both.left.memory[0], 77);
    }
    expect_free_soon("0000:19:00.0");
}

TEST_F(dmabuf_test, a_device_that_another_process_owns) {
    // The child registers what the parent exported, and the parent writes into it through the NIC.
    gate to_child, to_parent;
    auto* shared = static_cast<address*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    child peer([&] {
        const int mine = to_child.receive();
        node here;
        const mr_handle mr(ibv_reg_dmabuf_mr(here.pd.get(), 0, 1 << 20, at, mine, all_access));
        if (!mr)
            return 2;
        ::close(mine);
        const auto qp = here.make_qp();
        shared[1] = here.address_of(qp.get());
        shared[1].key = mr->rkey;
        to_parent.open();
        if (!to_child.wait())
            return 3;
        connect(qp.get(), shared[1], shared[0]);
        to_parent.open();
        return to_child.wait() ? 0 : 4;
    });
    to_child.send(fd);
    ASSERT_TRUE(to_parent.wait());
    node here;
    const auto qp = here.make_qp();
    shared[0] = here.address_of(qp.get());
    connect(qp.get(), shared[0], shared[1]);
    to_child.open();
    ASSERT_TRUE(to_parent.wait());
    here.memory[3] = 123;
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(here.entry(0, 8)).at(at + 64, shared[1].key).post(qp.get()), 0);
    (void)here.expect_wc();
    EXPECT_EQ(device_bytes(64, 8)[3], 123);
    peer.kill_it(); // the owner of the region goes: the next access finds nobody
    ASSERT_EQ(peer.wait(), 128 + SIGKILL);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(here.entry(0, 8)).at(at + 64, shared[1].key).post(qp.get()), 0);
    (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR);
    ::munmap(shared, 4096);
}

TEST_F(dmabuf_test, a_region_of_several_pieces) {
    // Pages of the device that are not neighbours: the first of four is taken, so is the third.
    std::uint64_t third = 0;
    const auto second = gaudi->memory(dram_page, &third);
    ASSERT_NE(second, 0U);
    const auto after = gaudi->memory(dram_page);
    ASSERT_NE(after, 0U);
    hlthunk_memory_unmap(gaudi->fd, second);
    ASSERT_EQ(hlthunk_device_memory_free(gaudi->fd, third), 0);
    const auto handle = hlthunk_device_memory_alloc(gaudi->fd, 2 * dram_page, 0, false, false);
    ASSERT_NE(handle, 0U);
    const auto both_pages = hlthunk_device_memory_map(gaudi->fd, handle, 0);
    ASSERT_NE(both_pages, 0U);
    const int exported = gaudi->dmabuf(both_pages, 2 * dram_page);
    ASSERT_GE(exported, 0);
    const auto joint = both_pages + dram_page;
    {
        two_nodes nodes;
        const mr_handle mr(ibv_reg_dmabuf_mr(nodes.right.pd.get(), dram_page - (1 << 20), 2 << 20,
                                             joint - (1 << 20), exported, all_access));
        ASSERT_TRUE(mr) << std::strerror(errno);
        for (std::size_t i = 0; i < 60000; ++i)
            nodes.left.memory[i] = static_cast<unsigned char>(i * 11);
        for (const std::uint32_t length : {60000U, 8U, 2U}) { // over the seam
            SCOPED_TRACE(length);
            ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                          .from(nodes.left.entry(0, length))
                          .at(joint - length / 2, mr->rkey)
                          .post(nodes.a.get()),
                      0);
            (void)nodes.left.expect_wc();
            host_memory seen(*gaudi, 65536);
            ASSERT_EQ(copy(*gaudi, joint - length / 2, seen.address, length, 4), 0);
            EXPECT_EQ(std::memcmp(seen.bytes().data(), nodes.left.memory.data(), length), 0);
        }
        ASSERT_EQ(request(IBV_WR_RDMA_READ)
                      .from(nodes.left.entry(61000, 2))
                      .at(joint - 1, mr->rkey)
                      .post(nodes.a.get()),
                  0);
        (void)nodes.left.expect_wc();
        EXPECT_EQ(std::memcmp(nodes.left.memory.data() + 61000, nodes.left.memory.data(), 2), 0);
        // Neither before it nor behind it.
        ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                      .from(nodes.left.entry(0, 8))
                      .at(joint + (1 << 20) - 4, mr->rkey)
                      .post(nodes.a.get()),
                  0);
        (void)nodes.left.expect_wc(IBV_WC_REM_ACCESS_ERR);
    }
    ::close(exported);
}

TEST_F(dmabuf_test, the_process_that_opened_the_gaudi_is_killed) {
    gate exported;
    auto* where = static_cast<std::uint64_t*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    child owner([&] {
        const int own = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:1a:00.0");
        const auto handle = hlthunk_device_memory_alloc(own, dram_page, 0, true, false);
        *where = hlthunk_device_memory_map(own, handle, 0);
        exported.send(
            hlthunk_device_mapped_memory_export_dmabuf_fd(own, *where, dram_page, 0, HL_EXPORT_FLAGS));
        ::pause();
        return 0;
    });
    const int theirs = exported.receive();
    ASSERT_GE(theirs, 0);
    {
        two_nodes both;
        const mr_handle mr(ibv_reg_dmabuf_mr(both.right.pd.get(), 0, 1 << 20, *where, theirs, all_access));
        ASSERT_TRUE(mr) << std::strerror(errno);
        ::close(theirs);
        owner.kill_it();
        ASSERT_EQ(owner.wait(), 128 + SIGKILL);
        both.left.memory[0] = 99;
        ASSERT_EQ(
            request(IBV_WR_RDMA_WRITE).from(both.left.entry(0, 8)).at(*where, mr->rkey).post(both.a.get()),
            0);
        (void)both.left.expect_wc();
        ASSERT_EQ(
            request(IBV_WR_RDMA_READ).from(both.left.entry(64, 8)).at(*where, mr->rkey).post(both.a.get()),
            0);
        (void)both.left.expect_wc();
        EXPECT_EQ(both.left.memory[64], 99) << "the region holds the memory, whoever made it";
        EXPECT_LT(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:1a:00.0"), 0) << "and the device";
    }
    expect_free_soon("0000:1a:00.0");
    ::munmap(where, 4096);
}

// Memory of a virtual Gaudi takes room when it is first touched: none left is an error, not a SIGBUS.
TEST_F(test_lab, a_full_tmpfs_under_a_write_is_an_error) {
    const small_tmpfs small(root(), "40m");
    if (!small.mounted())
        GTEST_SKIP() << "no right to mount";
    const card gaudi;
    ASSERT_GE(gaudi.fd, 0);
    const auto at = gaudi.memory(dram_page);
    const int fd = gaudi.dmabuf(at, dram_page);
    ASSERT_GE(fd, 0) << std::strerror(-fd);
    {
        two_nodes both;
        const mr_handle mr(ibv_reg_dmabuf_mr(both.right.pd.get(), 0, dram_page, at, fd, all_access));
        ASSERT_TRUE(mr) << std::strerror(errno);
        auto status = IBV_WC_SUCCESS;
        unsigned written = 0;
        for (; written < 5000 && status == IBV_WC_SUCCESS; ++written) {
            ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                          .from(both.left.entry(0, 4096))
                          .at(at + written * std::uint64_t{GAUDI_LAB_GRANULE}, mr->rkey)
                          .post(both.a.get()),
                      0);
            status = both.left.wait()->status;
        }
        EXPECT_EQ(status, IBV_WC_REM_OP_ERR) << ibv_wc_status_str(status);
        EXPECT_GT(written, 2U);
        EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
    }
    ::close(fd);
}

TEST_F(dmabuf_test, p33_a_nic_that_cannot_register_dmabufs) {
    ::close(fd);
    gaudi->close();
    describe("gaudis = 1\nhbm_pages = 4\ndmabuf = no\n");
    gaudi.emplace();
    fd = gaudi->dmabuf(gaudi->memory(1), 4096);
    ASSERT_GE(fd, 0) << "the Gaudi exports as ever";
    node here; // which has host memory registered: enough for staging
    for (const int which : {-1, fd}) {
        errno = 0;
        EXPECT_EQ(ibv_reg_dmabuf_mr(here.pd.get(), 0, 4096, 0, which, all_access), nullptr);
        EXPECT_EQ(errno, EOPNOTSUPP);
    }
}

} // namespace
