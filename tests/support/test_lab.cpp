// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/test_lab.hpp"

#include "tests/support/hlthunk_functions.h"

#include <cstdlib>
#include <sys/mount.h>
#include <unistd.h>

namespace testing_support {

namespace fs = std::filesystem;

test_lab::test_lab() {
    char pattern[] = "/dev/shm/gaudi-test-XXXXXX";
    root_ = ::mkdtemp(pattern);
    ::setenv("GAUDI_LAB_ROOT", root_.c_str(), 1);
    ::setenv("GAUDI_DIRECT_HLTHUNK", LAB_HLTHUNK, 1);
    for (const char* variable : {"GAUDI_LAB", "GAUDI_LAB_FAULTS", "HLS_MODULE_ID", "HABANA_VISIBLE_DEVICES",
                                 "HABANA_VISIBLE_MODULES"})
        ::unsetenv(variable);
    descriptors_ = open_descriptors();
}

test_lab::~test_lab() {
    fs::remove_all(root_);
}

void test_lab::describe(std::string_view text) {
    gaudi_lab_leave();
    const auto parsed = lab::parse_description(text, "description");
    ASSERT_TRUE(parsed) << parsed.error().text;
    const auto entered = lab::folder::enter("default", *parsed);
    ASSERT_TRUE(entered) << entered.error().text;
}

small_tmpfs::small_tmpfs(const fs::path& under, const std::string& size) : at_(under / "small") {
    fs::create_directory(at_);
    mounted_ = ::mount("none", at_.c_str(), "tmpfs", 0, ("mode=0700,size=" + size).c_str()) == 0;
    if (mounted_)
        ::setenv("GAUDI_LAB_ROOT", at_.c_str(), 1);
}

small_tmpfs::~small_tmpfs() {
    if (mounted_)
        ::umount2(at_.c_str(), MNT_DETACH);
}

void test_lab::TearDown() {
    gaudi_lab_arm_faults("");
    gaudi_lab_leave();
    EXPECT_EQ(open_descriptors(), descriptors_) << "the test left descriptors open";
}

} // namespace testing_support
