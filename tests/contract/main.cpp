// SPDX-License-Identifier: BSD-3-Clause
// Runs the suites that run anywhere. `gaudi-direct selftest` says where and how: GAUDI_TESTS_ON=machine, a
// file for all results in GAUDI_TESTS_REPORT, what to print in GAUDI_TESTS_SHOW.
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace {

class recorder : public ::testing::EmptyTestEventListener {
    void OnTestStart(const ::testing::TestInfo& test) override {
        if (progress_)
            fmt::print("\r\033[K[{}/{}] {}.{}", results_.size() + 1,
                       ::testing::UnitTest::GetInstance()->test_to_run_count(), test.test_suite_name(),
                       test.name());
        std::fflush(stdout);
    }
    void OnTestEnd(const ::testing::TestInfo& test) override {
        const auto& result = *test.result();
        const char* const outcome = result.Failed() ? "failed" : result.Skipped() ? "skipped" : "passed";
        std::string why;
        for (int i = 0; i < result.total_part_count(); ++i)
            if (const auto& part = result.GetTestPartResult(i); !part.passed())
                why += fmt::format("{}{}", why.empty() ? "" : "\n", part.message());
        if (result.Skipped()) // without the places that led there
            why = why.substr(0, why.find("\nGoogle Test trace:"));
        const auto name = fmt::format("{}.{}", test.test_suite_name(), test.name());
        const auto seconds = static_cast<double>(result.elapsed_time()) / 1000;
        if (progress_)
            fmt::print("\r\033[K");
        if (all_ || result.Failed())
            fmt::print("  {:<7} {}{}{}\n", outcome, name, why.empty() ? "" : ": ", why);
        std::fflush(stdout);
        nlohmann::ordered_json entry = {
            {"test", name}, {"outcome", outcome}, {"seconds", seconds}, {"why", why}};
        for (int i = 0; i < result.test_property_count(); ++i)
            entry[result.GetTestProperty(i).key()] = result.GetTestProperty(i).value();
        results_.push_back(std::move(entry));
    }
    void OnTestProgramEnd(const ::testing::UnitTest&) override {
        if (const char* file = std::getenv("GAUDI_TESTS_REPORT"); file != nullptr)
            std::ofstream(file) << results_.dump() << "\n";
    }
    static bool shows_all() {
        const char* wanted = std::getenv("GAUDI_TESTS_SHOW");
        return wanted != nullptr && std::string_view(wanted) == "all";
    }
    const bool all_ = shows_all();
    const bool progress_ = ::isatty(STDOUT_FILENO) != 0;
    nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

} // namespace

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    const char* const where = std::getenv("GAUDI_TESTS_ON");
    if (where != nullptr && std::string_view(where) == "machine") {
        auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new recorder);
    }
    return RUN_ALL_TESTS();
}
