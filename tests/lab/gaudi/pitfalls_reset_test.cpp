// SPDX-License-Identifier: BSD-3-Clause
// Hardware pitfalls that the virtual Gaudi must reproduce: faults, timeouts, resets.
#include "tests/lab/gaudi/queues.hpp"
#include "tests/support/child.hpp"

#include <atomic>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <thread>

namespace {

using namespace testing_support;
using pitfall = test_lab;
using clock = std::chrono::steady_clock;

TEST_F(pitfall, p18_a_bad_address_is_a_fault_and_no_errno_of_submit) {
    notified_device opened;
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
    notified_device opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    std::atomic<int> outcome{0};
    std::atomic<std::uint32_t> status{0};
    std::atomic<pid_t> thread{0};
    std::thread waiter([&] {
        std::uint32_t seen = 0;
        thread = ::gettid();
        outcome = hlthunk_wait_for_cs(opened.fd, sequence, 30000000, &seen);
        status = seen;
    });
    const auto sleeps = [&] { // field 3 of stat, after the name in parentheses
        const auto text = text_of(fmt::format("/proc/self/task/{}/stat", thread.load()));
        const auto at = text.rfind(") ");
        return thread != 0 && at != text.npos && text[at + 2] == 'S';
    };
    while (!sleeps())
        std::this_thread::yield();
    packets bad;
    bad.lin_dma(0x1001900000000000, 0x1001900000001000, 64);
    (void)run(opened, bad, 4);
    waiter.join();
    EXPECT_EQ(outcome, -EIO);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_ABORTED));
}

TEST_F(pitfall, p18_a_command_buffer_outside_every_range_is_efault) {
    gaudi_device opened;
    std::uint64_t sequence = 0;
    EXPECT_EQ(opened.submit(0x1000, 8, 0, &sequence), -EFAULT);
    EXPECT_EQ(errno, EFAULT);
}

TEST_F(pitfall, p18_reading_unmapped_host_memory_faults) {
    notified_device opened;
    std::uint64_t address;
    {
        host_memory gone(opened, 1 << 20);
        address = gone.address + (1 << 19); // the next command buffer may be mapped at the start of the range
    }
    packets bad;
    bad.lin_dma(address, opened.memory(1), 64);
    EXPECT_LT(run(opened, bad), 0);
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_PAGE_FAULT, 0U);
}

TEST_F(pitfall, p19_what_wait_returns) {
    gaudi_device opened;
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
    notified_device opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence), 0);
    std::uint32_t status = 0;
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), -ETIMEDOUT);
    EXPECT_EQ(errno, ETIMEDOUT);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_TIMEDOUT));
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_CS_TIMEOUT, 0U);
}

TEST_F(pitfall, p19_a_timeout_without_reset_is_reported_too) {
    describe("gaudis = 1\ncs_timeout_ms = 100");
    notified_device opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    ASSERT_EQ(blocked.submit(&sequence, HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT), 0);
    EXPECT_EQ(opened.events(), static_cast<std::uint64_t>(HL_NOTIFIER_EVENT_CS_TIMEOUT));
    EXPECT_EQ(hlthunk_get_device_status_info(opened.fd), HL_DEVICE_STATUS_OPERATIONAL);
}

TEST_F(pitfall, p35_after_a_fault_everything_is_busy_and_the_silent_are_killed) {
    describe("gaudis = 1\nreset_grace_ms = 100");
    child silent([] {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        const gaudi_device opened; // no notifier
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
    gaudi_device again;
    EXPECT_GE(again.fd, 0) << "the next one finds a device that works";
}

TEST_F(pitfall, p35_with_a_notifier_there_is_time_to_close) {
    notified_device opened;
    packets bad;
    bad.lin_dma(0x1001900000000000, 0x1001900000001000, 64);
    EXPECT_LT(run(opened, bad), 0);
    std::uint32_t status = 0;
    int rc = 0;
    for (const auto limit = clock::now() + std::chrono::seconds(30); rc != -EBUSY && clock::now() < limit;)
        rc = hlthunk_wait_for_cs(opened.fd, 1, 0, &status);
    EXPECT_EQ(rc, -EBUSY) << "the release watchdog runs";
    hlthunk_notifier_release(opened.fd, opened.notifier);
    EXPECT_EQ(opened.close(), 0);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
    EXPECT_NE(again.memory(1), 0U);
}

TEST_F(pitfall, p35_in_reset_memory_buffers_and_submissions_are_busy) {
    notified_device opened;
    std::uint64_t handle = 0, buffer = 0, ignored = 0;
    const auto address = opened.memory(1, &handle);
    const auto unmapped = hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false);
    host_memory host(opened, 4096);
    packets nop;
    nop.nop();
    std::copy(nop.bytes().begin(), nop.bytes().end(), host.bytes().begin());
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &buffer), 0);
    reset(opened);
    // Each of these calls succeeds on a working device.
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
    notified_device opened;
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

} // namespace
