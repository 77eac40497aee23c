// SPDX-License-Identifier: BSD-3-Clause
// gaudi-direct as a user runs it.
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/hlthunk_functions.h"
#include "tests/support/test_lab.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sys/stat.h>

namespace {

using namespace testing_support;
using json = nlohmann::json;
using ::testing::Test;

class tool_test : public test_lab {
protected:
    program_result tool(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
        arguments.insert(arguments.begin(), GAUDI_DIRECT_TOOL);
        environment.insert(environment.begin(), "GAUDI_DIRECT_HLTHUNK"); // unset
        return run_program(arguments, environment);
    }
    std::string file(const std::string& name, std::string_view text) {
        const auto path = root() / name;
        std::ofstream(path) << text;
        return path;
    }
    // Runs a script with GAUDI_LAB_ROOT on a new tmpfs with these mount options; nullopt if mounting is not
    // permitted.
    std::optional<program_result> on_tmpfs(const std::string& options, const std::string& script) {
        const auto small = (root() / "small").string();
        std::filesystem::create_directory(small);
        auto shown =
            run_program({"unshare", "-m", "sh", "-c",
                         "mount -t tmpfs -o mode=700," + options + " none " + small +
                             " || exit 77; export GAUDI_LAB_ROOT=" + small + "; cd " + small + "; " + script},
                        {"GAUDI_DIRECT_HLTHUNK"});
        if (shown.status == 77 || shown.output.starts_with("unshare:"))
            return std::nullopt;
        return shown;
    }
};

TEST_F(tool_test, info_goes_to_the_lab_and_says_so) {
    const auto shown = tool({"info"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "virtual hardware, 2 devices\n");
    EXPECT_HAS(shown.output, "this is the lab, because there is no hardware: hl-thunk was not found");
    EXPECT_HAS(shown.output, "gaudi 1: gaudi2 HL225");
    EXPECT_HAS(shown.output, "DMA-BUF export   yes, iova 0x10015");
}

TEST_F(tool_test, topo_shows_which_nic_is_near_which_gaudi) {
    describe("gaudis = 8\nhcas = 3\n[hca 2]\nof_gaudi = 0");
    const auto shown = tool({"lab", "run", "--lab", "default", "--", GAUDI_DIRECT_TOOL, "topo"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "gaudi 7          0000:20:00.0  NUMA 0   gaudi2 HL225");
    EXPECT_HAS(shown.output, "nic vhca1:1");
    EXPECT_HAS(shown.output, "nic hbl_0        0000:19:00.0  a Gaudi's own ports");
    EXPECT_HAS(shown.output, "gaudi 0        S*      N \n");
    EXPECT_HAS(shown.output, "gaudi 4        N       S*\n");
    EXPECT_LT(std::ranges::count(shown.output, '\n'), 24);
    const auto report = json::parse(
        tool({"lab", "run", "--lab", "default", "--", GAUDI_DIRECT_TOOL, "info", "--json", "--no-probe"})
            .output);
    EXPECT_EQ(report["nics"].size(), 3U);
    EXPECT_EQ(report["topology"][3]["nics"].size(), 2U);
}

TEST_F(tool_test, info_without_the_lab_says_what_was_tried) {
    const auto shown = tool({"info", "--no-lab"});
    EXPECT_EQ(shown.status, 1);
    EXPECT_HAS(shown.output, "no hardware, 0 devices");
    EXPECT_HAS(shown.output, "/usr/lib/habanalabs/libhl-thunk.so: cannot open shared object file");
}

TEST_F(tool_test, lab_run_sets_the_nics_up) {
    const auto shown =
        tool({"lab", "run", "--hcas", "3", "--", "sh", "-c", "echo $GAUDI_DIRECT_VERBS $LD_PRELOAD"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "/libvhca.so ");
    EXPECT_HAS(shown.output, "/libvhca.so:");
    EXPECT_HAS(shown.output, "/libvhca-node.so");
    EXPECT_HAS(tool({"lab", "show"}).output, "vhca2  infiniband, 400 Gbit/s  0000:62:00.0  DMA-BUF yes");
    EXPECT_HAS(tool({"lab", "list"}).output, "2 Gaudi, 3 NIC");
    const auto many = tool({"lab", "run", "--hcas", "17", "--", "true"});
    EXPECT_EQ(many.status, 2);
    EXPECT_HAS(many.output, "--hcas 17: a lab has at most 16");
    const auto nothing = tool({"lab", "run", "--ucx", "/nonexistent", "--", "true"});
    EXPECT_EQ(nothing.status, 2);
    EXPECT_HAS(nothing.output,
               "--ucx /nonexistent: there is no lib/libucs.so.0 under it; `make ucx` lays out two");
}

TEST_F(tool_test, lab_run_has_a_synapse_for_programs_that_want_it) {
    const auto with = tool({"lab", "run", "--lab", "default", "--synapse", "--", VENDOR_PROGRAM});
    EXPECT_EQ(with.status, 0) << with.output;
    EXPECT_HAS(with.output, "0x100160015a000000: 1048576 bytes, right");
    const auto without = tool({"lab", "run", "--lab", "default", "--", VENDOR_PROGRAM});
    EXPECT_EQ(without.status, 127) << without.output;
    EXPECT_HAS(without.output, "libSynapse.so");
}

TEST_F(tool_test, info_json) {
    const auto shown = tool({"info", "--json"});
    ASSERT_EQ(shown.status, 0) << shown.output;
    const auto report = json::parse(shown.output);
    EXPECT_EQ(report["kind"], "virtual");
    ASSERT_EQ(report["devices"].size(), 2U);
    const auto& first = report["devices"][0];
    EXPECT_EQ(first["generation"], "gaudi2");
    EXPECT_EQ(first["memory_total"], 0x17D0000000);
    EXPECT_EQ(first["dmabuf_export"], true);
    EXPECT_TRUE(first["holders"].empty());
}

// labels: no_tsan
TEST_F(tool_test, measure) {
    const auto shown = tool({"lab", "run", "--", GAUDI_DIRECT_TOOL, "measure", "--device", "1"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, ": virtual hardware\n");
    EXPECT_HAS(shown.output, "gaudi 1, gaudi2 0000:1a:00.0: copies of 64 MiB, the best of 7\n");
    for (const auto* row : {"to the device ", "from the device ", "within the device "}) {
        const auto at = shown.output.find(row);
        ASSERT_NE(at, std::string::npos) << shown.output;
        EXPECT_GT(std::stod(shown.output.substr(at + std::strlen(row))), 0) << shown.output;
    }
    const auto lines = tool({"lab", "run", "--", GAUDI_DIRECT_TOOL, "measure", "--env"}).output;
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10) << lines;
    EXPECT_HAS(lines, "export UCX_GAUDI_COPY_NIC_LATENCY=");
    EXPECT_HAS(shown.output, "8 bytes through a NIC ");
    EXPECT_TRUE(lines.starts_with("export UCX_GAUDI_COPY_BW_TO_DEVICE=")) << lines;
    const auto wrong = tool({"measure", "--device", "front"});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_HAS(wrong.output, "--device front: give an index (0), a PCI bus id (0000:19:00.0) or module:<id>");
    const auto nothing = tool({"measure"});
    EXPECT_EQ(nothing.status, 1);
    EXPECT_HAS(nothing.output, "gaudi-direct: hl-thunk was not found");
    const auto third =
        tool({"lab", "run", "--lab", "third", "--generation", "gaudi3", "--", GAUDI_DIRECT_TOOL, "measure"});
    EXPECT_EQ(third.status, 1);
    EXPECT_HAS(third.output, "offers no queue for user submissions; copy with a copier");
    const auto first = [&](std::vector<std::string> more) {
        std::vector<std::string> all{"lab",   "run", "--lab",           "first",  "--generation",
                                     "gaudi", "--",  GAUDI_DIRECT_TOOL, "measure"};
        all.insert(all.end(), more.begin(), more.end());
        return tool(all);
    };
    EXPECT_HAS(first({}).output, "from the device ");
    EXPECT_HAS_NOT(first({}).output, "UCX");
    EXPECT_HAS_NOT(first({"--json"}).output, "settings");
    EXPECT_EQ(first({"--env"}).status, 1);
    EXPECT_HAS(first({"--env"}).output, "gaudi 0 is of the first generation, and UCX knows Gaudi2 and later");
}

TEST_F(tool_test, info_shows_every_path_between_two_places) {
    const auto between = tool({"info", "--paths", "0", "1"});
    EXPECT_EQ(between.status, 0) << between.output;
    EXPECT_HAS(between.output, "virtual hardware, 2 devices\n");
    EXPECT_HAS(between.output, "from gaudi 0 to gaudi 1");
    EXPECT_HAS(between.output, "the device's engine         no: the two places are on two devices\n");
    EXPECT_HAS(between.output,
               "peer DMA-BUF                no: the driver cannot import a DMA-BUF (REG_DMABUF_FD");
    EXPECT_HAS(between.output, "a NIC in loopback           viable; this one is used\n");
    EXPECT_HAS(between.output, "staged through host memory  viable, not zero-copy\n");
    const auto report = json::parse(tool({"info", "--json", "--paths", "host", "0"}).output);
    EXPECT_EQ(report["from"], "host memory");
    ASSERT_EQ(report["paths"].size(), 7U);
    EXPECT_EQ(report["paths"][1]["viable"], true);
    EXPECT_EQ(report["paths"][0]["why_not"], "no CPU can reach device memory");
    const auto wrong = tool({"info", "--paths", "host", "nowhere"});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_HAS(wrong.output, "--paths nowhere: use host, an index, a PCI bus id or module:<id>");
    const auto none = tool({"info", "--paths", "host", "7"});
    EXPECT_EQ(none.status, 1);
    EXPECT_HAS(none.output, "index 7");
}

TEST_F(tool_test, info_shows_the_described_numa_node) {
    EXPECT_HAS(tool({"info"}).output, "NUMA node        0\n");
    const auto node = file("x.lab", "gaudis = 2\n[gaudi 1]\nnuma_node = 3\n");
    EXPECT_HAS(tool({"lab", "run", "--config", node, "--", GAUDI_DIRECT_TOOL, "info"}).output,
               "NUMA node        3\n");
    EXPECT_EQ(json::parse(tool({"info", "--json"}).output)["devices"][1]["numa_node"], 3);
    // Programs get the lab's topology only if it has several NUMA nodes or several NICs.
    const std::vector<std::string> show{"--", "sh", "-c", "echo machine: $HWLOC_XMLFILE"};
    const auto seen_with = [&](std::vector<std::string> options) {
        options.insert(options.begin(), {"lab", "run"});
        options.insert(options.end(), show.begin(), show.end());
        return tool(options, {"HWLOC_XMLFILE"}).output;
    };
    EXPECT_EQ(seen_with({"--config", node}), "machine: " + (lab() / "topology.xml").string() + "\n");
    EXPECT_EQ(seen_with({"--hcas", "1"}), "machine:\n");
}

TEST_F(tool_test, info_names_the_holder_of_a_busy_device) {
    const int fd = hlthunk_open(HLTHUNK_DEVICE_DONT_CARE, "0000:19:00.0");
    const auto report = json::parse(tool({"info", "--json"}).output);
    hlthunk_close(fd);
    EXPECT_EQ(report["devices"][0]["holders"][0]["process"], ::getpid());
    EXPECT_EQ(report["devices"][0]["dmabuf_export_detail"], "not checked: the device is busy");
    EXPECT_TRUE(report["devices"][1]["holders"].empty());
}

TEST_F(tool_test, info_reports_a_refused_export) {
    const auto shown = tool({"lab", "run", "--config", file("x.lab", "gaudis = 1\nsmall_bar = yes\n"), "--",
                             GAUDI_DIRECT_TOOL, "info"});
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output, "DMA-BUF export   refused: the driver does not export the memory as a DMA-BUF");
    EXPECT_HAS(shown.output, "large BAR");
}

TEST_F(tool_test, libraries_that_cannot_be_used) {
    const auto missing = tool({"info"}, {"GAUDI_DIRECT_HLTHUNK=/nonexistent/libhl-thunk.so"});
    EXPECT_EQ(missing.status, 1);
    EXPECT_HAS(missing.output, "hl-thunk was not found");
    EXPECT_HAS(missing.output, "/nonexistent/libhl-thunk.so");
    // An ELF file for another machine: the header of this program with e_machine changed.
    std::ifstream self("/proc/self/exe", std::ios::binary);
    std::string header(4096, '\0');
    self.read(header.data(), 4096);
    header[18] = static_cast<char>(0xb7); // AArch64
    header[16] = 3;                       // shared object
    const auto wrong = tool({"info"}, {"GAUDI_DIRECT_HLTHUNK=" + file("wrong.so", header)});
    EXPECT_EQ(wrong.status, 1);
    EXPECT_HAS(wrong.output, "hl-thunk is there but cannot be loaded");
    const auto poor = tool({"info"}, {"GAUDI_DIRECT_HLTHUNK=" POOR_HLTHUNK});
    EXPECT_EQ(poor.status, 1);
    EXPECT_HAS(poor.output, "hl-thunk lacks a function that is needed");
    EXPECT_HAS(poor.output, "hlthunk_device_memory_alloc");
}

TEST_F(tool_test, info_names_the_optional_functions_that_are_missing) {
    const auto bare = tool({"info"}, {"GAUDI_DIRECT_HLTHUNK=" BARE_HLTHUNK});
    EXPECT_EQ(bare.status, 0) << bare.output;
    EXPECT_HAS(bare.output, "it lacks hlthunk_device_memory_export_dmabuf_fd, ");
    EXPECT_HAS(bare.output, ", hlthunk_command_submission, ");
    EXPECT_HAS(bare.output, "DMA-BUF export   refused: hl-thunk lacks a function that is needed");
    EXPECT_EQ(tool({"info"}).output.find("it lacks"), std::string::npos);
    const auto copying = run_program({EXAMPLE_TEN_LINES}, {"GAUDI_DIRECT_HLTHUNK=" BARE_HLTHUNK});
    EXPECT_NE(copying.status, 0);
    EXPECT_HAS(copying.output, "has no submission functions");
}

TEST_F(tool_test, the_ten_lines_run_on_every_generation) {
    for (const std::string generation : {"gaudi", "gaudi2", "gaudi3"}) {
        const auto shown =
            tool({"lab", "run", "--lab", generation, "--generation", generation, "--", EXAMPLE_TEN_LINES});
        EXPECT_EQ(shown.status, 0) << generation << ": " << shown.output;
        EXPECT_HAS(shown.output, "data right");
    }
}

TEST_F(tool_test, run_passes_the_exit_status_on) {
    EXPECT_EQ(tool({"lab", "run", "--", "sh", "-c", "exit 7"}).status, 7);
    EXPECT_EQ(tool({"lab", "run", "--", "sh", "-c", "kill -9 $$"}).status, 128 + 9);
    EXPECT_EQ(tool({"lab", "run", "--", "/nonexistent"}).status, 127);
    EXPECT_EQ(tool({"lab", "run", "--", "/etc/passwd"}).status, 126);
    EXPECT_EQ(tool({"lab", "run"}).status, 2);
    const auto unknown = tool({"nonsense"});
    EXPECT_EQ(unknown.status, 2);
    EXPECT_HAS(unknown.output,
               "unknown command 'nonsense'; there are: info, topo, doctor, selftest, measure, lab");
    EXPECT_HAS(tool({"lab", "nonsense"}).output,
               "unknown command 'nonsense'; there are: run, list, show, port, clean");
    for (const auto& wrong :
         {std::vector<std::string>{"--bogus"}, {"lab", "run", "--bogus", "x", "--", "true"}}) {
        const auto refused = tool(wrong);
        EXPECT_EQ(refused.status, 2);
        EXPECT_HAS(refused.output, "gaudi-direct: unknown argument '--bogus'; gaudi-direct --help");
    }
}

TEST_F(tool_test, a_program_ends_with_the_run_that_is_killed) {
    const auto own = (root() / "pid").string();
    const auto shown = run_program(
        {"/bin/sh", "-c",
         fmt::format("{0} lab run -- sh -c 'echo $$ > {1}; exec sleep 60' & run=$!; "
                     "until [ -s {1} ]; do sleep 0.02; done; kill -9 $run; wait $run; "
                     "for i in $(seq 100); do kill -0 $(cat {1}) 2>/dev/null || exit 0; "
                     "grep -q 'State:.Z' /proc/$(cat {1})/status && exit 0; sleep 0.05; done; exit 1",
                     GAUDI_DIRECT_TOOL, own)},
        {});
    EXPECT_EQ(shown.status, 0) << shown.output;
}

TEST_F(tool_test, memory_is_registered_from_c) {
    const auto shown = tool({"lab", "run", "--", EXAMPLE_REGISTER_MEMORY});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "address 0x1001500010000000, lkey 0x");
    const auto refused = tool({"lab", "run", "--", EXAMPLE_REGISTER_MEMORY},
                              {"GAUDI_LAB_FAULTS=ibv_reg_dmabuf_mr 1 errno EPERM"});
    EXPECT_EQ(refused.status, 1);
    EXPECT_HAS(refused.output, "no NIC, or it does not register this DMA-BUF: Operation not permitted");
}

TEST_F(tool_test, run_serves_programs_linked_by_name) {
    const auto shown = tool({"lab", "run", "--generation", "gaudi3", "--gaudis", "1", "--", "sh", "-c",
                             "echo $LD_LIBRARY_PATH; echo $GAUDI_LAB"});
    EXPECT_HAS(shown.output, "gaudi-direct/lab");
    EXPECT_HAS(shown.output, "default");
}

TEST_F(tool_test, descriptions) {
    EXPECT_EQ(tool({"lab", "run", "--gaudis", "3", "--", "true"}).status, 0);
    EXPECT_EQ(json::parse(tool({"lab", "show", "--json"}).output)["gaudis"].size(), 3U);
    EXPECT_EQ(tool({"lab", "run", "--", "true"}).status, 0) << "as it is";
    EXPECT_EQ(json::parse(tool({"lab", "show", "--json"}).output)["gaudis"].size(), 3U);
    EXPECT_EQ(tool({"lab", "run", "--gaudis", "1", "--", "true"}).status, 0) << "idle: remade";
    EXPECT_EQ(json::parse(tool({"lab", "show", "--json"}).output)["gaudis"].size(), 1U);
    // While the lab is in use, the same description is accepted and another one is an error.
    const auto nested = [&](const std::string& count) {
        return tool({"lab", "run", "--gaudis", "1", "--", GAUDI_DIRECT_TOOL, "lab", "run", "--gaudis", count,
                     "--", "true"});
    };
    EXPECT_EQ(nested("1").status, 0);
    const auto other = nested("2");
    EXPECT_EQ(other.status, 1);
    EXPECT_HAS(other.output, "lab 'default' is in use with another description");
}

TEST_F(tool_test, bad_input_is_named) {
    const auto expect = [&](std::vector<std::string> arguments, std::string_view message) {
        arguments.insert(arguments.begin(), {"lab", "run"});
        arguments.insert(arguments.end(), {"--", "true"});
        const auto shown = tool(arguments);
        EXPECT_EQ(shown.status, 2) << shown.output;
        EXPECT_HAS(shown.output, message);
    };
    expect({"--generation", "gaudi5"}, "unknown generation 'gaudi5'; expected gaudi, gaudi2 or gaudi3");
    expect({"--gaudis", "65"}, "--gaudis 65: a lab has at most 64");
    expect({"--gaudis", "two"}, "--gaudis");
    expect({"--config", file("bad.lab", "gaudis = 2\ncolour = red\n")}, "bad.lab:2: unknown key 'colour'");
    expect({"--config", "/nonexistent.lab"}, "/nonexistent.lab: cannot be read");
    expect({"--config", file("good.lab", "gaudis = 1\n"), "--gaudis", "1"},
           "--config describes the whole lab");
    expect({"--faults", file("bad.faults", "\nhlthunk_open never errno EIO\n")},
           "bad.faults:2: occurrence 'never'");
    const auto name = tool({"lab", "run", "--lab", "../x", "--", "true"});
    EXPECT_EQ(name.status, 2);
    EXPECT_HAS(name.output, "'../x' is no lab name");
    EXPECT_EQ(tool({"lab", "show", "nosuch"}).status, 1);
    EXPECT_HAS(tool({"lab", "port", "vhca0", "down", "--lab", "nosuch"}).output, "there is no lab 'nosuch'");
    const auto nothing = tool({"lab", "clean", "nosuch"});
    EXPECT_EQ(nothing.status, 1);
    EXPECT_HAS(nothing.output, "there is no lab 'nosuch'");
    EXPECT_FALSE(std::filesystem::exists(lab())) << "nothing is left behind";
}

TEST_F(tool_test, a_port_is_pulled_and_plugged_in) {
    ASSERT_EQ(
        tool({"lab", "run", "--config", file("two.lab", "gaudis = 1\nhcas = 2\nports = 2\n"), "--", "true"})
            .status,
        0);
    const auto port = [&](const char* which, const char* link) { return tool({"lab", "port", which, link}); };
    const auto down = [&] {
        std::vector<json> all;
        const auto shown = json::parse(tool({"lab", "show", "--json"}).output);
        for (const auto& opened_device : shown["hcas"])
            all.push_back(opened_device["ports_down"]);
        return all;
    };
    EXPECT_EQ(port("vhca1/2", "down").status, 0);
    EXPECT_EQ(down(), (std::vector<json>{json::array(), {2}}));
    EXPECT_HAS(tool({"lab", "show"}).output, "DMA-BUF yes  port 2 down\n");
    EXPECT_EQ(port("vhca0", "down").status, 0);
    EXPECT_EQ(port("vhca1", "up").status, 0);
    EXPECT_EQ(down(), (std::vector<json>{{1, 2}, json::array()}));
    const auto wrong = port("vhca1/3", "down");
    EXPECT_EQ(wrong.status, 2);
    EXPECT_HAS(wrong.output,
               "lab 'default' has no port 'vhca1/3'; it has vhca0/1, vhca0/2, vhca1/1, vhca1/2");
    EXPECT_EQ(port("vhca0", "sideways").status, 2);
    EXPECT_EQ(down(), (std::vector<json>{{1, 2}, json::array()})) << "nothing was changed";
    ASSERT_EQ(tool({"lab", "run", "--hcas", "1", "--", "true"}).status, 0);
    EXPECT_EQ(down(), std::vector<json>{json::array()}) << "a lab that is made anew has its cables";
}

TEST_F(tool_test, faults_reach_the_program) {
    const auto script = file("busy.faults", "hlthunk_open 1+ errno EBUSY\n");
    const auto shown = tool({"lab", "run", "--faults", script, "--", EXAMPLE_TEN_LINES});
    EXPECT_NE(shown.status, 0);
    EXPECT_EQ(tool({"lab", "run", "--", EXAMPLE_TEN_LINES}).status, 0);
}

TEST_F(tool_test, a_script_in_the_environment_that_does_not_parse_stops_the_program) {
    const auto shown =
        tool({"lab", "run", "--", EXAMPLE_TEN_LINES}, {"GAUDI_LAB_FAULTS=@/nonexistent.faults"});
    EXPECT_EQ(shown.status, 2);
    EXPECT_HAS(shown.output, "/nonexistent.faults: cannot be read");
    EXPECT_NE(
        tool({"lab", "run", "--", EXAMPLE_TEN_LINES}, {"GAUDI_LAB_FAULTS=hlthunk_open every errno EBUSY"})
            .status,
        0);
    const auto direct = run_program({EXAMPLE_TEN_LINES}, {"GAUDI_LAB_FAULTS=hlthunk_open first errno EIO"});
    EXPECT_EQ(direct.status, 2);
    EXPECT_HAS(direct.output, "GAUDI_LAB_FAULTS:1: occurrence 'first': expected N, N+ or every");
}

TEST_F(tool_test, list_show_clean) {
    EXPECT_HAS(tool({"lab", "list"}).output, "no labs");
    EXPECT_EQ(tool({"lab", "run", "--lab", "one", "--", "true"}).status, 0);
    EXPECT_EQ(tool({"lab", "run", "--lab", "two", "--gaudis", "1", "--", "true"}).status, 0);
    const auto all = json::parse(tool({"lab", "list", "--json"}).output);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0]["name"], "one");
    EXPECT_EQ(all[0]["in_use"], false);
    const auto busy = tool({"lab", "run", "--lab", "one", "--", GAUDI_DIRECT_TOOL, "lab", "clean", "one"});
    EXPECT_EQ(busy.status, 1);
    EXPECT_HAS(busy.output, "lab 'one' is in use");
    EXPECT_EQ(tool({"lab", "clean", "one"}).status, 0);
    EXPECT_EQ(tool({"lab", "clean", "two"}).status, 0);
    EXPECT_TRUE(!std::filesystem::exists(root()) || std::filesystem::is_empty(root()));
}

