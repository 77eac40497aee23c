// SPDX-License-Identifier: BSD-3-Clause
#include <gaudi/device_info.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace {

using namespace gaudi;
namespace fs = std::filesystem;

class driver_test : public ::testing::Test {
protected:
    void SetUp() override {
        char name[] = "/tmp/gaudi-driver-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        root_ = name;
        fs::create_directories(root_ / "proc/sys/kernel");
        ::setenv("GAUDI_DIRECT_FSROOT", root_.c_str(), 1);
    }
    void TearDown() override {
        ::unsetenv("GAUDI_DIRECT_FSROOT");
        fs::remove_all(root_);
    }
    kernel_driver on(const std::string& release, const char* version) {
        fs::create_directories(root_ / "sys/module/habanalabs");
        fs::remove(root_ / "sys/module/habanalabs/version");
        if (version != nullptr)
            std::ofstream(root_ / "sys/module/habanalabs/version") << version << "\n";
        std::ofstream(root_ / "proc/sys/kernel/osrelease") << release << "\n";
        return find_kernel_driver();
    }
    fs::path root_;
};

TEST_F(driver_test, of_linux_before_6_7_exports_whole_allocations_only) {
    for (const auto* release : {"6.6.63", "6.1.0-28-amd64", "5.15.0-126-generic"}) {
        const auto driver = on(release, nullptr);
        EXPECT_EQ(driver.provided_by, kernel_driver::provider::upstream);
        EXPECT_TRUE(driver.exports_whole_only()) << release;
    }
    for (const auto* release : {"6.7.0", "6.12.3-1-default", "7.0.0"})
        EXPECT_FALSE(on(release, nullptr).exports_whole_only()) << release;
}

TEST_F(driver_test, of_the_vendor_has_a_version) {
    const auto driver = on("5.15.0-126-generic", "1.19.1-123abc");
    EXPECT_EQ(driver.provided_by, kernel_driver::provider::vendor);
    EXPECT_EQ(driver.version, "1.19.1-123abc");
    EXPECT_EQ(driver.kernel_major, 5U);
    EXPECT_EQ(driver.kernel_minor, 15U);
    EXPECT_FALSE(driver.exports_whole_only());
}

TEST_F(driver_test, that_is_not_loaded_is_unknown) {
    const auto driver = find_kernel_driver();
    EXPECT_EQ(driver.provided_by, kernel_driver::provider::unknown);
    EXPECT_EQ(driver.kernel_major, 0U) << "no release file either";
    EXPECT_FALSE(driver.exports_whole_only());
}

} // namespace
