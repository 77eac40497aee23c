// SPDX-License-Identifier: BSD-3-Clause
// Hardware pitfalls that the virtual Gaudi must reproduce: opening, closing, generations. The numbers are
// those of docs/gotchas.md. 15 and 31 to 33 are in tests/lab/hca, 23 and 36 in tests/copy.
#include "tests/support/child.hpp"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/test_lab.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace testing_support;
using pitfall = test_lab;

constexpr const char* first = "0000:19:00.0";
constexpr const char* second = "0000:1a:00.0";

TEST_F(pitfall, p01_one_opener_in_this_process) {
    gaudi_device opened;
    ASSERT_GE(opened.fd, 0);
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first), -EBUSY);
    EXPECT_EQ(errno, EBUSY);
}

TEST_F(pitfall, p01_one_opener_across_processes) {
    gaudi_device opened;
    ASSERT_GE(opened.fd, 0);
    child other([] { return hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first) == -EBUSY ? 0 : 1; });
    EXPECT_EQ(other.wait(), 0);
}

TEST_F(pitfall, p01_busy_until_the_last_duplicate) {
    gaudi_device opened;
    const int copy = ::dup(opened.fd);
    opened.close();
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first), -EBUSY);
    ::close(copy);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

TEST_F(pitfall, p01_busy_until_a_child_with_the_descriptor_is_gone) {
    gate ready, leave;
    gaudi_device opened;
    child holder([&] {
        ready.open();
        return leave.wait() ? 0 : 1;
    });
    ASSERT_TRUE(ready.wait());
    opened.close();
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first), -EBUSY);
    leave.open();
    EXPECT_EQ(holder.wait(), 0);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

TEST_F(pitfall, p01_free_after_kill_9) {
    gate ready;
    child holder([&] {
        const gaudi_device opened;
        const auto address = opened.memory(1);
        const int fd = opened.dmabuf(address, 4096);
        if (fd < 0)
            return 1;
        ready.open();
        ::pause();
        return 0;
    });
    ASSERT_TRUE(ready.wait());
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first), -EBUSY);
    holder.kill_it();
    EXPECT_EQ(holder.wait(), 128 + SIGKILL);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

TEST_F(pitfall, p01_busy_while_a_command_buffer_is_mmapped) {
    gaudi_device opened;
    std::uint64_t handle = 0;
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &handle), 0);
    void* view =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, opened.fd, static_cast<off_t>(handle));
    ASSERT_NE(view, MAP_FAILED);
    opened.close();
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first), -EBUSY);
    ::munmap(view, 4096);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

// labels: dmabuf
TEST_F(pitfall, p01_busy_until_a_passed_dmabuf_is_closed) {
    gate channel, ready, leave;
    child importer([&] {
        const int fd = channel.receive();
        ready.open();
        const bool allowed = leave.wait();
        return fd >= 0 && allowed && ::close(fd) == 0 ? 0 : 1;
    });
    gaudi_device opened;
    const int fd = opened.dmabuf(opened.memory(1), 4096);
    ASSERT_GE(fd, 0);
    channel.send(fd);
    ASSERT_TRUE(ready.wait());
    ::close(fd);
    opened.close();
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, first), -EBUSY)
        << "the other process still has the DMA-BUF";
    leave.open();
    EXPECT_EQ(importer.wait(), 0);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

TEST_F(pitfall, p02_without_a_bus_id_failure_is_minus_one) {
    describe("gaudis = 1");
    gaudi_device opened;
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, nullptr), -1);
    EXPECT_EQ(errno, EBUSY);
}

TEST_F(pitfall, p02_unknown_bus_id_and_module) {
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:ff:00.0"), -EINVAL);
    EXPECT_EQ(hlthunk_open_by_module_id(77), -1);
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_GAUDI3, nullptr), -1);
    EXPECT_EQ(errno, ENOENT);
}

TEST_F(pitfall, p08_the_control_node_only_answers_questions) {
    const int control = hlthunk_open_control(0, nullptr);
    ASSERT_GE(control, 0);
    hlthunk_hw_ip_info info{};
    EXPECT_EQ(hlthunk_get_hw_ip_info(control, &info), 0);
    EXPECT_EQ(hlthunk_device_memory_alloc(control, 4096, 0, false, false), 0U);
    EXPECT_EQ(errno, ENOTTY);
    EXPECT_EQ(hlthunk_device_mapped_memory_export_dmabuf_fd(control, 0, 4096, 0, HL_EXPORT_FLAGS), -ENOTTY);
    EXPECT_EQ(hlthunk_notifier_create(control), -EOPNOTSUPP);
    EXPECT_EQ(hlthunk_close(control), 0);
    gaudi_device compute; // an open control node does not make the device busy
    EXPECT_GE(compute.fd, 0);
}