TEST_F(tool_test, two_runs_side_by_side_share_one_lab) {
    // Each run holds the first free device until the other has one.
    const auto mine = (root() / "mine").string(), other = (root() / "other").string();
    child second([&] { return tool({"lab", "run", "--", DEVICE_HOLDER, other, mine}).status; });
    const auto first = tool({"lab", "run", "--", DEVICE_HOLDER, mine, other});
    EXPECT_EQ(first.status, 0) << first.output;
    EXPECT_EQ(second.wait(), 0);
    const std::set<std::string> both{text_of(mine), text_of(other)};
    EXPECT_EQ(both, (std::set<std::string>{"0000:19:00.0", "0000:1a:00.0"}));
}

TEST_F(tool_test, memory_of_a_killed_program_is_released) {
    // The shell kills the program once the lab's folder grows, and retries if the program ended before.
    const auto script = fmt::format("for i in $(seq 100); do {} & pid=$!; "
                                    "while kill -0 $pid && [ $(du -sk {} | cut -f1) -lt 16384 ]; do :; done; "
                                    "kill -9 $pid; wait $pid; [ $? -ne 137 ] || exit 0; done; exit 1",
                                    EXAMPLE_TWO_DEVICES, lab().string());
    const auto shown = tool({"lab", "run", "--", "sh", "-c", script});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_LT(stored_bytes(lab()), 2U << 20);
}

