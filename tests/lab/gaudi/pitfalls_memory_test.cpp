// SPDX-License-Identifier: BSD-3-Clause
// Hardware pitfalls that the virtual Gaudi must reproduce: memory, mapping, DMA-BUF.
#include "lab/dmabuf.h"
#include "tests/support/child.hpp"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/test_lab.hpp"

#include <csetjmp>
#include <csignal>
#include <linux/dma-buf.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace {

using namespace testing_support;
using pitfall = test_lab;

TEST_F(pitfall, p03_an_allocation_costs_768_megabytes) {
    gaudi_device opened;
    ASSERT_NE(opened.memory(1), 0U);
    hlthunk_dram_usage_info usage{};
    ASSERT_EQ(hlthunk_get_dram_usage(opened.fd, &usage), 0);
    EXPECT_EQ(usage.ctx_dram_mem, dram_page);
    for (int i = 1; i < 127; ++i)
        ASSERT_NE(hlthunk_device_memory_alloc(opened.fd, 4096, 0, false, false), 0U) << i;
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U) << "the 128th";
    EXPECT_EQ(errno, ENOMEM);
}

TEST_F(pitfall, p04_the_page_is_no_power_of_two) {
    gaudi_device opened;
    hlthunk_hw_ip_info info{};
    ASSERT_EQ(hlthunk_get_hw_ip_info(opened.fd, &info), 0);
    EXPECT_EQ(info.dram_page_size, 3ULL << 28);
    EXPECT_EQ(info.dram_size, 0x17D0000000U);
}

TEST_F(pitfall, p05_a_handle_is_no_address) {
    gaudi_device opened;
    std::uint64_t handle = 0;
    const auto address = opened.memory(1, &handle);
    EXPECT_NE(handle, address);
    EXPECT_EQ(opened.dmabuf(handle, 4096), -EINVAL);
    EXPECT_EQ(hlthunk_device_memory_free(opened.fd, address), -EINVAL);
}

// labels: dmabuf
TEST_F(pitfall, p06_export_wants_the_exact_base_and_whole_pages) {
    gaudi_device opened;
    const auto base = opened.memory(1);
    EXPECT_EQ(opened.dmabuf(base + 4096, 4096), -EINVAL) << "inside";
    EXPECT_EQ(opened.dmabuf(base, 4095), -EINVAL);
    EXPECT_EQ(opened.dmabuf(base, 0), -EINVAL);
    EXPECT_EQ(opened.dmabuf(base, 4096, 1), -EINVAL);
    EXPECT_EQ(opened.dmabuf(base, 4096, dram_page), -EINVAL) << "past the end";
    EXPECT_EQ(opened.dmabuf(base, 8192, dram_page - 4096), -EINVAL);
    EXPECT_EQ(opened.dmabuf(base, 4096, ~0ULL - 4095), -EINVAL) << "offset + size wraps";
    const int last = opened.dmabuf(base, 4096, dram_page - 4096);
    EXPECT_GE(last, 0) << "the rounded size counts, not the one that was asked for";
    const int overlapping = opened.dmabuf(base, dram_page);
    EXPECT_GE(overlapping, 0);
    ::close(last);
    ::close(overlapping);
}

// labels: dmabuf
TEST_F(pitfall, p07_export_flags_exactly) {
    gaudi_device opened;
    const auto base = opened.memory(1);
    for (const std::uint32_t flags : {0U, 2U, 0x80000U, 0x80003U})
        EXPECT_EQ(opened.dmabuf(base, 4096, 0, flags), -EINVAL) << flags;
}

// labels: dmabuf
TEST_F(pitfall, p08_only_mapped_device_memory_is_exported) {
    gaudi_device opened;
    host_memory host(opened, 8192);
    EXPECT_EQ(opened.dmabuf(host.address & ~4095ULL, 4096), -EINVAL);
    const auto handle = hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false);
    EXPECT_EQ(opened.dmabuf(handle, 4096), -EINVAL);
}

// labels: dmabuf
TEST_F(pitfall, p09_no_unmap_and_no_free_while_exported) {
    gaudi_device opened;
    std::uint64_t handle = 0;
    const auto base = opened.memory(1, &handle);
    const int fd = opened.dmabuf(base, 4096);
    const int copy = ::dup(fd);
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, base), -EINVAL);
    EXPECT_EQ(hlthunk_device_memory_free(opened.fd, handle), -EINVAL);
    ::close(fd);
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, base), -EINVAL) << "a duplicate lives";
    ::close(copy);
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, base), 0);
    EXPECT_EQ(hlthunk_device_memory_free(opened.fd, handle), 0);
    EXPECT_EQ(hlthunk_device_memory_free(opened.fd, handle), -EINVAL) << "twice";
}

