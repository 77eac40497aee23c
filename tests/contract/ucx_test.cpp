// SPDX-License-Identifier: BSD-3-Clause
// UCX as it is installed, with our plugin: two processes move memory by each kind of transport, and compare
// every byte.
// labels of every test here: ucx no_tsan
#include "tests/contract/machine_test.hpp"
#include "tests/support/child.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <regex>
#include <sstream>

namespace {

using namespace testing_support;

struct ucx_case {
    const char* name;
    const char* transports;
    unsigned devices, nics;
    const char* memory; // of both sides
};

class ucx_peers : public machine_test, public ::testing::WithParamInterface<ucx_case> {
protected:
    void SetUp() override {
        if (in_lab())
            GTEST_SKIP() << "selftest_test runs this suite in a lab that has a UCX";
        need(GetParam().devices, GetParam().nics);
        close_devices(); // the programs open them
        const auto nics = gaudi::list_nics();
        if (!IsSkipped() && nics && std::ranges::any_of(*nics, &gaudi::nic_info::of_gaudi))
            skip("UCX opens the ports of a Gaudi as it starts, which may be HCCL's: hide them from this "
                 "process");
    }
};

INSTANTIATE_TEST_SUITE_P(
    each, ucx_peers,
    ::testing::Values(
        ucx_case{"rc_device_to_device", "rc", 2, 1, "--here gaudi --there gaudi"},
        ucx_case{"rc_host_to_device", "rc", 1, 1, "--here host --there gaudi"},
        ucx_case{"rc_device_to_host", "rc", 1, 1, "--here gaudi --there host"},
        ucx_case{"gaudi_ipc_device_to_device", "posix,gaudi_ipc", 2, 0, "--here gaudi --there gaudi"},
        ucx_case{"shared_memory_device_to_device", "posix,cma", 2, 0, "--here gaudi --there gaudi"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_P(ucx_peers, move_every_byte) {
    const auto program = parts_folder() / "selftest" / "ucp_peers";
    std::vector<std::string> command{program};
    std::istringstream words(std::string("--operations tag,am,stream,put,get --sizes 8,4096,1048583 ") +
                             GetParam().memory);
    command.insert(command.end(), std::istream_iterator<std::string>(words), {});
    std::vector<std::string> environment{fmt::format("UCX_TLS={},gaudi_cpy", GetParam().transports)};
    if (const auto names = ucx_devices(); !names.empty())
        environment.push_back("UCX_NET_DEVICES=" + names);
    if (const char* given = std::getenv("UCX_PLUGIN_PATH"); given == nullptr)
        environment.push_back("UCX_PLUGIN_PATH=" + (parts_folder().parent_path() / "ucx").string());
    const auto done = run_program(command, environment, std::chrono::seconds(120));
    const auto says = [&](const char* text) { return done.output.find(text) != std::string::npos; };
    if (done.status == 127 || says("cannot open shared object file"))
        return skip("UCX is not found: " + done.output.substr(0, done.output.find('\n')));
    // UCX's own words, such as: transport 'rc' is not available, please use one or more of: ...
    if (std::smatch reason;
        std::regex_search(done.output, reason, std::regex("WARN +(.* not available, .*)")))
        return skip(reason[1]);
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_TRUE(says("active: ")) << done.output;
    EXPECT_TRUE(says("passive: ")) << done.output;
}

} // namespace
