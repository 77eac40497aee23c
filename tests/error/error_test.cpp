// SPDX-License-Identifier: BSD-3-Clause
#include "src/rdma/completion_status.hpp"

#include <gaudi/error.hpp>

#include <cerrno>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <set>

namespace {

using namespace gaudi;

TEST(error_catalogue, has_a_whole_row_for_every_code_in_order) {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < error_catalogue().size(); ++i) {
        const auto& row = error_catalogue()[i];
        EXPECT_EQ(static_cast<std::size_t>(row.code), i);
        EXPECT_TRUE(names.insert(row.name).second) << row.name;
        EXPECT_FALSE(row.meaning.empty()) << row.name;
        EXPECT_FALSE(row.remedy.empty()) << row.name;
    }
    EXPECT_EQ(static_cast<std::size_t>(errc::system_call_failed) + 1, error_catalogue().size());
}

TEST(error_catalogue, is_the_table_in_the_docs) {
    std::ifstream file(SOURCE_FOLDER "/docs/errors.md");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (const auto& row : error_catalogue())
        EXPECT_NE(text.find(fmt::format("| {} | {} | {} | {} |\n", row.name, name_of(row.kind), row.meaning,
                                        row.remedy)),
                  std::string::npos)
            << row.name;
}

TEST(error, message_has_meaning_kind_numbers_errno_and_remedy) {
    const error what(errc::memory_exhausted, "hlthunk_device_memory_alloc of 42 bytes", ENOMEM);
    EXPECT_EQ(what.message(),
              "no device memory left (exhausted): hlthunk_device_memory_alloc of 42 bytes: Cannot allocate "
              "memory (ENOMEM); "
              "free buffers or trim heaps; the driver allocates in pages of its own (768 MB on Gaudi2)");
    // An error that contains the message of another one does not repeat the remedy.
    const error outer(errc::memory_exhausted, fmt::format("for the heap: {}", what.message()));
    EXPECT_EQ(outer.message(), "no device memory left (exhausted): for the heap: " + what.message());
}

TEST(completion_status, is_reported_by_its_name) {
    for (int status = IBV_WC_SUCCESS; status <= IBV_WC_GENERAL_ERR; ++status)
        EXPECT_EQ(name_of(static_cast<ibv_wc_status>(status)).find("IBV_WC_unknown"), std::string::npos)
            << status;
    EXPECT_EQ(name_of(IBV_WC_SUCCESS), "IBV_WC_SUCCESS (0)");
    EXPECT_EQ(name_of(IBV_WC_REM_ACCESS_ERR), "IBV_WC_REM_ACCESS_ERR (10)");
    EXPECT_EQ(name_of(IBV_WC_GENERAL_ERR), "IBV_WC_GENERAL_ERR (21)");
    EXPECT_EQ(name_of(static_cast<ibv_wc_status>(30)), "IBV_WC_unknown (30)");
}

} // namespace
