// SPDX-License-Identifier: BSD-3-Clause
// Hardware pitfalls that the virtual Gaudi must reproduce: submission, queues, packets.
#include "tests/lab/gaudi/queues.hpp"

#include <numeric>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <thread>

namespace {

using namespace testing_support;
using pitfall = test_lab;
using clock = std::chrono::steady_clock;

// labels: dmabuf
TEST_F(pitfall, p14_import_is_an_operation_the_upstream_driver_does_not_know) {
    gaudi_device exporter("0000:19:00.0"), importer("0000:1a:00.0");
    const int fd = exporter.dmabuf(exporter.memory(1), 8192);
    hl_mem_args args{};
    args.in.argument[0] = static_cast<std::uint64_t>(fd);
    args.in.argument[1] = 8192;
    args.in.op = HL_MEM_OP_REG_DMABUF_FD;
    EXPECT_EQ(::ioctl(importer.fd, HL_IOCTL_MEMORY_REQUEST, &args), -1);
    EXPECT_EQ(errno, EINVAL);
    ::close(fd);
}

// labels: dmabuf
TEST_F(pitfall, p14_import_with_the_vendor_driver) {
    describe("gaudis = 2\ndmabuf_import = yes");
    gaudi_device exporter("0000:19:00.0"), importer("0000:1a:00.0");
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

// labels: dmabuf
TEST_F(pitfall, p14_closing_the_importer_lets_the_exporter_go) {
    describe("gaudis = 2\ndmabuf_import = yes");
    gaudi_device exporter("0000:19:00.0"), importer("0000:1a:00.0");
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
    gaudi_device opened;
    blocked_queue blocked(opened);
    std::uint64_t sequence = 0;
    const auto begin = clock::now();
    for (int i = 0; i < 64; ++i)
        ASSERT_EQ(blocked.submit(&sequence, HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT), 0);
    EXPECT_EQ(sequence, 64U);
    ASSERT_EQ(blocked.submit(&sequence, HL_CS_FLAGS_SKIP_RESET_ON_TIMEOUT), 0) << "it must not fail";
    EXPECT_EQ(sequence, 65U);
    EXPECT_GE(clock::now() - begin, std::chrono::milliseconds(490))
        << "it returned before the first one ended";
}

TEST_F(pitfall, p21_kernel_buffers_are_refused_on_gaudi2) {
    gaudi_device opened;
    std::uint64_t handle = 0, sequence = 0;
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &handle), 0);
    EXPECT_EQ(opened.submit(handle, 8, 0, &sequence, 0), -EINVAL);
    EXPECT_EQ(hlthunk_destroy_command_buffer(opened.fd, handle), 0);
    EXPECT_EQ(hlthunk_destroy_command_buffer(opened.fd, handle), -EINVAL);
}

TEST_F(pitfall, p21_gen1_takes_only_kernel_buffers_and_parses_them) {
    describe("gaudis = 1\ngeneration = gaudi");
    gaudi_device opened;
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
    gaudi_device opened;
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
    gaudi_device opened;
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

// A polling thread may execute short copies for the virtual device, in order, and no other packets.
TEST_F(pitfall, p22_order_while_several_threads_poll) {
    gaudi_device opened;
    constexpr std::uint32_t size = 64 << 10, steps = 60;
    const auto device = opened.memory(size * (steps + 1));
    host_memory host(opened, size), buffers(opened, 4096);
    std::fill(host.bytes().begin(), host.bytes().end(), 7);
    ASSERT_EQ(copy(opened, host.address, device, size), 0);
    std::uint64_t last = 0;
    for (std::uint32_t i = 0; i < steps; ++i) { // each step copies the result of the previous one
        packets step;
        step.lin_dma(device + i * size, device + (i + 1) * size, size);
        std::copy(step.bytes().begin(), step.bytes().end(), buffers.bytes().begin() + i * 64);
        ASSERT_EQ(opened.submit(buffers.address + i * 64, step.size(), 0, &last), 0);
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            std::uint32_t status = HL_WAIT_CS_STATUS_BUSY;
            while (status == HL_WAIT_CS_STATUS_BUSY)
                if (hlthunk_wait_for_cs(opened.fd, last, 0, &status) != 0)
                    break;
            EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_COMPLETED));
        });
    for (auto& each : threads)
        each.join();
    std::fill(host.bytes().begin(), host.bytes().end(), 0);
    ASSERT_EQ(copy(opened, device + steps * size, host.address, size, 4), 0);
    EXPECT_EQ(std::count(host.bytes().begin(), host.bytes().end(), 7), size);
}

TEST_F(pitfall, p22_a_poll_waits_for_nothing) {
    gaudi_device opened;
    const auto device = opened.memory(4096);
    host_memory host(opened, 8192);
    std::fill(host.bytes().begin(), host.bytes().begin() + 4096, 3);
    blocked_queue blocked(opened);
    std::uint64_t first = 0, second = 0;
    ASSERT_EQ(blocked.submit(&first), 0);
    packets second_packets;
    second_packets.lin_dma(host.address, device, 1024);
    std::copy(second_packets.bytes().begin(), second_packets.bytes().end(), host.bytes().begin() + 4096);
    ASSERT_EQ(opened.submit(host.address + 4096, second_packets.size(), 0, &second), 0);
    std::uint32_t status = HL_WAIT_CS_STATUS_COMPLETED;
    for (int i = 0; i < 200; ++i)
        for (const auto each : {first, second}) {
            ASSERT_EQ(hlthunk_wait_for_cs(opened.fd, each, 0, &status), 0);
            ASSERT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_BUSY)) << "nothing is overtaken";
        }
    blocked.open_fence();
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, second, 5000000, &status), 0);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_COMPLETED));
}

TEST_F(pitfall, p38_idle_as_soon_as_nothing_is_in_flight) {
    gaudi_device opened;
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
    gaudi_device opened;
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
    notified_device opened;
    packets odd;
    odd.raw(0, 0x1fU << 24);
    EXPECT_LT(run(opened, odd), 0);
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_UNDEFINED_OPCODE, 0U);
}

TEST_F(pitfall, lin_dma_memset) {
    gaudi_device opened;
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
    gaudi_device opened;
    const auto device = opened.memory(1);
    for (const unsigned code : {0U, 1U, 2U, 3U}) {
        const unsigned width = 1U << code; // in bytes; 1 means no swap
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
    gaudi_device opened;
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
    gaudi_device opened;
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
    notified_device opened;
    const auto device = opened.memory(1);
    packets direct;
    direct.lin_dma(device, device + 4096, 4096);
    EXPECT_LT(run(opened, direct, 8), 0);
    EXPECT_NE(opened.events() & HL_NOTIFIER_EVENT_UNDEFINED_OPCODE, 0U);
}

} // namespace