TEST_F(tool_test, a_folder_of_another_user_is_refused) {
    if (::geteuid() != 0)
        GTEST_SKIP() << "needs root to make a folder of another user";
    const auto foreign = root() / "foreign";
    std::filesystem::create_directory(foreign);
    ASSERT_EQ(::chmod(foreign.c_str(), 0700), 0);
    ASSERT_EQ(::chown(foreign.c_str(), 12345, 12345), 0);
    const auto shown = tool({"lab", "run", "--", "true"}, {"GAUDI_LAB_ROOT=" + foreign.string()});
    EXPECT_EQ(shown.status, 1);
    EXPECT_HAS(shown.output, "belongs to uid 12345, not to you");
    const auto open_to_all = root() / "open";
    std::filesystem::create_directory(open_to_all);
    ASSERT_EQ(::chmod(open_to_all.c_str(), 0755), 0);
    const auto entered = tool({"lab", "run", "--", "true"}, {"GAUDI_LAB_ROOT=" + open_to_all.string()});
    EXPECT_EQ(entered.status, 1);
    EXPECT_HAS(entered.output, "has mode 0755, others can enter it");
    const auto plain = tool({"lab", "run", "--", "true"}, {"GAUDI_LAB_ROOT=" + file("plain", "")});
    EXPECT_EQ(plain.status, 1);
    EXPECT_HAS(plain.output, "is not a folder");
    char on_disk[] = "/tmp/gaudi-test-XXXXXX";
    ASSERT_NE(::mkdtemp(on_disk), nullptr);
    const auto disk = tool({"lab", "run", "--", "true"}, {std::string("GAUDI_LAB_ROOT=") + on_disk});
    ::rmdir(on_disk);
    if (disk.status != 0) { // unless /tmp is a tmpfs
        EXPECT_HAS(disk.output, "is not on tmpfs");
    }
}