TEST_F(pitfall, p13_a_descriptor_number_means_nothing_elsewhere) {
    gate number_known, done;
    gaudi_device opened;
    const int fd = opened.dmabuf(opened.memory(1), 4096);
    ASSERT_GE(fd, 0);
    // A forked child inherits descriptors: close them all, so that it has none, as an unrelated process.
    child other([&] {
        ::close_range(3, ~0U, 0);
        return ::fcntl(fd, F_GETFL) < 0 && errno == EBADF ? 0 : 1;
    });
    EXPECT_EQ(other.wait(), 0);
    ::close(fd);
}

TEST_F(pitfall, p24_memory_is_not_zero_and_lost_at_close) {
    std::vector<unsigned char> written(4096, 0x11);
    for (int round = 0; round < 2; ++round) {
        gaudi_device opened;
        const auto memory = opened.memory(1);
        host_memory host(opened, 4096);
        ASSERT_EQ(copy(opened, memory, host.address, 4096, 4), 0);
        EXPECT_NE(host.bytes(), std::vector<unsigned char>(4096, 0)) << "fresh memory is zero";
        EXPECT_NE(host.bytes(), written) << "memory survived the reset at close";
        host.bytes() = written;
        ASSERT_EQ(copy(opened, host.address, memory, 4096), 0);
    }
}

TEST_F(pitfall, p24_gen1_keeps_its_memory_until_an_error) {
    describe("gaudis = 1\ngeneration = gaudi");
    constexpr std::uint64_t memory = 0x20000000 + 12345;
    constexpr std::uint32_t flags = 1U << 3 | 1U << 30; // required on gen1
    const std::vector<unsigned char> written(4096, 0x33);
    const auto read_back = [&](const gaudi_device& opened) {
        host_memory host(opened, 4096);
        packets up;
        up.lin_dma(memory, host.address, 4096, flags);
        EXPECT_EQ(run_on_gen1(opened, up, 4), 0);
        return host.bytes();
    };
    {
        gaudi_device opened;
        host_memory host(opened, 4096);
        host.bytes() = written;
        packets down;
        down.lin_dma(host.address, memory, 4096, flags);
        ASSERT_EQ(run_on_gen1(opened, down), 0);
    }
    {
        gaudi_device opened;
        const int notifier = hlthunk_notifier_create(opened.fd);
        EXPECT_EQ(read_back(opened), written) << "there is no reset at close";
        ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_is_device_idle 1 reset"), 0);
        EXPECT_FALSE(hlthunk_is_device_idle(opened.fd));
        hlthunk_notifier_release(opened.fd, notifier);
    }
    gaudi_device opened;
    EXPECT_NE(read_back(opened), written) << "but after an error there is";
}

TEST_F(pitfall, p24_memory_is_not_what_a_predecessor_left) {
    gaudi_device opened;
    std::uint64_t handle = 0;
    auto memory = opened.memory(1, &handle);
    host_memory host(opened, 4096);
    std::fill(host.bytes().begin(), host.bytes().end(), 0x22);
    ASSERT_EQ(copy(opened, host.address, memory, 4096), 0);
    ASSERT_EQ(hlthunk_memory_unmap(opened.fd, memory), 0);
    ASSERT_EQ(hlthunk_device_memory_free(opened.fd, handle), 0);
    memory = opened.memory(1);
    ASSERT_EQ(copy(opened, memory, host.address, 4096, 4), 0);
    EXPECT_NE(host.bytes()[0], 0x22);
    EXPECT_NE(host.bytes()[0], 0x00);
}

// labels: dmabuf
TEST_F(pitfall, p27_gen1_has_physical_addresses_and_its_own_export) {
    describe("gaudis = 1\ngeneration = gaudi");
    gaudi_device opened;
    ASSERT_GE(opened.fd, 0);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 4096, 0, false, false), 0U)
        << "looks like failure and is not";
    hlthunk_hw_ip_info info{};
    ASSERT_EQ(hlthunk_get_hw_ip_info(opened.fd, &info), 0);
    EXPECT_EQ(info.dram_base_address, 0x20000000U);
    const int fd =
        hlthunk_device_memory_export_dmabuf_fd(opened.fd, info.dram_base_address, 8192, HL_EXPORT_FLAGS);
    EXPECT_GE(fd, 0);
    ::close(fd);
    EXPECT_EQ(opened.dmabuf(info.dram_base_address, 8192), -EINVAL)
        << "the mapped form is for later generations";
    EXPECT_EQ(hlthunk_device_memory_export_dmabuf_fd(opened.fd, 0, 4096, 0), -EINVAL)
        << "the driver's own memory";
    EXPECT_EQ(hlthunk_device_memory_export_dmabuf_fd(opened.fd, info.dram_base_address + 1, 4096, 0),
              -EINVAL);
    EXPECT_EQ(
        hlthunk_device_memory_export_dmabuf_fd(opened.fd, info.dram_base_address + info.dram_size, 4096, 0),
        -EINVAL);
}

