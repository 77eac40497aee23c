// SPDX-License-Identifier: BSD-3-Clause
// The pitfalls of hardware that the virtual Gaudi must reproduce: submission, engines, faults.
#include "lab/dmabuf.h"
#include "tests/support/card.hpp"
#include "tests/support/child.hpp"
#include "tests/support/test_lab.hpp"

#include <atomic>
#include <numeric>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>

namespace {

using namespace testing_support;
using pitfall = test_lab;
using clock = std::chrono::steady_clock;

// A command buffer that stays in flight until open_fence() is called.
class blocked_queue {
public:
    explicit blocked_queue(card& where) : card_(where), buffer_(where, 4096) {
        packets wait;
        wait.fence(0, 1, 1);
        std::copy(wait.bytes().begin(), wait.bytes().end(), buffer_.bytes().begin());
    }
    // The card goes first: it may still be reading the buffer.
    ~blocked_queue() { card_.close(); }
    blocked_queue(const blocked_queue&) = delete;
    blocked_queue& operator=(const blocked_queue&) = delete;

    int submit(std::uint64_t* sequence, std::uint32_t flags = 0) {
        return card_.submit(buffer_.address, 8, 0, sequence, user_buffer, flags);
    }
    void open_fence(std::uint32_t times = 1) {
        packets signal;
        signal.msg_long(fence_of_queue_0, times);
        EXPECT_EQ(run(card_, signal, 4), 0);
    }

private:
    card& card_;
    host_memory buffer_;
};

// Takes a fault: told through a notifier, so that the driver does not kill us.
class told_card : public card {
public:
    told_card() : notifier(hlthunk_notifier_create(fd)) {}
    ~told_card() {
        if (fd >= 0)
            hlthunk_notifier_release(fd, notifier);
        else
            ::close(notifier);
    }
    [[nodiscard]] std::uint64_t events() const {
        std::uint64_t mask = 0, count = 0;
        EXPECT_EQ(hlthunk_notifier_recv(fd, notifier, &mask, &count, 0, 5000), 0);
        EXPECT_GT(count, 0U);
        return mask;
    }
    int notifier;
};

// Resets the device under its owner, who was told and has time to look around.
void reset(const told_card& opened) {
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_is_device_idle 1 reset"), 0);
    EXPECT_FALSE(hlthunk_is_device_idle(opened.fd));
    EXPECT_EQ(gaudi_lab_faults_fired(), 1U);
}

TEST_F(pitfall, p14_import_is_an_operation_the_upstream_driver_does_not_know) {
    card exporter("0000:19:00.0"), importer("0000:1a:00.0");
    const int fd = exporter.dmabuf(exporter.memory(1), 8192);
    hl_mem_args args{};
    args.in.argument[0] = static_cast<std::uint64_t>(fd);
    args.in.argument[1] = 8192;
    args.in.op = HL_MEM_OP_REG_DMABUF_FD;
    EXPECT_EQ(::ioctl(importer.fd, HL_IOCTL_MEMORY_REQUEST, &args), -1);
    EXPECT_EQ(errno, EINVAL);
    ::close(fd);
}

TEST_F(pitfall, p14_import_with_the_vendor_driver) {
    describe("gaudis = 2\ndmabuf_import = yes");
    card exporter("0000:19:00.0"), importer("0000:1a:00.0");
    const auto source = exporter.memory(1);
    host_memory filled(exporter, 8192);
    std::iota(filled.bytes().begin(), filled.bytes().end(), 1);
    ASSERT_EQ(copy(exporter, filled.address, source, 8192), 0);
    const int fd = exporter.dmabuf(source, 8192);
    hl_mem_args args{};
    args.in.argument[0] = static_cast<std::uint64_t>(fd);
    args.in.argument[1] = 12288;
    args.in.op = HL_MEM_OP_REG_DMABUF_FD;
    EXPECT_EQ(::ioctl(importer.fd, HL_IOCTL_MEMORY_REQUEST, &args), -1) << "longer than the DMA-BUF";
    args.in.argument[1] = 8192;
    args.in.op = HL_MEM_OP_REG_DMABUF_FD;
    ASSERT_EQ(::ioctl(importer.fd, HL_IOCTL_MEMORY_REQUEST, &args), 0);
    const auto imported = args.out.device_virt_addr;
    ::close(fd);
    EXPECT_EQ(hlthunk_memory_unmap(exporter.fd, source), -EINVAL) << "the import keeps the DMA-BUF";
    host_memory back(importer, 8192);
    EXPECT_EQ(copy(importer, imported, back.address, 8192), 0);
    EXPECT_EQ(back.bytes(), filled.bytes());
    EXPECT_EQ(hlthunk_memory_unmap(importer.fd, imported), 0);
    EXPECT_EQ(hlthunk_memory_unmap(exporter.fd, source), 0);
}

TEST_F(pitfall, p18_a_bad_address_is_a_fault_and_no_errno_of_submit) {
    told_card opened;
    host_memory host(opened, 4096), buffer(opened, 4096);
    packets bad;
    bad.lin_dma(host.address, 0x1001900000000000, 64);
    std::copy(bad.bytes().begin(), bad.bytes().end(), buffer.bytes().begin());
    std::uint64_t sequence = 0;
    ASSERT_EQ(opened.submit(buffer.address, bad.size(), 0, &sequence), 0) << "accepted";
    const auto events = opened.events();
    EXPECT_NE(events & HL_NOTIFIER_EVENT_PAGE_FAULT, 0U);
    EXPECT_NE(events & HL_NOTIFIER_EVENT_DEVICE_RESET, 0U);
    hlthunk_page_fault_info fault{};
    EXPECT_EQ(hlthunk_get_page_fault_info(opened.fd, &fault, 0), 0);
    EXPECT_EQ(fault.addr, 0x1001900000000000U);
    EXPECT_NE(hlthunk_get_device_status_info(opened.fd), HL_DEVICE_STATUS_OPERATIONAL);
}

TEST_F(pitfall, p18_a_blocked_waiter_gets_eio) {
    told_card opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    std::atomic<int> outcome{0};
    std::atomic<std::uint32_t> status{0};
    std::thread waiter([&] {
        std::uint32_t seen = 0;
        outcome = hlthunk_wait_for_cs(opened.fd, sequence, 30000000, &seen);
        status = seen;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    packets bad;
    bad.lin_dma(0x1001900000000000, 0x1001900000001000, 64);
    (void)run(opened, bad, 4);
    waiter.join();
    EXPECT_EQ(outcome, -EIO);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_ABORTED));
}

TEST_F(pitfall, p18_a_command_buffer_outside_every_range_is_efault) {
    card opened;
    std::uint64_t sequence = 0;
    EXPECT_EQ(opened.submit(0x1000, 8, 0, &sequence), -EFAULT);
    EXPECT_EQ(errno, EFAULT);
}

TEST_F(pitfall, p18_reading_unmapped_host_memory_faults) {
    told_card opened;
    std::uint64_t address;
    {
        host_memory gone(opened, 1 << 20);
        address = gone.address + (1 << 19); // its beginning may be mapped anew by the next command buffer
    }
    packets bad;
    bad.lin_dma(address, opened.memory(1), 64);
    EXPECT_LT(run(opened, bad), 0);
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_PAGE_FAULT, 0U);
}