TEST_F(pitfall, p09_closing_the_device_first_leaves_it_busy) {
    gaudi_device opened;
    const int fd = opened.dmabuf(opened.memory(1), 4096);
    opened.close();
    EXPECT_EQ(hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:19:00.0"), -EBUSY);
    ::close(fd);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

TEST_F(pitfall, p10_a_kept_duplicate_outlives_the_descriptor) {
    gaudi_device opened;
    const auto base = opened.memory(1);
    const int fd = opened.dmabuf(base, 8192);
    const int region = ::fcntl(fd, F_DUPFD_CLOEXEC, 0); // the reference that a memory region holds
    ::close(fd);
    gaudi_lab_dmabuf head{};
    gaudi_lab_range range{};
    char path[512];
    ASSERT_EQ(gaudi_lab_dmabuf_describe(region, &head, &range, 1, path, sizeof(path)), 0);
    EXPECT_EQ(head.size, 8192U);
    EXPECT_EQ(range.length, 8192U);
    ::close(region);
}

// labels: dmabuf
TEST_F(pitfall, p11_a_dmabuf_cannot_be_mapped_or_read) {
    gaudi_device opened;
    const auto base = opened.memory(1);
    const int fd = opened.dmabuf(base, 8192);
    for (const int protection : {PROT_READ, PROT_WRITE, PROT_READ | PROT_WRITE})
        for (const int kind : {MAP_SHARED, MAP_PRIVATE})
            EXPECT_EQ(::mmap(nullptr, 4096, protection, kind, fd, 0), MAP_FAILED);
    char byte = 0;
    EXPECT_LT(::read(fd, &byte, 1), 0);
    EXPECT_EQ(::lseek(fd, 0, SEEK_END), 8192);
    EXPECT_EQ(::lseek(fd, 0, SEEK_SET), 0);
    struct stat status {};
    EXPECT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(status.st_size, 8192);
    dma_buf_sync sync{DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW};
    EXPECT_EQ(::ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync), 0) << "through the ioctl of the library";
    // A user-space descriptor cannot refuse these calls (see docs/gotchas.md); they have no effect.
    EXPECT_EQ(::write(fd, "x", 1), 1);
    host_memory host(opened, 4096);
    ASSERT_EQ(copy(opened, base, host.address, 4096, 4), 0);
    EXPECT_EQ(host.bytes(), std::vector<unsigned char>(4096, GAUDI_LAB_FRESH_BYTE));
    EXPECT_EQ(::lseek(fd, 100, SEEK_SET), 100);
    EXPECT_EQ(::lseek(fd, 0, SEEK_END), 8192);
    ::close(fd);
}

TEST_F(pitfall, p12_the_cpu_cannot_touch_a_device_address) {
    gaudi_device opened;
    const auto address = opened.memory(1);
    EXPECT_NE(address >> 47, 0U) << "canonical: a stray memcpy could work";
    child toucher([&] {
        ::signal(SIGSEGV, SIG_DFL);
        ::signal(SIGBUS, SIG_DFL);
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        return *reinterpret_cast<volatile char*>(address) != 0 ? 1 : 2;
    });
    const int status = toucher.wait();
    EXPECT_TRUE(status > 2) << "the access went through: " << status; // a signal, or a sanitizer's exit code
}

TEST_F(pitfall, p16_a_host_mapping_keeps_the_page_offset) {
    gaudi_device opened;
    alignas(4096) static unsigned char memory[3 * 4096];
    const auto address = hlthunk_host_memory_map(opened.fd, memory + 100, 0, 5000);
    ASSERT_NE(address, 0U);
    EXPECT_EQ(address & 4095, 100U);
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, address & ~4095ULL), -EINVAL) << "not what map returned";
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, address), 0);
    EXPECT_EQ(hlthunk_memory_unmap(opened.fd, address), -EINVAL);
}

