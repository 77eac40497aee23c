// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/folder.hpp"
#include "tests/support/own_process.hpp"

#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace testing_support {

// Gives each test its own lab root and removes it afterwards. Checks that the test leaks no descriptor.
class test_lab : public ::testing::Test {
protected:
    test_lab();
    ~test_lab() override;

    // Recreates the lab with this description; devices must be closed.
    void describe(std::string_view text);
    void TearDown() override;
    [[nodiscard]] const std::filesystem::path& root() const { return root_; }
    [[nodiscard]] std::filesystem::path lab() const { return root_ / "default"; }

private:
    std::filesystem::path root_;
    std::size_t descriptors_;
};

// Puts the lab root on a tmpfs of this size ("40m") during its lifetime, if this process may mount one.
class small_tmpfs {
public:
    small_tmpfs(const std::filesystem::path& under, const std::string& size);
    ~small_tmpfs();
    small_tmpfs(const small_tmpfs&) = delete;
    small_tmpfs& operator=(const small_tmpfs&) = delete;
    [[nodiscard]] bool mounted() const { return mounted_; }

private:
    const std::filesystem::path at_;
    bool mounted_;
};

} // namespace testing_support
