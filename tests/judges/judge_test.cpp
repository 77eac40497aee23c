// SPDX-License-Identifier: BSD-3-Clause
// Unmodified third-party programs test the virtual HCA: Debian's ibverbs-utils and perftest, stock UCX.
#include "tests/judges/two_programs.hpp"
#include "tests/support/expect_has.hpp"

#include <algorithm>
#include <regex>

namespace {

using namespace testing_support;

TEST_F(judge, devices_are_listed) {
    const auto list = run_program(in_lab("--hcas 2", "ibv_devices"), {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_EQ(list.status, 0);
    EXPECT_HAS(list.output, "vhca0           \t026764fffe000000");
    EXPECT_HAS(list.output, "vhca1");
    const auto info = run_program(in_lab("", "ibv_devinfo -v"), {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_EQ(info.status, 0);
    EXPECT_HAS(info.output, "hca_id:\tvhca0");
    EXPECT_HAS(info.output, "PORT_ACTIVE (4)");
    EXPECT_HAS(info.output, "atomic_cap:\t\t\tATOMIC_HCA (1)");
    EXPECT_HAS(info.output, "GID[  0]:\t\tfe80:0000:0000:0000:0267:64ff:fe00:0001");
}

// A program built with rdma-core 65 resolves its verbs under their symbol versions, and the new verbs work.
TEST_F(judge, a_program_built_with_a_newer_rdma_core_runs) {
    for (const auto* link : {"infiniband", "ethernet"}) {
        const auto description = root() / fmt::format("{}.lab", link);
        std::ofstream(description) << "link_layer = " << link << "\n";
        const auto shown =
            run_program(in_lab(fmt::format("--config {}", description.string()), NEWER_RDMA_CORE),
                        {"GAUDI_DIRECT_HLTHUNK"});
        EXPECT_EQ(shown.status, 0) << shown.output;
        EXPECT_HAS(shown.output, fmt::format("GIDs of type {}, 196608 bytes written",
                                             link == std::string("ethernet") ? 1 : 0));
    }
    // Without the virtual HCA the program calls the library that it is linked to.
    const auto alone = run_program({NEWER_RDMA_CORE}, {"GAUDI_DIRECT_HLTHUNK", "LD_PRELOAD"});
    EXPECT_NE(alone.status, 0);
    EXPECT_HAS(alone.output, "ibv_get_device_list: the stock library was reached");
}

TEST_F(judge, on_demand_paging_is_said_to_be_absent) {
    for (const auto* program : {"ibv_rc_pingpong -o", "ibv_srq_pingpong -o"}) {
        const auto shown = run_program(in_lab("", program), {"GAUDI_DIRECT_HLTHUNK"});
        EXPECT_EQ(shown.status, 1) << program;
        EXPECT_HAS(shown.output, "ODP");
    }
}

// The port goes down and up while a program runs.
TEST_F(judge, a_port_that_goes_down_raises_an_event) {
    const auto seen = root() / "seen";
    const auto shown = run_program(
        {"/bin/sh", "-c",
         fmt::format(
             "{0} lab run -- stdbuf -oL ibv_asyncwatch -d vhca0 > {1} & watch=$!; "
             "until_seen() {{ for i in $(seq 200); do grep -q \"$1\" {1} && return; sleep 0.05; done; }}; "
             "until_seen FD; {0} lab port vhca0 down; until_seen PORT_ERR; {0} lab port vhca0/1 up; "
             "until_seen PORT_ACTIVE; kill $watch; wait $watch; cat {1}",
             GAUDI_DIRECT_TOOL, seen.string())},
        {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_HAS(shown.output, "IBV_EVENT_PORT_ERR (10), port 1");
    EXPECT_HAS(shown.output, "IBV_EVENT_PORT_ACTIVE (9), port 1");
}

// rdma-core's own tests, as Debian ships them with python3-pyverbs. Tests of features that the device lacks
// skip themselves.
class rdma_core : public judge, public ::testing::WithParamInterface<const char*> {};
TEST_P(rdma_core, finds_nothing_wrong) {
    const std::filesystem::path shipped = "/usr/share/doc/rdma-core/tests";
    if (!std::filesystem::exists(shipped / "run_tests.py"))
        GTEST_SKIP() << "python3-pyverbs is not there, or was installed without its documents";
    const auto tests = root() / "rdma-core";
    std::filesystem::copy(shipped, tests, std::filesystem::copy_options::recursive);
    ASSERT_EQ(run_program({"/bin/sh", "-c", fmt::format("gunzip {}/*.gz", tests.string())}, {}).status, 0);
    const auto description = root() / "link.lab";
    std::ofstream(description) << "link_layer = " << GetParam() << "\n";
    const auto judged =
        run_program(in_lab(fmt::format("--config {}", description.string()),
                           fmt::format("/usr/bin/python3 -B {}/run_tests.py --dev vhca0 -v", tests.string())),
                    {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_EQ(judged.status, 0) << judged.output;
    unsigned passed = 0;
    for (auto at = judged.output.find("... ok"); at != std::string::npos;
         at = judged.output.find("... ok", at + 1))
        ++passed;
    EXPECT_GE(passed, 65U) << judged.output;
    EXPECT_HAS_NOT(judged.output, "... FAIL");
    EXPECT_HAS_NOT(judged.output, "... ERROR");
}
INSTANTIATE_TEST_SUITE_P(over, rdma_core, ::testing::Values("infiniband", "ethernet"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(judge, lab_show_lists_the_users_of_a_nic_and_their_bytes) {
    const auto port = free_port();
    const auto shown = [] {
        return run_program({GAUDI_DIRECT_TOOL, "lab", "show", "--json"}, {"GAUDI_DIRECT_HLTHUNK"}).output;
    };
    running_program server(in_lab("", fmt::format("ibv_rc_pingpong -p {}", port)), without_hlthunk);
    ASSERT_TRUE(wait_until_listening(server, port)) << server.output();
    const auto during = shown();
    EXPECT_HAS(during, "\"state\": \"INIT\"");
    EXPECT_HAS(during, "\"device\": \"vhca0\"");
    EXPECT_HAS(during, "\"bytes_process_vm\": 0");
    const auto client = run_program(in_lab("", fmt::format("ibv_rc_pingpong -p {} localhost", port)),
                                    {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_EQ(server.wait().status, 0);
    EXPECT_EQ(client.status, 0) << client.output;
    EXPECT_HAS(shown(), "\"hca_users\": []");
}

TEST_F(judge, lab_show_counts_what_a_queue_pair_has_moved) {
    const auto port = free_port();
    const auto side = [&](const char* host) {
        return in_lab("", fmt::format("ib_write_bw -d vhca0 -F -s 4096 -D 3 -p {} {}", port, host));
    };
    running_program server(side(""), without_hlthunk);
    ASSERT_TRUE(wait_until_listening(server, port)) << server.output();
    running_program asking(side("localhost"), without_hlthunk);
    const std::regex counted("\"bytes\": ([1-9][0-9]*)"), messages("\"messages\": ([1-9][0-9]*)");
    std::smatch bytes, count;
    std::string shown;
    while (bytes.empty() && !asking.ended()) {
        shown = run_program({GAUDI_DIRECT_TOOL, "lab", "show", "--json"}, {"GAUDI_DIRECT_HLTHUNK"}).output;
        if (std::regex_search(shown, bytes, counted))
            std::regex_search(shown, count, messages);
    }
    EXPECT_EQ(server.wait().status, 0);
    const auto client = asking.wait();
    EXPECT_EQ(client.status, 0) << client.output;
    ASSERT_FALSE(bytes.empty()) << shown;
    ASSERT_FALSE(count.empty()) << shown;
    EXPECT_EQ(std::stoull(bytes[1]) % 4096, 0U);
    EXPECT_LE(std::stoull(bytes[1]) / 4096, std::stoull(count[1]) + 1) << "read one after the other";
}

// Each parameter is a command; the client gets the server's name after it.
class pair_of : public judge, public ::testing::WithParamInterface<const char*> {
protected:
    void expect_both(const std::string& options, const std::string& command, const std::string& port_flag,
                     const std::string& before_host = "") {
        const auto port = free_port();
        const auto server = fmt::format("{} {} {}", command, port_flag, port);
        const auto client = before_host.empty()
                                ? server + " localhost"
                                : fmt::format("{} localhost {} {}", before_host, port_flag, port);
        const auto both = run_both(in_lab(options, server), in_lab(options, client), port);
        EXPECT_EQ(both.server.status, 0) << both.server.output;
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        for (const auto& each : {both.server, both.client}) // -c reports wrong data, but exits with 0
            EXPECT_HAS_NOT(each.output, "invalid data");
    }
};

std::string name_of(const ::testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
}

using pingpong = pair_of;
TEST_P(pingpong, passes) {
    expect_both("", GetParam(), "-p");
}
INSTANTIATE_TEST_SUITE_P(ibverbs_utils, pingpong,
                         ::testing::Values("ibv_rc_pingpong", "ibv_rc_pingpong -c", "ibv_rc_pingpong -e",
                                           "ibv_rc_pingpong -N", "ibv_rc_pingpong -t", "ibv_rc_pingpong -g 0",
                                           "ibv_rc_pingpong -N -c -t", "ibv_rc_pingpong -c -s 1048576 -n 50",
                                           "ibv_uc_pingpong", "ibv_uc_pingpong -e -c", "ibv_uc_pingpong -g 0",
                                           "ibv_ud_pingpong -c", "ibv_ud_pingpong -e -g 0",
                                           "ibv_srq_pingpong -c", "ibv_srq_pingpong -e",
                                           "ibv_srq_pingpong -g 0 -q 64"),
                         name_of);

using perftest = pair_of;
TEST_P(perftest, passes) {
    expect_both("", fmt::format("{} -d vhca0 -F", GetParam()), "-p");
}
// On UC and UD a message without a posted receive is lost, and perftest waits for it forever: so these send
// fewer messages than its 512 receives.
INSTANTIATE_TEST_SUITE_P(
    quick, perftest,
    ::testing::Values("ib_read_bw -s 8388608 -n 20", "ib_send_bw -s 8388608 -n 20",
                      "ib_write_lat -s 8388608 -n 20", "ib_read_lat", "ib_send_lat", "ib_atomic_bw",
                      "ib_atomic_lat", "ib_atomic_bw -A CMP_AND_SWAP", "ib_write_bw -b -q 4 -n 500",
                      "ib_send_bw -b -q 4 -n 500", "ib_send_bw -e", "ib_send_bw -r 16",
                      "ib_send_bw -c UD -n 400", "ib_send_bw -c UD -b -n 400", "ib_send_bw -c UD -q 4 -n 100",
                      "ib_send_bw -c UD -e -n 400", "ib_send_lat -c UD", "ib_send_bw -c UC -n 400",
                      "ib_send_bw -c UC -b -q 4 -n 400", "ib_send_bw -c UC -e -n 400", "ib_write_bw -c UC",
                      "ib_write_bw -c UC -b -q 4 -n 500", "ib_write_lat -c UC", "ib_send_lat -c UC",
                      "ib_write_bw -s 1", "ib_send_lat -e", "ib_read_bw -e", "ib_read_bw -b -q 4 -n 500",
                      "ib_atomic_bw -b -q 4 -n 500", "ib_read_lat -e -n 500",
                      "ib_send_bw --use-srq -q 2 -n 500"),
    name_of);
// perftest posts inline, and by ibv_wr_*, on a NIC whose part number it knows.
TEST_F(judge, perftest_posts_inline_on_a_device_that_it_knows) {
    const auto file = root() / "known.lab";
    std::ofstream(file) << "vendor_part_id = 4123\n";
    for (const auto& [command, bytes] :
         {std::pair{"ib_send_bw -I 64 -s 64", 64}, std::pair{"ib_write_lat -I 128 -s 100", 128},
          std::pair{"ib_send_bw -I 64 -s 64 --use_old_post_send", 64},
          std::pair{"ib_send_lat -c UD -I 64 -s 64", 64}}) {
        const auto port = free_port();
        const auto server = fmt::format("{} -d vhca0 -F -p {}", command, port);
        const auto options = fmt::format("--config {}", file.string());
        const auto both = run_both(in_lab(options, server), in_lab(options, server + " localhost"), port);
        EXPECT_EQ(both.server.status, 0) << both.server.output;
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        EXPECT_HAS(both.client.output, fmt::format(" Max inline data : {}[B]", bytes));
        const bool classic = std::string_view(command).ends_with("--use_old_post_send");
        EXPECT_HAS(both.client.output, classic ? "ibv_wr* API     : OFF" : "ibv_wr* API     : ON");
    }
}
// Every program, service, size and flag that perftest allows: it refuses events with write.
// labels: full
INSTANTIATE_TEST_SUITE_P(
    whole_matrix, perftest,
    // A latency test has two processes that poll in turn: on a busy machine each turn lasts a time slice, so
    // these run few iterations.
    ::testing::Values("ib_write_bw -a -n 500", "ib_read_bw -a -n 500", "ib_send_bw -a -n 500",
                      "ib_write_lat -a -n 100", "ib_read_lat -a -n 100", "ib_send_lat -a -n 100",
                      "ib_write_bw -a -c UC -n 500", "ib_send_bw -a -c UC -n 500",
                      "ib_send_bw -a -c UD -n 500", "ib_send_lat -a -c UD -n 100",
                      "ib_write_lat -a -c UC -n 100", "ib_send_lat -a -c UC -n 100",
                      "ib_write_bw -a -b -n 500", "ib_read_bw -a -b -n 500", "ib_send_bw -a -b -n 500",
                      "ib_write_bw -a -q 4 -n 500", "ib_read_bw -a -q 4 -n 500", "ib_send_bw -a -q 4 -n 500",
                      "ib_send_bw -a -e -n 500", "ib_read_bw -a -e -n 500", "ib_send_lat -a -e -n 100",
                      "ib_read_lat -a -e -n 100", "ib_send_bw -a -r 1 -n 500", "ib_send_bw -a -r 512 -n 500",
                      "ib_atomic_bw -b -q 4", "ib_atomic_lat -A CMP_AND_SWAP"),
    name_of);

#ifdef UCX_PREFIX
class ucx : public pair_of {
protected:
    ucx() { shorten_ucx_timeouts(); }
    void expect_ucx(const std::string& environment, const std::string& test) {
        const auto program = fmt::format("env {} ucx_perftest", environment);
        expect_both("--ucx " UCX_PREFIX, fmt::format("{} {}", program, test), "-p",
                    fmt::format("{} {}", program, test));
    }
};

TEST_F(ucx, lists_the_device_with_its_transports_and_dmabuf) {
    const auto shown = run_program(in_lab("--ucx " UCX_PREFIX, "ucx_info -d"), {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output, "Memory domain: vhca0");
    EXPECT_HAS(shown.output, "register: unlimited, dmabuf");
    EXPECT_HAS(shown.output, "Transport: rc_verbs");
    EXPECT_HAS(shown.output, "Transport: ud_verbs");
    const auto version = run_program(in_lab("--ucx " UCX_PREFIX, "ucx_info -v"), {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_HAS(version.output, "Library version: 1.23.0");
}

using uct_rc = ucx;
TEST_P(uct_rc, passes) {
    expect_ucx("A=1", fmt::format("-n 1000 -w 10 -x rc_verbs -d vhca0:1 {}", GetParam()));
}
INSTANTIATE_TEST_SUITE_P(ucx_1_23, uct_rc,
                         ::testing::Values("-t put_lat", "-t put_bw -s 8192 -D zcopy", "-t get -D bcopy",
                                           "-t get -s 8192 -D zcopy", "-t am_lat", "-t am_bw",
                                           "-t am_bw -s 4096 -D bcopy", "-t fadd -s 8", "-t cswap -s 8"),
                         name_of);
using uct_ud = ucx;
TEST_P(uct_ud, passes) {
    expect_ucx("A=1", fmt::format("-n 1000 -w 10 -x ud_verbs -d vhca0:1 {}", GetParam()));
}
INSTANTIATE_TEST_SUITE_P(ucx_1_23, uct_ud, ::testing::Values("-t am_lat", "-t am_bw"), name_of);

using ucp_rc = ucx;
TEST_P(ucp_rc, passes) {
    expect_ucx("UCX_TLS=rc_v", fmt::format("-n 500 -w 10 {}", GetParam()));
}
INSTANTIATE_TEST_SUITE_P(ucx_1_23, ucp_rc,
                         ::testing::Values("-t tag_lat", "-t tag_bw", "-t tag_bw -s 1048576 -n 50",
                                           "-t ucp_put_lat", "-t ucp_put_bw", "-t ucp_get", "-t stream_lat",
                                           "-t stream_bw -s 65536", "-t ucp_am_lat",
                                           "-t ucp_am_bw -s 1048576 -n 50", "-t ucp_fadd", "-t ucp_add",
                                           "-t ucp_swap", "-t ucp_cswap", "-t tag_lat -E sleep",
                                           "-t ucp_am_bw -E sleep"),
                         name_of);
using ucp_ud = ucx;
TEST_P(ucp_ud, passes) {
    expect_ucx("UCX_TLS=ud_v", fmt::format("-n 500 -w 10 {}", GetParam()));
}
INSTANTIATE_TEST_SUITE_P(ucx_1_23, ucp_ud,
                         ::testing::Values("-t tag_lat", "-t tag_bw -s 65536", "-t stream_bw", "-t ucp_am_bw",
                                           "-t ucp_put_lat", "-t ucp_put_bw", "-t ucp_get", "-t ucp_fadd",
                                           "-t ucp_add", "-t ucp_swap", "-t ucp_cswap",
                                           "-t tag_lat -E sleep"),
                         name_of);
#endif

} // namespace