TEST_F(pitfall, p17_the_mmu_knows_only_whole_pages) {
    gaudi_device opened;
    alignas(4096) static unsigned char memory[2 * 4096];
    const auto address = hlthunk_host_memory_map(opened.fd, memory, 0, 100);
    const auto device = opened.memory(1);
    EXPECT_EQ(copy(opened, address, device, 4096), 0) << "past the size, in the last page";
    hlthunk_memory_unmap(opened.fd, address);
}

TEST_F(pitfall, free_releases_the_storage_at_once) {
    gaudi_device opened;
    std::uint64_t handle = 0;
    const auto kept = opened.memory(1), freed = opened.memory(1, &handle);
    host_memory host(opened, 16 * mib);
    ASSERT_EQ(copy(opened, host.address, kept, 4 * mib), 0);
    const auto before = stored_bytes(lab());
    ASSERT_EQ(copy(opened, host.address, freed + 123, 16 * mib), 0);
    EXPECT_GE(stored_bytes(lab()), before + 16 * mib);
    ASSERT_EQ(hlthunk_memory_unmap(opened.fd, freed), 0);
    EXPECT_GE(stored_bytes(lab()), before + 16 * mib)
        << "an allocation that is not mapped keeps its contents";
    ASSERT_EQ(hlthunk_device_memory_free(opened.fd, handle), 0);
    EXPECT_EQ(stored_bytes(lab()), before) << "the other allocation's alone";
}

TEST_F(pitfall, p25_rounding_and_contiguous_requests) {
    describe("gaudis = 1\nhbm_pages = 4");
    gaudi_device opened;
    std::uint64_t handles[4];
    for (auto& handle : handles)
        ASSERT_NE(handle = hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U);
    ASSERT_EQ(hlthunk_device_memory_free(opened.fd, handles[0]), 0);
    ASSERT_EQ(hlthunk_device_memory_free(opened.fd, handles[2]), 0);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 2 * dram_page, 0, true, false), 0U)
        << "two pages are free, but apart";
    EXPECT_EQ(errno, ENOMEM);
    const auto scattered = hlthunk_device_memory_alloc(opened.fd, 2 * dram_page, 0, false, false);
    ASSERT_NE(scattered, 0U);
    const auto address = hlthunk_device_memory_map(opened.fd, scattered, 0);
    const int fd = opened.dmabuf(address, 8192, dram_page - 4096);
    gaudi_lab_dmabuf head{};
    gaudi_lab_range ranges[2]{};
    char path[512];
    ASSERT_EQ(gaudi_lab_dmabuf_describe(fd, &head, ranges, 2, path, sizeof(path)), 0);
    EXPECT_EQ(head.range_count, 2U) << "an export across the seam has two pieces";
    ::close(fd);
    // A copy across the seam is correct too.
    host_memory host(opened, 8192);
    for (std::size_t i = 0; i < 8192; ++i)
        host.bytes()[i] = static_cast<unsigned char>(i * 31);
    const auto sent = host.bytes();
    ASSERT_EQ(copy(opened, host.address, address + dram_page - 4096, 8192), 0);
    std::fill(host.bytes().begin(), host.bytes().end(), 0);
    ASSERT_EQ(copy(opened, address + dram_page - 4096, host.address, 8192, 4), 0);
    EXPECT_EQ(host.bytes(), sent);
}

TEST_F(pitfall, p26_a_bad_hint_is_silently_replaced) {
    gaudi_device opened;
    const auto handle = hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false);
    const std::uint64_t good = 0x1001500010000000;
    ASSERT_EQ((good & ((1ULL << 48) - 1)) % dram_page, 0U);
    EXPECT_EQ(hlthunk_device_memory_map(opened.fd, handle, good), good);
    const auto busy = hlthunk_device_memory_map(opened.fd, handle, good);
    EXPECT_NE(busy, 0U);
    EXPECT_NE(busy, good);
    const auto crooked = hlthunk_device_memory_map(opened.fd, handle, good + 4096);
    EXPECT_NE(crooked, good + 4096);
    EXPECT_FALSE(crooked >= 0x1001500000000000 && crooked < 0x1001700000000000)
        << "without a usable hint the hint range is avoided";
    alignas(4096) static unsigned char memory[4096];
    EXPECT_EQ(hlthunk_host_memory_map_flags(opened.fd, memory, 0xFFF0000200000001, 4096, HL_MEM_FORCE_HINT),
              0U);
    EXPECT_EQ(
        hlthunk_host_memory_map_flags(opened.fd, memory + 1, 0xFFF0000200000000, 100, HL_MEM_FORCE_HINT), 0U);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(pitfall, p29_a_child_does_not_see_what_the_device_writes) {
    gaudi_device opened;
    auto* memory = static_cast<unsigned char*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memory[0] = 1;
    const auto address = hlthunk_host_memory_map(opened.fd, memory, 0, 4096);
    const auto device = opened.memory(1);
    gate written, forked;
    child other([&] {
        forked.open();
        if (!written.wait())
            return 3;
        return memory[0] == 1 ? 0 : 1; // the copy-on-write page, as it was at fork
    });
    ASSERT_TRUE(forked.wait());
    ASSERT_EQ(copy(opened, device, address, 4096, 4), 0);
    EXPECT_NE(memory[0], 1) << "the parent keeps the pinned page";
    written.open();
    EXPECT_EQ(other.wait(), 0);
    hlthunk_memory_unmap(opened.fd, address);
    ::munmap(memory, 4096);
}

