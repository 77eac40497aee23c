// SPDX-License-Identifier: BSD-3-Clause
#include "src/hl/visibility.hpp"

#include <cstdlib>
#include <gtest/gtest.h>

namespace {

using namespace gaudi;

device_info device(unsigned index, unsigned module) {
    device_info made;
    made.index = index;
    made.module_id = module;
    return made;
}

class visibility_test : public ::testing::Test {
protected:
    void TearDown() override {
        for (const char* name : {"HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"})
            ::unsetenv(name);
    }
};

TEST_F(visibility_test, everything_by_default_and_with_all) {
    EXPECT_TRUE(visibility::of_environment()->shows(device(7, 7)));
    ::setenv("HABANA_VISIBLE_DEVICES", "all", 1);
    EXPECT_TRUE(visibility::of_environment()->shows(device(7, 7)));
}

TEST_F(visibility_test, indices_and_modules) {
    ::setenv("HABANA_VISIBLE_DEVICES", "0,2", 1);
    ::setenv("HABANA_VISIBLE_MODULES", "5", 1);
    const auto seen = visibility::of_environment();
    ASSERT_TRUE(seen);
    EXPECT_TRUE(seen->shows(device(2, 5)));
    EXPECT_FALSE(seen->shows(device(1, 5)));
    EXPECT_FALSE(seen->shows(device(2, 4)));
}

TEST_F(visibility_test, own_module) {
    ::setenv("HLS_MODULE_ID", "3", 1);
    EXPECT_EQ(visibility::of_environment()->own_module, 3U);
}

TEST_F(visibility_test, nonsense_is_named) {
    ::setenv("HABANA_VISIBLE_DEVICES", "0,x", 1);
    const auto seen = visibility::of_environment();
    ASSERT_FALSE(seen);
    EXPECT_EQ(seen.error().code(), errc::selection_malformed);
    EXPECT_EQ(seen.error().observed(), "HABANA_VISIBLE_DEVICES=0,x: 'x' is no number");
}

} // namespace