TEST_F(pitfall, p19_what_wait_returns) {
    card opened;
    std::uint32_t status = 77;
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, 1, 0, &status), -EINVAL) << "not issued yet";
    EXPECT_EQ(errno, EINVAL);
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    EXPECT_EQ(sequence, 1U);
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 0, &status), 0);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_BUSY));
    const auto begin = clock::now();
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 50000, &status), 0);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_BUSY));
    EXPECT_GE(clock::now() - begin, std::chrono::milliseconds(50)) << "a real timeout";
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 1ULL << 32, &status), 0)
        << "2^32 wraps to 0: returns at once";
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_BUSY));
    blocked.open_fence();
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), 0);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_COMPLETED));
}

TEST_F(pitfall, p19_a_stuck_submission_times_out) {
    describe("gaudis = 1\ncs_timeout_ms = 200");
    told_card opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    std::uint32_t status = 0;
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), -ETIMEDOUT);
    EXPECT_EQ(errno, ETIMEDOUT);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_TIMEDOUT));
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_CS_TIMEOUT, 0U);
}

TEST_F(pitfall, p19_a_timeout_without_reset_is_told_all_the_same) {
    describe("gaudis = 1\ncs_timeout_ms = 100");
    told_card opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence, HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT), 0);
    EXPECT_EQ(opened.events(), static_cast<std::uint64_t>(HL_NOTIFIER_EVENT_CS_TIMEOUT));
    EXPECT_EQ(hlthunk_get_device_status_info(opened.fd), HL_DEVICE_STATUS_OPERATIONAL);
}

