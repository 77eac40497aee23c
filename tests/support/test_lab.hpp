// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/folder.hpp"

#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace testing_support {

// A lab root of its own for each test, gone afterwards. Checks that the test leaves no descriptor behind.
class test_lab : public ::testing::Test {
protected:
    test_lab();
    ~test_lab() override;

    // Makes the lab anew with this description; devices must be closed.
    void describe(std::string_view text);
    void TearDown() override;
    [[nodiscard]] const std::filesystem::path& root() const { return root_; }
    [[nodiscard]] std::filesystem::path lab() const { return root_ / "default"; }

private:
    std::filesystem::path root_;
    std::size_t descriptors_;
};

[[nodiscard]] std::size_t open_descriptors();
[[nodiscard]] std::size_t mapped_regions();
// Bytes that a folder really occupies.
[[nodiscard]] std::uint64_t stored_bytes(const std::filesystem::path& folder);

} // namespace testing_support