TEST_F(pitfall, p30_memory_that_cannot_be_pinned) {
    gaudi_device opened;
    EXPECT_EQ(hlthunk_host_memory_map(opened.fd, nullptr, 0, 4096), 0U);
    EXPECT_EQ(errno, EFAULT);
    void* reserved = ::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(hlthunk_host_memory_map(opened.fd, reserved, 0, 8192), 0U) << "read-only";
    EXPECT_EQ(errno, EFAULT);
    ::munmap(reserved, 8192);
    EXPECT_EQ(hlthunk_host_memory_map(opened.fd, reserved, 0, 8192), 0U) << "not mapped";
    alignas(4096) static unsigned char memory[4096];
    EXPECT_EQ(hlthunk_host_memory_map(opened.fd, memory, 0, 0), 0U);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(hlthunk_host_memory_map(opened.fd, memory, 0, ~0ULL), 0U) << "wraps around";
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(pitfall, p30_memory_of_files_and_devices) {
    gaudi_device opened;
    const auto refused = [&](void* memory) {
        errno = 0;
        EXPECT_EQ(hlthunk_host_memory_map(opened.fd, memory, 0, 4096), 0U);
        return errno;
    };
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void* read_only = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
    ASSERT_NE(read_only, MAP_FAILED);
    EXPECT_EQ(refused(read_only), EFAULT) << "a file that can only be read";
    ::munmap(read_only, 4096);
    ::close(file);
    EXPECT_EQ(refused(reinterpret_cast<void*>(::getauxval(AT_SYSINFO_EHDR))), EFAULT) << "the kernel's own";
    // The driver maps command buffers as IO memory. A DMA-BUF cannot be mapped at all (p11).
    std::uint64_t handle = 0;
    ASSERT_EQ(hlthunk_request_command_buffer(opened.fd, 4096, &handle), 0);
    void* buffer =
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, opened.fd, static_cast<off_t>(handle));
    ASSERT_NE(buffer, MAP_FAILED);
    EXPECT_EQ(refused(buffer), EFAULT) << "a command buffer";
    ::munmap(buffer, 4096);
    host_memory ordinary(opened, 4096);
    EXPECT_NE(ordinary.address, 0U) << "other memory is taken as before";
}

TEST_F(pitfall, p37_the_hash_functions_do_not_exist) {
    const auto names = ::popen("nm -D --defined-only " LAB_HLTHUNK, "r");
    ASSERT_NE(names, nullptr);
    std::string text;
    char block[4096];
    for (std::size_t got; (got = std::fread(block, 1, sizeof(block), names)) > 0;)
        text.append(block, got);
    ::pclose(names);
    std::size_t count = 0;
    for (std::size_t at = text.find(" hlthunk_"); at != text.npos; at = text.find(" hlthunk_", at + 1))
        ++count;
    EXPECT_EQ(count, 100U) << "exported functions";
    EXPECT_EQ(text.find("hlthunk_hash_"), text.npos);
}

TEST_F(pitfall, errors_of_allocation_and_mapping) {
    gaudi_device opened;
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 0, 0, false, false), 0U);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 96 * gib, 0, false, false), 0U);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(hlthunk_device_memory_map(opened.fd, 4711, 0), 0U);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(hlthunk_device_memory_alloc(-1, 1, 0, false, false), 0U);
    EXPECT_EQ(errno, EBADF);
}

} // namespace