TEST_F(pitfall, p27_gen1_only_accounts_for_memory) {
    describe("gaudis = 1\ngeneration = gaudi");
    gaudi_device opened;
    const auto usage = [&] {
        hlthunk_dram_usage_info seen{};
        EXPECT_EQ(hlthunk_get_dram_usage(opened.fd, &seen), 0);
        return seen;
    };
    const auto all = usage().dram_free_mem;
    EXPECT_EQ(usage().ctx_dram_mem, 0U);
    errno = 0;
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 4097, 0, false, false), 0U);
    EXPECT_EQ(errno, 0) << "it is no failure";
    EXPECT_EQ(usage().ctx_dram_mem, 4097U);
    EXPECT_EQ(usage().dram_free_mem, all - 4097);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, all - 4096, 0, false, false), 0U);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(usage().ctx_dram_mem, 4097U);
    errno = 0;
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, all - 4097, 0, false, false), 0U);
    EXPECT_EQ(errno, 0);
    EXPECT_EQ(usage().dram_free_mem, 0U);
    EXPECT_EQ(hlthunk_device_memory_free(opened.fd, 4097), 0) << "the driver takes the number for bytes";
    EXPECT_EQ(usage().dram_free_mem, 4097U);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 0, 0, false, false), 0U);
    EXPECT_EQ(errno, EINVAL);
    opened.close();
    gaudi_device again;
    hlthunk_dram_usage_info seen{};
    ASSERT_EQ(hlthunk_get_dram_usage(again.fd, &seen), 0);
    EXPECT_EQ(seen.dram_free_mem, all);
}

// labels: dmabuf
TEST_F(pitfall, p27_later_generations_refuse_the_physical_export) {
    gaudi_device opened;
    EXPECT_EQ(hlthunk_device_memory_export_dmabuf_fd(opened.fd, 0x20000000, 4096, HL_EXPORT_FLAGS), -EINVAL);
}

TEST_F(pitfall, p28_gaudi3_offers_no_queue_and_small_pages) {
    describe("gaudis = 1\ngeneration = gaudi3");
    gaudi_device opened;
    ASSERT_GE(opened.fd, 0);
    EXPECT_EQ(hlthunk_get_device_name_from_fd(opened.fd), HLTHUNK_DEVICE_GAUDI3);
    packets nop;
    nop.nop();
    EXPECT_EQ(run(opened, nop), -EINVAL);
    std::uint64_t orders = 0;
    ASSERT_EQ(hlthunk_get_dev_memalloc_page_orders(opened.fd, &orders), 0);
    EXPECT_NE(orders, 0U);
    hlthunk_dram_usage_info usage{};
    const auto handle = hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false);
    ASSERT_EQ(hlthunk_get_dram_usage(opened.fd, &usage), 0);
    EXPECT_EQ(usage.ctx_dram_mem, 32 * mib);
    EXPECT_NE(handle, 0U);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 1, 3 * mib, false, false), 0U)
        << "a page size that is not in the mask";
    EXPECT_EQ(errno, EINVAL);
    EXPECT_NE(hlthunk_device_memory_alloc(opened.fd, 1, 64 * mib, false, false), 0U);
}

TEST_F(pitfall, p34_time_sync_writes_sixteen_bytes) {
    gaudi_device opened;
    struct {
        hlthunk_time_sync_info info;
        std::uint64_t guard;
    } caller{{}, 0x1234567890abcdef};
    ASSERT_EQ(hlthunk_get_time_sync_info(opened.fd, &caller.info), 0);
    EXPECT_EQ(caller.guard, 0x1234567890abcdef);
}

TEST_F(pitfall, p39_sync_objects_are_cleared_at_open) {
    constexpr std::uint64_t sob = cfg + 0x4100000 + 4 * 500, fence = fence_of_queue_0;
    {
        gaudi_device opened;
        packets set;
        set.msg_long(sob, 1);
        ASSERT_EQ(run(opened, set), 0);
    }
    gaudi_device opened;
    // A monitor with the condition "equal 0" fires immediately only if the sync object was reset to 0.
    packets wait;
    wait.msg_short(0, 0x0000 + 4 * 300, static_cast<std::uint32_t>(fence));
    wait.msg_short(0, 0x2000 + 4 * 300, static_cast<std::uint32_t>(fence >> 32));
    wait.msg_short(0, 0x4000 + 4 * 300, 1);
    wait.msg_short(0, 0x6000 + 4 * 300, 62 | (0xffU & ~(1U << 4)) << 8 | 1U << 16);
    wait.fence(0, 1, 1);
    EXPECT_EQ(run(opened, wait), 0);
}

// labels: dmabuf
TEST_F(pitfall, p40_small_bar_refuses_every_export) {
    describe("gaudis = 1\nsmall_bar = yes");
    gaudi_device opened;
    EXPECT_EQ(opened.dmabuf(opened.memory(1), 4096), -EINVAL);
}

TEST_F(pitfall, opening_a_broken_device_fails_with_eperm) {
    describe("gaudis = 2\n[gaudi 1]\nbroken = yes");
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, second), -EPERM);
}

} // namespace