TEST_F(tool_test, trace_shows_every_call) {
    const auto shown = tool({"lab", "run", "--", EXAMPLE_TEN_LINES}, {"GAUDI_LAB_TRACE=1"});
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output, "hlthunk_open(4, \"0000:19:00.0\") = ");
    EXPECT_HAS(shown.output, "hlthunk_device_mapped_memory_export_dmabuf_fd(");
    const auto trace = root() / "trace";
    EXPECT_EQ(tool({"lab", "run", "--", EXAMPLE_TEN_LINES}, {"GAUDI_LAB_TRACE=" + trace.string()})
                  .output.find("hlthunk_open("),
              std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(trace));
}

TEST_F(tool_test, full_tmpfs_is_an_error_and_no_crash) {
    const auto shown = on_tmpfs("size=64m", GAUDI_DIRECT_TOOL " lab run -- " EXAMPLE_TWO_DEVICES);
    if (!shown)
        GTEST_SKIP() << "needs the right to mount a small tmpfs";
    EXPECT_EQ(shown->status, 1) << shown->output;
    EXPECT_HAS(shown->output, "no storage for the virtual HBM");
    EXPECT_HAS(shown->output, "No space left on device");
    EXPECT_HAS(shown->output,
               "has 64 MiB in all; in a container enlarge it (docker and podman: --shm-size=2g)");
    EXPECT_HAS(shown->output, "the device failed or was reset");
}

