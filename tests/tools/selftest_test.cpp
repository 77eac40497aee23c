// SPDX-License-Identifier: BSD-3-Clause
// gaudi-direct selftest: the suites that run anywhere, in a lab that they take for a machine: the libraries
// are found where a server has them, by their names, and nothing tells the tests that they are virtual.
// The suites fork with devices open, and so with threads, which the thread sanitizer cannot follow.
// labels of every test here: no_tsan
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/soon_true.hpp"
#include "tests/support/test_lab.hpp"

#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace {

using namespace testing_support;
using json = nlohmann::json;
namespace fs = std::filesystem;

class selftest_test : public test_lab {
protected:
    program_result selftest(const std::string& filter, const std::vector<std::string>& more = {}) {
        fs::create_directories(root() / "lib");
        const auto verbs = root() / "lib" / "libibverbs.so.1";
        if (!fs::exists(verbs))
            fs::create_symlink(LAB_VHCA, verbs);
        std::vector<std::string> command = {GAUDI_DIRECT_TOOL, "lab", "run", "--lab", "default"};
        if (*UCX_PREFIX != '\0')
            command.insert(command.end(), {"--ucx", UCX_PREFIX});
        command.insert(command.end(),
                       {"--", "env", "-u", "GAUDI_DIRECT_HLTHUNK", "-u", "GAUDI_DIRECT_VERBS",
                        GAUDI_DIRECT_TOOL, "selftest", "--report", report_file(), "--filter", filter});
        command.insert(command.end(), more.begin(), more.end());
        return run_program(command, {"GAUDI_DIRECT_HLTHUNK", "LD_LIBRARY_PATH=" + (root() / "lib").string()},
                           std::chrono::seconds(280));
    }
    [[nodiscard]] std::string report_file() const { return root() / "report.json"; }
    [[nodiscard]] json report() const { return json::parse(text_of(report_file())); }
    // How many tests ended so.
    static std::map<std::string, unsigned> outcomes(const json& report) {
        std::map<std::string, unsigned> counts;
        for (const auto& test : report["tests"])
            ++counts[test["outcome"]];
        return counts;
    }
    // With a UCX in which our plugin works.
    static constexpr bool has_ucx = *UCX_PREFIX != '\0';
    // Of each suite some, which together take every kind of memory and path.
    static constexpr const char* some =
        "any_device.*:*every_pair.*4097:every/contract_test.is_kept/*:*moves_a_part*:"
        "*ucx_peers*";
};

TEST_F(selftest_test, a_machine_with_everything_passes) {
    describe("gaudis = 3\nhcas = 2\ndmabuf_import = yes");
    const auto done = selftest(some);
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output,
               "virtual hardware; only devices that no process has open are used, none is reset\n");
    const auto all = report();
    auto counts = outcomes(all);
    EXPECT_EQ(counts["failed"], 0U) << done.output;
    EXPECT_EQ(counts["skipped"], has_ucx ? 0U : 5U) << done.output;
    EXPECT_GE(counts["passed"], 70U);
    EXPECT_HAS(done.output, fmt::format("{} passed, {} skipped, 0 failed; report: {}\n", counts["passed"],
                                        counts["skipped"], report_file()));
    EXPECT_EQ(all["kind"], "virtual");
    EXPECT_GE(all["doctor"]["findings"].size(), 20U);
}

// As on PCIe, completions overtake the last bytes in device memory.
TEST_F(selftest_test, a_machine_whose_writes_are_late_passes) {
    describe("gaudis = 2\nhcas = 1");
    ::setenv("GAUDI_LAB_HCA_MODE", "posted=100ms", 1);
    const auto done = selftest("*every_pair*4097:*is_kept/nic*:*moves_a_part*nic*");
    ::unsetenv("GAUDI_LAB_HCA_MODE");
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_GE(outcomes(report())["passed"], 30U) << done.output;
}

// UCX opens every verbs device as it starts, and so would take the ports' only context.
TEST_F(selftest_test, the_ports_of_a_gaudi_are_not_opened) {
    describe("gaudis = 2\nhcas = 2\n[hca 0]\nof_gaudi = 0\n");
    const auto done = selftest("any_device.is_described:*every_pair*host_host_1:*ucx_peers*");
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "4 passed, 5 skipped, 0 failed");
    EXPECT_HAS(done.output, "not tested (5): UCX opens the ports of a Gaudi as it starts");
    EXPECT_EQ(text_of(lab() / "hbl_0.opens"), "");
}

// labels: full
TEST_F(selftest_test, every_test_passes) {
    describe("gaudis = 3\nhcas = 2\ndmabuf_import = yes");
    const auto done = selftest("*");
    EXPECT_EQ(done.status, 0) << done.output;
    auto counts = outcomes(report());
    EXPECT_GE(counts["passed"], 210U);
    EXPECT_EQ(counts["skipped"], has_ucx ? 0U : 5U) << done.output;
}

TEST_F(selftest_test, what_is_missing_is_skipped_with_the_reason) {
    describe("gaudis = 1\nhcas = 0");
    const auto done =
        selftest("any_device.keeps*:*every_pair*host*4097:*is_kept/engine*:*is_kept/peer*:*is_kept/"
                 "staged*");
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "2 free Gaudis are needed, there are 1");
    EXPECT_HAS(done.output, "no NIC has an active port");
    EXPECT_HAS(done.output, "4 passed, ");
    EXPECT_HAS(done.output, " 0 failed");
}

TEST_F(selftest_test, a_driver_that_cannot_import_is_a_reason) {
    describe("gaudis = 2\nhcas = 0");
    const auto done = selftest("*is_kept/peer_dmabuf_second_to_first:any_device.is_described");
    EXPECT_HAS(done.output, "not tested (1): the driver cannot import a DMA-BUF; use the vendor's driver");
    EXPECT_HAS(report()["tests"].dump(), "REG_DMABUF_FD of");
}

TEST_F(selftest_test, devices_in_use_are_left_alone) {
    describe("gaudis = 2\nhcas = 0");
    const auto held = root() / "held", enough = root() / "enough";
    running_program holder({DEVICE_HOLDER, held, enough}, {"LD_LIBRARY_PATH"});
    ASSERT_TRUE(soon_true([&] { return fs::exists(held) || holder.ended(); })) << holder.output();
    ASSERT_EQ(text_of(held), "0000:19:00.0");
    auto done = selftest("any_device.*");
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "7 passed, 0 skipped, 0 failed");
    done = selftest("*is_kept/staged_second_to_first");
    EXPECT_EQ(done.status, 3) << "nothing was tested: " << done.output;
    EXPECT_HAS(done.output, "gaudi 0 is in use by process ");
    std::ofstream(enough) << "\n";
    EXPECT_EQ(holder.wait().status, 0) << "it kept its device";
}

TEST_F(selftest_test, a_machine_without_anything_and_wrong_reports) {
    describe("gaudis = 0\nhcas = 0");
    auto done = selftest("*");
    EXPECT_EQ(done.status, 1) << done.output;
    EXPECT_HAS(done.output, "neither a Gaudi nor an RDMA NIC");
    EXPECT_HAS(done.output, "gaudi-direct lab run -- gaudi-direct selftest");
    describe("gaudis = 1\nhcas = 0");
    done = run_program({GAUDI_DIRECT_TOOL, "lab", "run", "--lab", "default", "--", GAUDI_DIRECT_TOOL,
                        "selftest", "--report", "/nowhere/report"});
    EXPECT_EQ(done.status, 2) << done.output;
    EXPECT_HAS(done.output, "cannot write /nowhere/report; name another file with --report");
}

} // namespace
