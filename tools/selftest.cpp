// SPDX-License-Identifier: BSD-3-Clause
// `gaudi-direct selftest`: the suites that run anywhere, on the devices of this machine, and a report that
// its owner can send.
#include "tools/self.hpp"
#include "tools/commands.hpp"
#include "tools/doctor/doctor.hpp"

#include <gaudi/gaudi.hpp>

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tools {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

bool is_anything_here() {
    const auto devices = gaudi::list_devices();
    const auto nics = gaudi::list_nics();
    return (devices && !devices->empty()) || (nics && !nics->empty());
}

// Runs the suites, which print as they go; their results as JSON, null if they did not end.
json run_suites(const fs::path& program, const selftest_options& options) {
    const int results = ::memfd_create("selftest", 0); // inherited
    ::setenv("GAUDI_TESTS_ON", "machine", 1);
    ::setenv("GAUDI_TESTS_REPORT", fmt::format("/proc/self/fd/{}", results).c_str(), 1);
    ::setenv("GAUDI_TESTS_SHOW", options.verbose ? "all" : "failures", 1);
    const auto filter = "--gtest_filter=" + options.filter;
    const auto child = ::fork();
    if (child == 0) {
        ::execl(program.c_str(), program.c_str(), filter.c_str(), nullptr);
        ::_exit(not_found);
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        fmt::print("the tests were ended by signal {}\n", WTERMSIG(status));
    std::ifstream written(fmt::format("/proc/self/fd/{}", results));
    auto all = json::parse(written, nullptr, false);
    ::close(results);
    return all.is_discarded() ? json() : all;
}

} // namespace

int run_selftest(const selftest_options& options) {
    const auto program = lab_folder().parent_path() / "selftest" / "contract_tests";
    if (!fs::exists(program)) {
        fmt::print(stderr, "gaudi-direct selftest: {} is missing; install gaudi-direct with its tests\n",
                   program.string());
        return failed;
    }
    // In a process of its own, so before this one loads a driver.
    const auto examined = doctor::examine_without_probes();
    if (!is_anything_here()) {
        fmt::print("there is neither a Gaudi nor an RDMA NIC to test; gaudi-direct doctor says why\n"
                   "without hardware, try: gaudi-direct lab run -- gaudi-direct selftest\n");
        return failed;
    }
    // Before the tests, which open the devices: whether this file can be written.
    std::ofstream file(options.report);
    if (!file) {
        fmt::print(stderr, "gaudi-direct selftest: cannot write {}; name another file with --report\n",
                   options.report);
        return usage;
    }
    const auto driver = gaudi::loaded_driver();
    const char* const kind = !driver ? "none" : is_virtual(driver->path) ? "virtual" : "real";
    fmt::print(
        "gaudi-direct {}: {} hardware; only devices that no process has open are used, none is reset\n",
        gaudi::version(), kind);
    std::fflush(stdout);
    json report = {{"version", gaudi::version()}, {"kind", kind}};
    report["doctor"] = examined;
    report["tests"] = run_suites(program, options);

    std::map<std::string, unsigned> counts, reasons;
    for (const auto& test : report["tests"]) {
        ++counts[test["outcome"]];
        if (test["outcome"] == "skipped")
            ++reasons[test["why"]];
    }
    for (const auto& [reason, count] : reasons)
        fmt::print("not tested ({}): {}\n", count, reason);
    fmt::print("{} passed, {} skipped, {} failed; report: {}\n", counts["passed"], counts["skipped"],
               counts["failed"], options.report);
    file << report.dump(1) << "\n";
    if (report["tests"].is_null() || counts["failed"] != 0)
        return failed;
    return counts["passed"] != 0 ? ok : warned;
}

} // namespace tools