// The lab leaves a reserve of the machine's memory. Here the reserve leaves less than the example needs.
TEST_F(tool_test, the_machines_memory_is_not_used_up) {
    const auto available = [] {
        std::ifstream file("/proc/meminfo");
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("MemAvailable:"))
                return std::stoull(line.substr(13)) >> 10;
        return 0ULL;
    }();
    ASSERT_GT(available, 1024U);
    const auto shown = tool({"lab", "run", "--", EXAMPLE_TWO_DEVICES},
                            {fmt::format("GAUDI_LAB_RESERVE={}", available + (available >> 2))});
    EXPECT_EQ(shown.status, 1) << shown.output;
    EXPECT_HAS(shown.output, "no storage for the virtual HBM");
    EXPECT_HAS(shown.output,
               "MiB of memory are left on this machine or in this container, of which the lab leaves");
    EXPECT_HAS(shown.output, "the device failed or was reset");
    EXPECT_EQ(tool({"lab", "run", "--", EXAMPLE_TWO_DEVICES}, {"GAUDI_LAB_RESERVE=0"}).status, 0);
}

TEST_F(tool_test, full_tmpfs_while_the_lab_is_made) {
    // Limits bytes, then files, from one upwards; `ls` would list files that remain.
    const std::string attempt = GAUDI_DIRECT_TOOL " lab run -- true; status=$?; ls -A; exit $status";
    unsigned refused = 0;
    for (const std::string limit : {"size=", "nr_inodes="})
        for (unsigned amount = 2;; ++amount) {
            const auto shown =
                on_tmpfs(limit + std::to_string(limit == "size=" ? (amount - 1) * 4096 : amount), attempt);
            if (!shown)
                GTEST_SKIP() << "needs the right to mount a small tmpfs";
            if (shown->status == 0)
                break;
            ++refused;
            ASSERT_LT(amount, 100U);
            EXPECT_EQ(shown->status, 1) << shown->output;
            EXPECT_TRUE(shown->output.starts_with("gaudi-direct lab: ")) << shown->output;
            EXPECT_HAS(shown->output, "No space left on device");
            EXPECT_EQ(std::count(shown->output.begin(), shown->output.end(), '\n'), 1) << shown->output;
        }
    EXPECT_GE(refused, 10U);
}

