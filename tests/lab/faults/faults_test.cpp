// SPDX-License-Identifier: BSD-3-Clause
// Effects of fault scripts on the virtual Gaudi.
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/gaudi_device.hpp"
#include "tests/support/test_lab.hpp"

#include <thread>

namespace {

using namespace testing_support;
using lab_faults = test_lab;
using clock = std::chrono::steady_clock;

TEST_F(lab_faults, the_named_occurrence_fails_and_no_other) {
    gaudi_device opened;
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_device_memory_alloc 2 errno ENOMEM"), 0);
    EXPECT_NE(hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_NE(hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U);
    EXPECT_EQ(gaudi_lab_faults_fired(), 1U);
}

TEST_F(lab_faults, delay_and_short_results) {
    gaudi_device opened;
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_wait_for_cs 1 delay 60ms; hlthunk_wait_for_cs 2 short"), 0);
    host_memory buffer(opened, 4096);
    packets nop;
    nop.nop();
    std::copy(nop.bytes().begin(), nop.bytes().end(), buffer.bytes().begin());
    std::uint64_t sequence = 0;
    ASSERT_EQ(opened.submit(buffer.address, 8, 0, &sequence), 0);
    std::uint32_t status = 0;
    const auto begin = clock::now();
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), 0);
    EXPECT_GE(clock::now() - begin, std::chrono::milliseconds(60));
    EXPECT_EQ(hlthunk_wait_for_cs(opened.fd, sequence, 5000000, &status), 0);
    EXPECT_EQ(status, static_cast<std::uint32_t>(HL_WAIT_CS_STATUS_BUSY)) << "less than was asked for";
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_device_mapped_memory_export_dmabuf_fd 1 short"), 0);
    const int fd = opened.dmabuf(opened.memory(1), 8192);
    EXPECT_EQ(::lseek(fd, 0, SEEK_END), 4096);
    ::close(fd);
}

TEST_F(lab_faults, a_reset_out_of_the_blue) {
    gaudi_device opened;
    const int notifier = hlthunk_notifier_create(opened.fd);
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_device_memory_alloc 1 reset"), 0);
    EXPECT_EQ(hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false), 0U);
    EXPECT_EQ(errno, EBUSY);
    hlthunk_notifier_release(opened.fd, notifier);
}

TEST_F(lab_faults, death_of_the_process) {
    child victim([] {
        gaudi_lab_arm_faults("hlthunk_device_memory_alloc 1 die");
        const gaudi_device opened;
        hlthunk_device_memory_alloc(opened.fd, 1, 0, false, false);
        return 0;
    });
    EXPECT_EQ(victim.wait(), 128 + SIGKILL);
    gaudi_device again;
    EXPECT_GE(again.fd, 0);
}

TEST_F(lab_faults, functions_without_a_result) {
    ASSERT_EQ(gaudi_lab_arm_faults("hlthunk_free 2 errno EIO; hlthunk_profiler_destroy 1 delay 60ms"), 0);
    void* memory[] = {hlthunk_malloc(100), hlthunk_malloc(100)};
    for (auto* each : memory)
        hlthunk_free(each); // the leak checker detects a missing free
    EXPECT_EQ(gaudi_lab_faults_fired(), 1U);
    const auto begin = clock::now();
    hlthunk_profiler_destroy();
    EXPECT_GE(clock::now() - begin, std::chrono::milliseconds(60));
    EXPECT_EQ(gaudi_lab_faults_fired(), 2U);
}

// In a new process: the first call decides whether calls are traced.
TEST_F(lab_faults, trace_covers_functions_without_a_result) {
    const auto ran = run_own_tests("lab_faults.functions_without_a_result", {"GAUDI_LAB_TRACE=1"});
    EXPECT_EQ(ran.status, 0) << ran.output;
    EXPECT_HAS(ran.output, "hlthunk_malloc(0x64) = 0x");
    EXPECT_HAS(ran.output, "hlthunk_free(0x");
    EXPECT_HAS(ran.output, ") = 0 (fault) ");
    EXPECT_HAS(ran.output, "hlthunk_profiler_destroy(0) = 0 (fault) ");
}

TEST_F(lab_faults, a_script_that_does_not_parse_is_refused) {
    EXPECT_EQ(gaudi_lab_arm_faults("hlthunk_open first errno EIO"), -EINVAL);
    EXPECT_EQ(gaudi_lab_faults_fired(), 0U);
}

} // namespace