TEST_F(pitfall, p14_closing_the_importer_lets_the_exporter_go) {
    describe("gaudis = 2\ndmabuf_import = yes");
    card exporter("0000:19:00.0"), importer("0000:1a:00.0");
    const auto source = exporter.memory(1);
    const int fd = exporter.dmabuf(source, 8192);
    hl_mem_args args{};
    args.in.argument[0] = static_cast<std::uint64_t>(fd);
    args.in.argument[1] = 8192;
    args.in.op = HL_MEM_OP_REG_DMABUF_FD;
    ASSERT_EQ(::ioctl(importer.fd, HL_IOCTL_MEMORY_REQUEST, &args), 0);
    ::close(fd);
    EXPECT_EQ(hlthunk_memory_unmap(exporter.fd, source), -EINVAL);
    importer.close();
    EXPECT_EQ(hlthunk_memory_unmap(exporter.fd, source), 0);
}

TEST_F(pitfall, p20_the_65th_submission_blocks) {
    describe("gaudis = 1\ncs_timeout_ms = 500");
    card opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    for (int i = 0; i < 64; ++i)
        ASSERT_EQ(blocked.submit(&sequence, HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT), 0);
    EXPECT_EQ(sequence, 64U);
    const auto begin = clock::now();
    ASSERT_EQ(blocked.submit(&sequence, HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT), 0) << "it must not fail";
    EXPECT_EQ(sequence, 65U);
    EXPECT_GE(clock::now() - begin, std::chrono::milliseconds(100))
        << "it returned before the first one ended";
}

TEST_F(pitfall, p21_kernel_buffers_are_refused_on_gaudi2) {
    card opened;
    std::uint64_t handle = 0, sequence = 0;
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &handle), 0);
    EXPECT_EQ(opened.submit(handle, 8, 0, &sequence, 0), -EINVAL);
    EXPECT_EQ(hlthunk_destroy_command_buffer(opened.fd, handle), 0);
    EXPECT_EQ(hlthunk_destroy_command_buffer(opened.fd, handle), -EINVAL);
}

TEST_F(pitfall, p21_gen1_takes_only_kernel_buffers_and_parses_them) {
    describe("gaudis = 1\ngeneration = gaudi");
    card opened;
    host_memory user(opened, 4096);
    std::uint64_t sequence = 0, handle = 0;
    EXPECT_EQ(opened.submit(user.address, 8, 0, &sequence), -EINVAL);
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &handle), 0);
    auto* view = static_cast<unsigned char*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, opened.fd, static_cast<off_t>(handle)));
    ASSERT_NE(view, MAP_FAILED);
    packets forbidden;
    forbidden.cp_dma(0x20000000, 24);
    std::copy(forbidden.bytes().begin(), forbidden.bytes().end(), view);
    EXPECT_EQ(opened.submit(handle, forbidden.size(), 0, &sequence, 0), -EPERM);
    packets good;
    good.lin_dma(user.address, 0x20000000, 16, 1U << 3 | 1U << 30);
    std::copy(good.bytes().begin(), good.bytes().end(), view);
    ASSERT_EQ(opened.submit(handle, good.size(), 0, &sequence, 0), 0);
    std::uint32_t status = 0;
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), 0);
    EXPECT_EQ(opened.submit(handle, 4, 0, &sequence, 0), -EINVAL) << "smaller than a packet";
    ::munmap(view, 4096);
    hlthunk_destroy_command_buffer(opened.fd, handle);
}

TEST_F(pitfall, p22_queues_are_independent) {
    card opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    packets nop;
    nop.nop();
    EXPECT_EQ(run(opened, nop, 1), 0) << "another stream goes on";
    EXPECT_EQ(run(opened, nop, 4), 0);
    blocked.open_fence();
    std::uint32_t status = 0;
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), 0);
}

