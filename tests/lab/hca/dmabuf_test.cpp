// SPDX-License-Identifier: BSD-3-Clause
// labels of every test here: dmabuf
// Transfers through registered memory of a virtual Gaudi, and what a registration keeps alive.
#include "lab/dmabuf.h"
#include "tests/lab/hca/gaudi_region.hpp"
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/soon_true.hpp"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

using namespace testing_support;

// Polls, because no event announces that a device is free: while a thread of the lab holds a duplicate of its
// descriptor, or wipes the memory of the last context, opening it fails with EBUSY or EAGAIN.
void expect_free_soon(const char* bus_id) {
    int opened = -1;
    EXPECT_TRUE(soon_true([&] {
        opened = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, bus_id);
        return opened >= 0;
    })) << bus_id
        << ": " << std::strerror(-opened);
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
    for (const std::uint64_t expected : {15U, 14U}) // the second compare fails: no swap
        ASSERT_EQ(request(IBV_WR_ATOMIC_CMP_AND_SWP)
                      .from(both.left.entry(16, 8))
                      .atomic(at + 512, mr->rkey, expected, expected + 10)
                      .post(both.a.get()),
                  0);
    for (int i = 0; i < 2; ++i)
        (void)both.left.expect_wc();
    EXPECT_EQ(device_bytes(512, 8)[0], 25);
    EXPECT_EQ(both.left.memory[16], 25) << "what the second found";
}

TEST_F(dmabuf_test, one_message_out_of_device_and_host_memory) {
    two_nodes both;
    const auto mr = register_it(both.left);
    ASSERT_TRUE(mr) << std::strerror(errno);
    for (std::size_t i = 0; i < 300; ++i)
        both.right.memory[i] = static_cast<unsigned char>(i * 3 + 1);
    const auto remote = both.right.address_of(both.b.get());
    ASSERT_EQ(
        request(IBV_WR_RDMA_READ).from({at, 300, mr->lkey}).at(remote.memory, remote.key).post(both.a.get()),
        0);
    (void)both.left.expect_wc();
    both.left.memory[7] = 77;
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                  .from(both.left.entry(7, 1))
                  .from({at, 300, mr->lkey})
                  .from(both.left.entry(7, 1))
                  .at(remote.memory + 1000, remote.key)
                  .post(both.a.get()),
              0);
    (void)both.left.expect_wc();
    EXPECT_EQ(both.right.memory[1000], 77);
    EXPECT_EQ(std::memcmp(&both.right.memory[0], &both.right.memory[1001], 300), 0);
    EXPECT_EQ(both.right.memory[1301], 77);
}

TEST_F(dmabuf_test, from_device_to_device_without_the_host) {
    gaudi_device second("0000:1a:00.0");
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
    EXPECT_TRUE(status > 3) << "the access went through: " << status; // a signal, or a sanitizer's exit code
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
        gaudi->close(); // the owner closes the device; the region stays valid
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
    // The child registers the parent's DMA-BUF, and the parent writes to that region through the NIC.
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
    peer.kill_it(); // the process that registered the region is killed: the next write gets no response
    ASSERT_EQ(peer.wait(), 128 + SIGKILL);
    ASSERT_EQ(request(IBV_WR_RDMA_WRITE).from(here.entry(0, 8)).at(at + 64, shared[1].key).post(qp.get()), 0);
    (void)here.expect_wc(IBV_WC_RETRY_EXC_ERR);
    ::munmap(shared, 4096);
}

TEST_F(dmabuf_test, a_region_of_several_pieces) {
    // Device pages that are not adjacent: of four pages the first and the third are allocated.
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
        for (const std::uint32_t length : {60000U, 8U, 2U}) { // across the seam
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
    }
    // Writes across the start and across the end of the region are refused.
    for (const auto address : {joint - (1 << 20) - 4, joint + (1 << 20) - 4}) {
        two_nodes nodes;
        const mr_handle mr(ibv_reg_dmabuf_mr(nodes.right.pd.get(), dram_page - (1 << 20), 2 << 20,
                                             joint - (1 << 20), exported, all_access));
        ASSERT_TRUE(mr) << std::strerror(errno);
        ASSERT_EQ(
            request(IBV_WR_RDMA_WRITE).from(nodes.left.entry(0, 8)).at(address, mr->rkey).post(nodes.a.get()),
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
        EXPECT_EQ(both.left.memory[64], 99) << "the region holds the memory of an owner that ended";
        EXPECT_LT(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:1a:00.0"), 0) << "and the device";
    }
    expect_free_soon("0000:1a:00.0");
    ::munmap(where, 4096);
}

// Memory of a virtual Gaudi is allocated at the first access. A full tmpfs must cause an error, not a SIGBUS.
TEST_F(test_lab, a_full_tmpfs_under_a_write_is_an_error) {
    const small_tmpfs small(root(), "40m");
    if (!small.mounted())
        GTEST_SKIP() << "no right to mount";
    const gaudi_device gaudi;
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

// The machine's last memory is not for virtual HBM, whichever process writes to it first.
TEST_F(test_lab, a_write_that_would_take_the_reserve_is_an_error) {
    if (std::getenv("GAUDI_LAB_RESERVE") == nullptr) { // in a process of its own, which prints why, once
        const auto shown =
            run_own_tests("*a_write_that_would_take_the_reserve*", {"GAUDI_LAB_RESERVE=1000000000"}); // MiB
        EXPECT_EQ(shown.status, 0) << shown.output;
        EXPECT_HAS(shown.output, "no storage for the virtual HBM");
        EXPECT_HAS(shown.output, "of which the lab leaves 1000000000 MiB untouched");
        return;
    }
    const gaudi_device gaudi;
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
        // What is left is checked once in 64 granules.
        for (; written < 65 && status == IBV_WC_SUCCESS; ++written) {
            ASSERT_EQ(request(IBV_WR_RDMA_WRITE)
                          .from(both.left.entry(0, 64))
                          .at(at + written * std::uint64_t{GAUDI_LAB_GRANULE}, mr->rkey)
                          .post(both.a.get()),
                      0);
            status = both.left.wait()->status;
        }
        EXPECT_EQ(status, IBV_WC_REM_OP_ERR) << ibv_wc_status_str(status);
        EXPECT_TRUE(reaches(both.a.get(), IBV_QPS_ERR));
    }
    ::close(fd);
}

} // namespace
