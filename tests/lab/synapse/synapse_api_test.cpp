// SPDX-License-Identifier: BSD-3-Clause
// The virtual SynapseAI and SCAL as a program that is linked to them has them: statuses, the layout of the
// device's memory, copies. The expected values are those of the vendor's public source.
#include "abi/scal.h"
#include "abi/synapse.h"
#include "tests/support/child.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace testing_support;

constexpr std::uint64_t mib = 1ULL << 20, gib = 1ULL << 30;

class synapse_api_test : public test_lab {
protected:
    void SetUp() override { ASSERT_EQ(synInitialize(), synSuccess); }
    void TearDown() override {
        ::unsetenv("GAUDI_LAB_SYNAPSE_VERSION");
        (void)synDestroy();
        test_lab::TearDown();
    }
    void acquire(std::string_view description = "gaudis = 2") {
        describe(description);
        ASSERT_EQ(synDeviceAcquire(&id, nullptr), synSuccess);
        ASSERT_EQ(synDeviceGetInfoV2(id, &info), synSuccess);
    }
    [[nodiscard]] scal_handle_t scal() const {
        scal_handle_t found = nullptr;
        EXPECT_EQ(scal_get_handle_from_fd(static_cast<int>(info.fd), &found), SCAL_SUCCESS);
        return found;
    }
    [[nodiscard]] scal_memory_pool_infoV2 pool(const char* name = "global_hbm") const {
        scal_pool_handle_t handle = nullptr;
        scal_memory_pool_infoV2 found{};
        EXPECT_EQ(scal_get_pool_handle_by_name(scal(), name, &handle), SCAL_SUCCESS) << name;
        EXPECT_EQ(scal_pool_get_infoV2(handle, &found), SCAL_SUCCESS);
        return found;
    }
    // Copies between mapped host memory and the device, and waits.
    static void copy(synStreamHandle on, std::uint64_t from, std::uint64_t to, std::uint64_t size,
                     int direction) {
        ASSERT_EQ(synMemCopyAsync(on, from, size, to, direction), synSuccess);
        ASSERT_EQ(synStreamSynchronize(on), synSuccess);
    }
    static std::uint64_t number(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

    synDeviceId id = 0;
    synDeviceInfoV2 info{};
};

TEST_F(synapse_api_test, answers_without_initialization_and_without_a_device) {
    std::uint64_t address = 0, total = 0;
    int word = 0;
    EXPECT_EQ(synInitialize(), synSuccess) << "a second call is ignored";
    EXPECT_EQ(synDeviceGetInfoV2(0, &info), synFail);
    EXPECT_EQ(synDeviceMalloc(0, 4096, 0, 0, &address), synFail);
    EXPECT_EQ(synDeviceFree(0, 4096, 0), synSuccess);
    EXPECT_EQ(synHostMap(0, sizeof(word), &word), synInvalidArgument);
    EXPECT_EQ(synHostUnmap(0, &word), synInvalidArgument);
    EXPECT_EQ(synDeviceRelease(0), synNoDeviceFound);
    EXPECT_EQ(synDestroy(), synSuccess);
    EXPECT_EQ(synDestroy(), synUninitialized);
    EXPECT_EQ(synDeviceGetMemoryInfo(0, &address, &total), synUninitialized);
    EXPECT_EQ(synDeviceAcquire(&id, nullptr), synUninitialized);
}

TEST_F(synapse_api_test, acquires_one_device_by_module_bus_or_type) {
    describe("gaudis = 3\n[gaudi 0]\nmodule_id = 4\n");
    gate held;
    child other(
        [&] { // forked before this process has a device: it finds that one busy, and takes another one
            synDeviceId mine = 0;
            return held.wait() && synDeviceAcquireByModuleId(&mine, 4) == synNoDeviceFound &&
                           synDeviceAcquire(&mine, "0000:19:00.0") == synFail &&
                           synDeviceAcquire(&mine, "0000:ff:00.0") == synNoDeviceFound &&
                           synDeviceAcquireByDeviceType(&mine, synDeviceGaudi2) == synSuccess &&
                           synDestroy() == synSuccess
                       ? 0
                       : 1;
        });
    std::uint32_t count = 0, modules[8] = {}, size = 8;
    EXPECT_EQ(synDeviceGetCount(&count), synSuccess);
    EXPECT_EQ(count, 3U);
    EXPECT_EQ(synDeviceGetCountByDeviceType(&count, synDeviceGaudi3), synSuccess);
    EXPECT_EQ(count, 0U);
    EXPECT_EQ(synDeviceGetModuleIDs(modules, &size), synSuccess);
    EXPECT_EQ(size, 3U);
    EXPECT_EQ(synDeviceAcquireByDeviceType(&id, synDeviceGaudi3), synDeviceTypeMismatch);
    EXPECT_EQ(id, UINT32_MAX);
    EXPECT_EQ(synDeviceAcquireByModuleId(&id, 7), synNoDeviceFound);
    ASSERT_EQ(synDeviceAcquireByModuleId(&id, 4), synSuccess);
    EXPECT_EQ(id, 0U) << "the number of the only device of a process";
    char bus_id[13] = {};
    EXPECT_EQ(synDeviceGetPCIBusId(bus_id, sizeof(bus_id), id), synSuccess);
    EXPECT_STREQ(bus_id, "0000:19:00.0");
    EXPECT_EQ(synDeviceAcquire(&id, nullptr), synDeviceAlreadyAcquired);
    EXPECT_EQ(id, UINT32_MAX);
    held.open();
    EXPECT_EQ(other.wait(), 0);
    EXPECT_EQ(synDeviceRelease(0), synSuccess);
    EXPECT_EQ(synDeviceRelease(0), synNoDeviceFound);
    EXPECT_EQ(synDeviceAcquire(&id, "0000:19:00.0"), synSuccess) << "it is free again";
}

// One mapping of all memory in the range for hints; the pool begins 160 MiB after it and is 4 KiB short.
TEST_F(synapse_api_test, maps_a_gaudi2_as_a_whole_and_does_not_say_where) {
    info.globalHbmBaseAddress = 0xdeadbeef;
    acquire();
    EXPECT_EQ(info.deviceType, synDeviceGaudi2);
    EXPECT_EQ(info.globalHbmBaseAddress, 0xdeadbeefU) << "SynapseAI up to 1.17 does not set it";
    EXPECT_EQ(info.dramBaseAddress, 0x1001001800000000U) << "where no memory of its own is";
    EXPECT_EQ(info.dramSize, 0x17C5FFF000U);
    EXPECT_EQ(pool().device_base_address, 0x100160015A000000U);
    EXPECT_EQ(pool().device_base_allocated_address, 0x1001600150000000U);
    EXPECT_EQ(pool().totalSize, info.dramSize);
    EXPECT_EQ(pool("hbm_binary").device_base_address, 0x1001600150000000U);
    EXPECT_EQ(pool("hbm_binary").totalSize, 32 * mib);
    EXPECT_EQ(pool("hbm_shared").device_base_address, 0x1001600152000000U);
    EXPECT_EQ(pool("hbm_shared").totalSize, 128 * mib);
    EXPECT_EQ(pool("host_shared").device_base_address, 0xFFF0780090000000U);
    // The driver exports from the base of the mapping only.
    EXPECT_LT(hlthunk_device_mapped_memory_export_dmabuf_fd(static_cast<int>(info.fd), 0x100160015A000000,
                                                            4096, 0, O_RDWR | O_CLOEXEC),
              0);
    const int fd = hlthunk_device_mapped_memory_export_dmabuf_fd(
        static_cast<int>(info.fd), 0x1001600150000000, 4096, 160 * mib, O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(::close(fd), 0);
}

TEST_F(synapse_api_test, maps_each_pool_of_a_gaudi3) {
    acquire("gaudis = 1\ngeneration = gaudi3");
    EXPECT_EQ(info.deviceType, synDeviceGaudi3);
    EXPECT_EQ(pool().device_base_address, 0x0201E00000000000U);
    EXPECT_EQ(pool().device_base_allocated_address, pool().device_base_address);
    EXPECT_EQ(pool().totalSize, 127 * gib - (32 + 96 + 128) * mib - 4096);
    for (const auto* other : {"hbm_binary", "hbm_pdma", "hbm_shared"}) {
        EXPECT_EQ(pool(other).device_base_address, pool(other).device_base_allocated_address) << other;
        EXPECT_GT(pool(other).device_base_address, pool().device_base_address + pool().totalSize) << other;
    }
}

TEST_F(synapse_api_test, tells_the_mapping_from_its_version_1_18_on) {
    ::setenv("GAUDI_LAB_SYNAPSE_VERSION", "1.18", 1);
    acquire();
    EXPECT_EQ(info.globalHbmBaseAddress, pool().device_base_allocated_address);
}

TEST_F(synapse_api_test, allocates_from_its_pool) {
    acquire("gaudis = 1\n[gaudi 0]\nhbm_pages = 2\n");
    std::uint64_t one = 0, two = 0, none = 1, free = 0, total = 0;
    EXPECT_EQ(synDeviceMalloc(id, 100, 0x1234, 0, &one), synSuccess);
    EXPECT_EQ(synDeviceMalloc(id, 100, 0, 0, &two), synSuccess);
    EXPECT_EQ(one, pool().device_base_address) << "the address that was asked for does not count";
    EXPECT_EQ(two, one + 128) << "allocations begin at 128 bytes";
    EXPECT_EQ(synDeviceMalloc(id, 0, 0, 0, &none), synSuccess);
    EXPECT_EQ(none, 0U);
    EXPECT_EQ(synDeviceGetMemoryInfo(id, &free, &total), synSuccess);
    EXPECT_EQ(total, 2 * 768 * mib - 160 * mib - 4096);
    EXPECT_EQ(free, total - 200);
    EXPECT_EQ(synDeviceMalloc(id, total, 0, 0, &none), synFail);
    EXPECT_EQ(synDeviceFree(id, one + 1, 0), synFail);
    EXPECT_EQ(synDeviceFree(id, one, 0), synSuccess);
    EXPECT_EQ(synDeviceFree(id, one, 0), synFail);
}

TEST_F(synapse_api_test, copies_in_order_on_each_stream) {
    for (const auto* generation : {"gaudi2", "gaudi3"}) {
        SCOPED_TRACE(generation);
        acquire(std::string("gaudis = 1\ngeneration = ") + generation);
        std::uint64_t there = 0, elapsed = 0;
        ASSERT_EQ(synDeviceMalloc(id, 2 * mib, 0, 0, &there), synSuccess);
        std::vector<std::uint32_t> out(mib / 4), back(mib / 4);
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<std::uint32_t>(i);
        synStreamHandle stream = nullptr;
        synEventHandle begin = nullptr, end = nullptr;
        ASSERT_EQ(synStreamCreateGeneric(&stream, id, 0), synSuccess);
        ASSERT_EQ(synEventCreate(&begin, id, EVENT_COLLECT_TIME), synSuccess);
        ASSERT_EQ(synEventCreate(&end, id, EVENT_COLLECT_TIME), synSuccess);
        EXPECT_EQ(synEventQuery(begin), synFail) << "never recorded";
        EXPECT_EQ(synMemCopyAsync(stream, number(out.data()), mib, there, HOST_TO_DRAM), synMappingNotFound);
        ASSERT_EQ(synHostMap(id, mib, out.data()), synSuccess);
        ASSERT_EQ(synHostMap(id, mib, back.data()), synSuccess);
        EXPECT_EQ(synEventRecord(begin, stream), synSuccess);
        EXPECT_EQ(synMemCopyAsync(stream, number(out.data()), mib, there, HOST_TO_DRAM), synSuccess);
        EXPECT_EQ(synMemCopyAsync(stream, there, mib, there + mib, DRAM_TO_DRAM), synSuccess);
        EXPECT_EQ(synMemsetD32Async(there + mib, 7, 2, stream), synSuccess);
        EXPECT_EQ(synMemCopyAsync(stream, there + mib, mib, number(back.data()), DRAM_TO_HOST), synSuccess);
        EXPECT_EQ(synEventRecord(end, stream), synSuccess);
        EXPECT_EQ(synEventSynchronize(end), synSuccess);
        EXPECT_EQ(synEventQuery(end), synSuccess);
        EXPECT_EQ(synStreamSynchronize(stream), synSuccess);
        EXPECT_EQ(synStreamQuery(stream), synSuccess);
        EXPECT_EQ(synEventElapsedTime(&elapsed, begin, end), synSuccess);
        EXPECT_GT(elapsed, 0U);
        out[0] = out[1] = 7;
        EXPECT_EQ(out, back);
        EXPECT_EQ(synHostMap(id, mib / 2, out.data()), synSuccess) << "mapped already: nothing is counted";
        EXPECT_EQ(synHostMap(id, 2 * mib, out.data()), synInvalidArgument) << "a part is mapped";
        EXPECT_EQ(synHostUnmap(id, out.data()), synSuccess);
        EXPECT_EQ(synMemCopyAsync(stream, number(out.data()), mib, there, HOST_TO_DRAM), synMappingNotFound);
        EXPECT_EQ(synHostUnmap(id, out.data()), synSuccess) << "unmapping what is not mapped is no error";
        EXPECT_EQ(synEventDestroy(begin), synSuccess);
        EXPECT_EQ(synEventQuery(begin), synInvalidEventHandle);
        EXPECT_EQ(synStreamDestroy(stream), synSuccess);
        EXPECT_EQ(synDeviceRelease(id), synSuccess);
    }
}

TEST_F(synapse_api_test, scal_knows_the_number_of_a_descriptor_alone) {
    acquire();
    const int dup = ::dup(static_cast<int>(info.fd));
    auto* const untouched = reinterpret_cast<scal_handle_t>(this);
    auto handle = untouched;
    EXPECT_EQ(scal_get_handle_from_fd(dup, &handle), SCAL_FAILURE);
    EXPECT_EQ(handle, untouched);
    ::close(dup);
    EXPECT_EQ(scal_get_handle_from_fd(dup, nullptr), SCAL_INVALID_PARAM);
    auto* found = reinterpret_cast<scal_pool_handle_t>(this);
    EXPECT_EQ(scal_get_pool_handle_by_name(scal(), "no_such_pool", &found), SCAL_NOT_FOUND);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(scal_get_pool_handle_by_name(nullptr, "global_hbm", &found), SCAL_INVALID_PARAM);
    EXPECT_EQ(scal_pool_get_infoV2(nullptr, nullptr), SCAL_INVALID_PARAM);
    EXPECT_EQ(scal_get_fd(scal()), static_cast<int>(info.fd));
}

TEST_F(synapse_api_test, a_release_succeeds_although_an_export_is_left) {
    acquire("gaudis = 1");
    const int fd = hlthunk_device_mapped_memory_export_dmabuf_fd(
        static_cast<int>(info.fd), pool().device_base_allocated_address, 4096, 160 * mib, O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(synDeviceRelease(id), synSuccess);
    EXPECT_EQ(synDeviceAcquire(&id, nullptr), synNoDeviceFound) << "busy";
    ::close(fd);
    EXPECT_EQ(synDeviceAcquire(&id, nullptr), synSuccess);
}

// labels: waits
// The vendor's library ends the process five seconds after the device has failed.
TEST_F(synapse_api_test, a_device_that_fails_ends_the_process) {
    describe("gaudis = 1");
    for (const auto* mode : {"1", "2"}) {
        child victim([&] {
            ::setenv("TERMINATE_SYNAPSE_UPON_DFA", mode, 1);
            if (synDeviceAcquire(&id, nullptr) != synSuccess || synDeviceGetInfoV2(id, &info) != synSuccess)
                return 1;
            synStreamHandle stream = nullptr;
            if (synStreamCreateGeneric(&stream, id, 0) != synSuccess ||
                synMemsetD32Async(0x1001700000000000, 1, 1, stream) != synSuccess) // no memory there
                return 2;
            while (synDeviceGetInfoV2(id, &info) != synSynapseTerminated)
                ::usleep(1000);
            if (*mode == '2')
                ::pause();
            ::_exit(3);
        });
        EXPECT_EQ(victim.wait(), *mode == '2' ? 128 + SIGKILL : 3) << mode;
    }
}

} // namespace