TEST_F(pitfall, p22_order_within_a_queue) {
    card opened;
    const auto device = opened.memory(1);
    host_memory host(opened, 1 << 20), small(opened, 4096);
    std::fill(host.bytes().begin(), host.bytes().end(), 1);
    std::fill(small.bytes().begin(), small.bytes().end(), 2);
    packets both;
    both.lin_dma(host.address, device, 1 << 20);
    both.lin_dma(small.address, device, 4096);
    ASSERT_EQ(run(opened, both), 0);
    ASSERT_EQ(copy(opened, device, host.address, 8192, 4), 0);
    EXPECT_EQ(host.bytes()[0], 2);
    EXPECT_EQ(host.bytes()[4096], 1);
}

TEST_F(pitfall, p35_after_a_fault_everything_is_busy_and_the_silent_are_killed) {
    describe("gaudis = 1\nreset_grace_ms = 100");
    child silent([] {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        const card opened; // no notifier
        packets bad;
        bad.lin_dma(0x1001900000000000, 0x1001900000001000, 64);
        if (run(opened, bad) != -EIO)
            return 1;
        if (hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false) != 0 || errno != EBUSY)
            return 2;
        std::this_thread::sleep_for(std::chrono::seconds(20));
        return 3;
    });
    EXPECT_EQ(silent.wait(), 128 + SIGKILL);
    card again;
    EXPECT_GE(again.fd, 0) << "the next one finds a device that works";
}

TEST_F(pitfall, p35_with_a_notifier_there_is_time_to_close) {
    told_card opened;
    packets bad;
    bad.lin_dma(0x1001900000000000, 0x1001900000001000, 64);
    EXPECT_LT(run(opened, bad), 0);
    std::uint32_t status = 0;
    int rc = 0;
    for (const auto limit = clock::now() + std::chrono::seconds(5); rc != -EBUSY && clock::now() < limit;)
        rc = hlthunk_wait_for_cs(opened.fd, 1, 0, &status);
    EXPECT_EQ(rc, -EBUSY) << "the release watchdog runs";
    hlthunk_notifier_release(opened.fd, opened.notifier);
    EXPECT_EQ(opened.close(), 0);
    card again;
    EXPECT_GE(again.fd, 0);
    EXPECT_NE(again.memory(1), 0U);
}

TEST_F(pitfall, p35_in_reset_memory_buffers_and_submissions_are_busy) {
    told_card opened;
    std::uint64_t handle = 0, buffer = 0, ignored = 0;
    const auto address = opened.memory(1, &handle);
    const auto unmapped = hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false);
    host_memory host(opened, 4096);
    packets nop;
    nop.nop();
    std::copy(nop.bytes().begin(), nop.bytes().end(), host.bytes().begin());
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &buffer), 0);
    reset(opened);
    // Each of these would succeed on a device that works.
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U);
    EXPECT_EQ(errno, EBUSY);
    EXPECT_EQ(hlthunk_device_memory_free(opened.fd, unmapped), -EBUSY);
    errno = 0;
    EXPECT_EQ(hlthunk_device_memory_map(opened.fd, handle, 0), 0U);
    EXPECT_EQ(errno, EBUSY);
    errno = 0;
    EXPECT_EQ(hlthunk_host_memory_map(opened.fd, host.bytes().data(), 0, 4096), 0U);
    EXPECT_EQ(errno, EBUSY);
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, address), -EBUSY);
    EXPECT_EQ(opened.dmabuf(address, 4096), -EBUSY);
    hl_mem_args args{};
    args.in.argument[0] = address;
    args.in.op = HL_MEM_OP_UNMAP;
    errno = 0;
    EXPECT_EQ(::ioctl(opened.fd, HL_IOCTL_MEMORY_REQUEST, &args), -1);
    EXPECT_EQ(errno, EBUSY);
    EXPECT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &ignored), -EBUSY);
    EXPECT_EQ(hlthunk_request_mapped_command_buffer(opened.fd, 4096, &ignored), -EBUSY);
    EXPECT_EQ(hlthunk_destroy_command_buffer(opened.fd, buffer), -EBUSY);
    EXPECT_EQ(opened.submit(host.address, nop.size(), 0, &ignored), -EBUSY);
    EXPECT_EQ(errno, EBUSY);
}