TEST_F(tool_test, full_tmpfs_when_a_device_is_opened) {
    // No page for the device; none for its tables; enough for the tables of the first device only.
    for (const auto* more : {"0", "32", "12288"}) {
        const auto shown =
            on_tmpfs("size=1m",
                     "stored() { du -sk . | cut -f1; }; " GAUDI_DIRECT_TOOL " lab run -- true; lab=$(stored);"
                     "mount -o remount,size=$((lab + " +
                         std::string(more) +
                         "))k .; " GAUDI_DIRECT_TOOL " lab run -- " EXAMPLE_TWO_DEVICES "; echo status $?;"
                         "echo stored $(($(stored) - lab)) KiB;"
                         "mount -o remount,size=1g . &&" GAUDI_DIRECT_TOOL " lab run -- " EXAMPLE_TEN_LINES);
        if (!shown)
            GTEST_SKIP() << "needs the right to mount a small tmpfs";
        EXPECT_HAS(shown->output, "\nstatus 1\n");
        EXPECT_HAS(shown->output, "the device cannot be opened");
        EXPECT_HAS(shown->output, "No space left on device (ENOSPC)");
        const auto at = shown->output.find("stored ");
        ASSERT_NE(at, std::string::npos) << shown->output;
        EXPECT_LT(std::stoul(shown->output.substr(at + 7)), 40U) << "the tables are given back";
        EXPECT_EQ(shown->status, 0) << "and with space it works: " << shown->output;
        EXPECT_HAS(shown->output, "data right");
    }
}