TEST_F(pitfall, p35_which_queries_work_in_reset) {
    told_card opened;
    alignas(8) unsigned char any[4096]; // larger than every answer
    const auto ask = [&]<typename Out>(int (*query)(int, Out*)) {
        return query(opened.fd, reinterpret_cast<Out*>(any));
    };
    std::uint32_t more = 0;
    int length = 0;
    const auto all = [&](int wanted) {
        EXPECT_EQ(ask(hlthunk_get_busy_engines_mask), wanted);
        EXPECT_EQ(hlthunk_get_clk_rate(opened.fd, &more, &more), wanted);
        EXPECT_EQ(ask(hlthunk_get_time_sync_info), wanted);
        EXPECT_EQ(ask(hlthunk_get_pci_counters_info), wanted);
        EXPECT_EQ(ask(hlthunk_get_power_info), wanted);
        EXPECT_EQ(ask(hlthunk_get_total_energy_consumption_info), wanted);
        EXPECT_EQ(ask(hlthunk_get_dram_replaced_rows_info), wanted);
        EXPECT_EQ(ask(hlthunk_get_dram_pending_rows_info), wanted);
        EXPECT_EQ(hlthunk_get_pll_frequency(opened.fd, 0, reinterpret_cast<hlthunk_pll_frequency_info*>(any)),
                  wanted);
        EXPECT_EQ(hlthunk_get_device_utilization(opened.fd, 100, &more), wanted);
        EXPECT_EQ(hlthunk_get_engine_status(opened.fd, reinterpret_cast<char*>(any), sizeof(any), &length),
                  wanted);
    };
    all(0);
    reset(opened);
    all(-EBUSY);
    EXPECT_EQ(errno, EBUSY);
    EXPECT_EQ(ask(hlthunk_get_hw_ip_info), 0);
    EXPECT_EQ(hlthunk_get_device_status_info(opened.fd), HL_DEVICE_STATUS_NEEDS_RESET);
    EXPECT_EQ(ask(hlthunk_get_reset_count_info), 0);
    EXPECT_EQ(hlthunk_get_hw_events_arr(opened.fd, false, sizeof(any), reinterpret_cast<std::uint32_t*>(any)),
              0);
    EXPECT_EQ(ask(hlthunk_get_cs_counters_info), 0);
    EXPECT_EQ(ask(hlthunk_get_clk_throttle_info), 0);
    EXPECT_EQ(hlthunk_get_sync_manager_info(opened.fd, 0, reinterpret_cast<hlthunk_sync_manager_info*>(any)),
              0);
    EXPECT_EQ(ask(hlthunk_get_open_stats), 0);
    EXPECT_EQ(hlthunk_get_event_record(opened.fd, HLTHUNK_CS_TIMEOUT, any), 0);
    EXPECT_EQ(ask(hlthunk_get_dev_memalloc_page_orders), 0);
    EXPECT_EQ(ask(hlthunk_get_dram_usage), 0);
}

TEST_F(pitfall, p38_idle_as_soon_as_nothing_is_in_flight) {
    card opened;
    EXPECT_TRUE(hlthunk_is_device_idle(opened.fd));
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    EXPECT_FALSE(hlthunk_is_device_idle(opened.fd));
    blocked.open_fence();
    std::uint32_t status = 0;
    ASSERT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), 0);
    EXPECT_TRUE(hlthunk_is_device_idle(opened.fd));
}

TEST_F(pitfall, submission_checks) {
    card opened;
    hlthunk_cs_in in{};
    hlthunk_cs_out out{};
    EXPECT_EQ(hlthunk_command_submission(opened.fd, &in, &out), -EINVAL) << "no chunk";
    std::vector<hl_cs_chunk> chunks(513);
    in.chunks_execute = chunks.data();
    in.num_chunks_execute = 513;
    EXPECT_EQ(hlthunk_command_submission(opened.fd, &in, &out), -EINVAL);
    host_memory buffer(opened, 4096);
    std::uint64_t sequence = 0;
    EXPECT_EQ(opened.submit(buffer.address, 8, 260, &sequence), -EINVAL) << "the driver's own queue";
    EXPECT_EQ(opened.submit(buffer.address, 8, 4000, &sequence), -EINVAL);
    hlthunk_wait_multi_cs_in multi{};
    hlthunk_wait_multi_cs_out many{};
    EXPECT_EQ(hlthunk_wait_for_multi_cs(opened.fd, &multi, &many), -EPERM);
}