TEST_F(tool_test, every_option_is_in_the_man_page) {
    for (const auto& [command, page] :
         {std::pair(std::vector<std::string>{"info"}, "gaudi-direct-info.1"),
          std::pair(std::vector<std::string>{"doctor"}, "gaudi-direct-doctor.1"),
          std::pair(std::vector<std::string>{"selftest"}, "gaudi-direct-selftest.1"),
          std::pair(std::vector<std::string>{"topo"}, "gaudi-direct.1"),
          std::pair(std::vector<std::string>{"measure"}, "gaudi-direct-measure.1"),
          std::pair(std::vector<std::string>{"lab", "run"}, "gaudi-direct-lab.1")}) {
        auto arguments = command;
        arguments.push_back("--help");
        const auto help = tool(arguments).output;
        const auto text = text_of(std::string(SOURCE_FOLDER "/man/") + page);
        unsigned found = 0;
        for (auto at = help.find("--"); at != help.npos; at = help.find("--", at + 2)) {
            const auto name =
                help.substr(at + 2, help.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at + 2) - at - 2);
            if (name.empty() || name == "help")
                continue;
            ++found;
            std::string escaped;
            for (const char letter : name)
                escaped += letter == '-' ? "\\-" : std::string(1, letter);
            EXPECT_NE(text.find("\\-\\-" + escaped), std::string::npos) << page << " lacks --" << name;
        }
        EXPECT_GE(found, 1U);
    }
}

} // namespace