TEST_F(pitfall, an_unknown_opcode_is_a_fault) {
    told_card opened;
    packets odd;
    odd.raw(0, 0x1fU << 24);
    EXPECT_LT(run(opened, odd), 0);
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_UNDEFINED_OPCODE, 0U);
}

TEST_F(pitfall, lin_dma_memset) {
    card opened;
    const auto device = opened.memory(1);
    host_memory host(opened, 4096);
    packets fill;
    fill.lin_dma(0x1122334455667788, device + 16, 20, 1U << 4);
    ASSERT_EQ(run(opened, fill), 0);
    ASSERT_EQ(copy(opened, device, host.address, 64, 4), 0);
    const unsigned char expected[] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    for (unsigned i = 0; i < 64; ++i)
        EXPECT_EQ(host.bytes()[i], i >= 16 && i < 36 ? expected[i % 8] : GAUDI_LAB_FRESH_BYTE) << i;
}

TEST_F(pitfall, lin_dma_endian_swap_of_every_width) {
    card opened;
    const auto device = opened.memory(1);
    for (const unsigned code : {0U, 1U, 2U, 3U}) {
        const unsigned width = 1U << code; // 16, 32 and 64 bits
        host_memory host(opened, 4096), back(opened, 4096);
        std::iota(host.bytes().begin(), host.bytes().begin() + 64, 0);
        packets swap;
        swap.lin_dma(host.address, device, 64, code << 1);
        ASSERT_EQ(run(opened, swap), 0);
        ASSERT_EQ(copy(opened, device, back.address, 64, 4), 0);
        for (unsigned i = 0; i < 64; ++i)
            EXPECT_EQ(back.bytes()[i], i / width * width + (width - 1 - i % width))
                << width << " bytes, " << i;
    }
}

TEST_F(pitfall, cp_dma_runs_the_lower_buffer) {
    card opened;
    const auto device = opened.memory(1);
    host_memory host(opened, 4096), lower(opened, 4096);
    std::iota(host.bytes().begin(), host.bytes().begin() + 1000, 1);
    packets copies;
    copies.lin_dma(host.address, device + 5, 1000);
    copies.lin_dma(device + 5, host.address + 2048, 1000);
    std::copy(copies.bytes().begin(), copies.bytes().end(), lower.bytes().begin() + 24);
    packets upper;
    upper.cp_dma(lower.address + 24, copies.size());
    ASSERT_EQ(run(opened, upper), 0);
    EXPECT_TRUE(std::equal(host.bytes().begin(), host.bytes().begin() + 1000, host.bytes().begin() + 2048));
    EXPECT_EQ(host.bytes()[3048], 0);
}

TEST_F(pitfall, every_edma_copies_through_a_lower_buffer) {
    card opened;
    const auto device = opened.memory(1);
    constexpr std::uint64_t sram = 0x1000FFFFFD000000;
    host_memory host(opened, 4096), lower(opened, 4096);
    std::uint64_t copied = 0;
    for (const unsigned queue : {8U, 12U, 48U, 52U, 84U, 88U, 120U, 124U}) {
        SCOPED_TRACE(queue);
        std::fill(host.bytes().begin(), host.bytes().end(), static_cast<unsigned char>(queue));
        const auto sent = host.bytes();
        ASSERT_EQ(copy(opened, host.address, device, 4096), 0);
        packets copies;
        copies.lin_dma(device, device + (copied += 4096), 4096);
        std::copy(copies.bytes().begin(), copies.bytes().end(), lower.bytes().begin());
        ASSERT_EQ(copy(opened, lower.address, sram, copies.size()), 0);
        packets upper;
        upper.cp_dma(queue < 84 ? lower.address : sram, copies.size());
        ASSERT_EQ(run(opened, upper, queue), 0);
        std::fill(host.bytes().begin(), host.bytes().end(), 0);
        ASSERT_EQ(copy(opened, device + copied, host.address, 4096, 4), 0);
        EXPECT_EQ(host.bytes(), sent);
    }
}

TEST_F(pitfall, an_edma_takes_no_copy_from_its_upper_buffer) {
    told_card opened;
    const auto device = opened.memory(1);
    packets direct;
    direct.lin_dma(device, device + 4096, 4096);
    EXPECT_LT(run(opened, direct, 8), 0);
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_UNDEFINED_OPCODE, 0U);
}

} // namespace
