// SPDX-License-Identifier: BSD-3-Clause
// Third-party programs with Gaudi memory: ucx_perftest and NIXL.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

// Runs tests of ucx_perftest one after the other in the same two processes.
class perftest_test : public ucx_test, public ::testing::WithParamInterface<path> {
protected:
    void expect_all(const std::string& tests, const std::string& sizes, const std::string& more) {
        std::vector<std::string> lines;
        for (const auto& test : words(tests))
            for (const auto& size : words(sizes))
                lines.push_back(fmt::format("{0}_of_{1} -t {0} -s {1} {2}", test, size, more));
        expect_lines(lines);
    }
    // Each line: a name, and the arguments of ucx_perftest.
    void expect_lines(const std::vector<std::string>& lines) {
        std::ofstream(root() / "batch") << fmt::format("{}\n", fmt::join(lines, "\n"));
        const auto said = run_batch();
        // After the name of each test come its figures: one line a second, then the sum.
        std::size_t at = 0;
        for (const auto& line : lines) {
            const auto name = line.substr(0, line.find(' '));
            at = said.find("+" + name, at);
            ASSERT_NE(at, std::string::npos) << name << " did not run:\n" << said;
            const auto sum = said.find("\nFinal:", at);
            ASSERT_NE(sum, std::string::npos) << name << ":\n" << said;
            EXPECT_GT(said.find("\n+", at), sum) << name << " did not end:\n" << said;
        }
    }

private:
    // Runs both sides. Returns the client's output.
    std::string run_batch() {
        const auto port = free_port();
        const auto program =
            fmt::format("env {} {} UCX_TLS={},gaudi_cpy {} ucx_perftest -p {} -b {}",
                        fmt::join(counting(), " "), devices_for(GetParam().transports), GetParam().transports,
                        GetParam().environment, port, (root() / "batch").string());
        const auto prefix = prefix_of(GetParam().version);
        const auto both = run_both(lab(prefix, program), lab(prefix, program + " localhost"), port,
                                   "/proc/net", std::chrono::seconds(240));
        EXPECT_EQ(both.server.status, 0) << both.server.output;
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        EXPECT_HAS_NOT(logged(), "ERROR");
        return both.client.output;
    }
};

// `more`: arguments of all tests.
class perftest_matrix : public perftest_test {};
// labels: full
TEST_P(perftest_matrix, passes_every_test) {
    std::string tests = "tag_lat tag_bw tag_sync_lat tag_sync_bw stream_lat stream_bw ucp_am_lat ucp_am_bw";
    // One-sided operations of a NIC do not wake a process that sleeps: ucx_perftest waits forever, with host
    // memory too.
    const bool sleeps = std::string_view(GetParam().more).find("sleep") != std::string_view::npos;
    if (!sleeps || GetParam().transports != std::string_view("rc_v"))
        tests += " ucp_put_lat ucp_put_bw ucp_get";
    expect_all(tests, "1 8 4096 65536 1048576", fmt::format("-n 20 -w 2 {}", GetParam().more));
}
INSTANTIATE_TEST_SUITE_P(all, perftest_matrix, ::testing::ValuesIn([] {
                             std::vector<path> all;
                             for (const auto& [version, transports] :
                                  {std::pair("1.22", "tcp"), std::pair("1.23", "tcp"),
                                   std::pair("1.22", "posix,cma"), std::pair("1.23", "posix,cma"),
                                   std::pair("1.23", "rc_v"), std::pair("1.23", "ud_v"),
                                   std::pair("1.22", "posix,gaudi_ipc,gaudi_dma"),
                                   std::pair("1.23", "posix,gaudi_ipc,gaudi_dma")})
                                 for (const auto* memory : {"-m gaudi", "-m gaudi,host", "-m host,gaudi"})
                                     all.push_back({version, transports, memory, ""});
                             for (const auto* more : {"-m gaudi -E sleep", "-m gaudi -T 3"}) {
                                 all.push_back({"1.22", "tcp", more, ""});
                                 all.push_back({"1.23", "rc_v", more, ""});
                             }
                             return all;
                         }()),
                         name_of_path);

// Every operation with every memory, in two of the sizes each (in one on Ethernet), and a larger size; then
// with threads, and in sleep mode. `more`: a line of the lab description.
class perftest_round : public perftest_test {};
TEST_P(perftest_round, runs_every_operation) {
    const auto& [version, transports, described, environment] = GetParam();
    describe_lab(fmt::format("gaudis = 2\nhcas = 1\n{}\n", described));
    const std::array sizes{1, 8, 4096, 65536, 1 << 20};
    std::vector<std::string> lines;
    const auto add = [&](const std::string& test, int size, const std::string& more) {
        lines.push_back(fmt::format("{0}_{1} -t {0} -s {2} -n 20 -w 2 {3}", test, lines.size(), size, more));
    };
    const bool ethernet = *described != 0; // the same messages with other addressing
    std::size_t turn = ethernet ? 1 : 0;
    for (const auto* test : {"tag_lat", "tag_bw", "stream_bw", "ucp_am_bw", "ucp_put_bw", "ucp_get"}) {
        for (const auto* memory : {"gaudi", "gaudi,host", "host,gaudi"}) {
            add(test, sizes[turn % sizes.size()], fmt::format("-m {}", memory));
            if (!ethernet)
                add(test, sizes[(turn + 2) % sizes.size()], fmt::format("-m {}", memory));
            ++turn;
        }
        if (!ethernet && test != std::string_view("tag_lat"))
            add(test, 16 << 20, "-m gaudi -O 2 -n 3");
    }
    if (!ethernet) // operand and reply in Gaudi memory, the target in host memory
        for (const auto* test : {"ucp_add", "ucp_fadd", "ucp_swap"})
            add(test, 8, "-m gaudi,host");
    add("tag_bw", 65536, "-m gaudi -T 3");
    add("tag_lat", 8, "-m gaudi -E sleep");
    add("ucp_am_bw", 1 << 20, "-m gaudi -E sleep");
    expect_lines(lines);
    const auto counted = paths_of();
    EXPECT_GT(counted.to_dmabuf, 0U); // the plugin was used: zero-copy messages, or small copies by the NIC
    EXPECT_GT(counted.staged, 0U);
}
// labels: waits
INSTANTIATE_TEST_SUITE_P(ucx, perftest_round,
                         ::testing::Values(path{"1.22", "tcp", "", ""}, path{"1.23", "posix,cma", "", ""},
                                           path{"1.23", "rc_v", "", ""}, path{"1.23", "ud_v", "", ""},
                                           path{"1.23", "rc_v", "link_layer = ethernet", ""},
                                           path{"1.23", "ud_v", "link_layer = ethernet", ""}),
                         name_of_path);
// labels: full
INSTANTIATE_TEST_SUITE_P(other_version, perftest_round,
                         ::testing::Values(path{"1.23", "tcp", "", ""}, path{"1.22", "posix,cma", "", ""}),
                         name_of_path);

// Gaudi3 has no queues: a NIC in loopback carries the tool's copies, and what UCX stages.
class perftest_of_gaudi3 : public perftest_test {};
TEST_P(perftest_of_gaudi3, runs) {
    describe_lab("gaudis = 2\nhcas = 1\ngeneration = gaudi3\n");
    expect_all("tag_bw ucp_put_bw ucp_get", "8 1048576", "-n 20 -w 2 -m gaudi");
}
INSTANTIATE_TEST_SUITE_P(ucx, perftest_of_gaudi3,
                         ::testing::Values(path{"1.22", "tcp", "", ""}, path{"1.23", "rc_v", "", ""}),
                         name_of_path);

class perftest_gibibyte : public perftest_test {};
// labels: full
TEST_P(perftest_gibibyte, is_sent) {
    expect_all("tag_bw", "1073741824", fmt::format("-n 1 -w 0 -O 1 {}", GetParam().more));
}
INSTANTIATE_TEST_SUITE_P(ucx, perftest_gibibyte,
                         ::testing::Values(path{"1.22", "tcp", "-m gaudi", ""},
                                           path{"1.22", "posix,cma", "-m gaudi,host", ""},
                                           path{"1.23", "rc_v", "-m gaudi", ""}),
                         name_of_path);

class perftest_of_a_gibibyte : public perftest_test {};
// labels: full
TEST_P(perftest_of_a_gibibyte, runs) {
    expect_all("tag_bw ucp_put_bw ucp_get stream_bw ucp_am_bw", "1073741824",
               fmt::format("-n 2 -w 1 {}", GetParam().more));
}
INSTANTIATE_TEST_SUITE_P(whole_matrix, perftest_of_a_gibibyte,
                         ::testing::Values(path{"1.22", "tcp", "-m gaudi -O 1", ""},
                                           path{"1.23", "tcp", "-m gaudi -O 1", ""},
                                           path{"1.22", "posix,cma", "-m gaudi -O 1", ""},
                                           path{"1.23", "posix,cma", "-m gaudi -O 1", ""},
                                           path{"1.23", "rc_v", "-m gaudi -O 1", ""},
                                           path{"1.23", "rc_v", "-m host,gaudi -O 1", ""},
                                           path{"1.22", "posix,gaudi_ipc", "-m gaudi -O 1", ""}),
                         name_of_path);

// ---- NIXL ----

class nixl : public ucx_test, public ::testing::WithParamInterface<const char*> {};
TEST_P(nixl, moves_memory_of_the_library) {
    const std::string folder = NIXL_FOLDER;
    auto environment = counting();
    environment.push_back(fmt::format("UCX_TLS={},gaudi_cpy", GetParam()));
    environment.push_back(devices_for(GetParam()));
    environment.push_back("NIXL_PLUGIN_DIR=" + folder + "/.nixl_cu12.mesonpy.libs/plugins");
    const std::vector<std::size_t> sizes = {4096, 1 << 20, 256 << 20};
    const auto done =
        run(new_ucx,
            fmt::format("/usr/bin/python3 {}/tests/ucx/programs/nixl_peers.py {}/nixl_cu12 {} {}",
                        SOURCE_FOLDER, folder, LIBGAUDI_DIRECT, fmt::join(sizes, " ")),
            environment, 120);
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "active: ");
    EXPECT_HAS(done.output, "passive: ");
    std::uint64_t moved = 0;
    for (const auto size : sizes)
        moved += 2 * size; // READ and WRITE
    const auto counted = paths_of();
    const bool network = std::string_view(GetParam()) == "rc_v";
    EXPECT_EQ(counted.to_dmabuf, moved);
    if (network)
        EXPECT_EQ(counted.from_dmabuf, moved);
    else // the NIC in loopback copies UCX's fragments, and reads a byte after each write
        EXPECT_GE(counted.from_dmabuf, moved);
    if (network)
        EXPECT_EQ(counted.staged, 0U);
    else // twice that, unless NIXL exits with an open context: its domain then prints no counters
        EXPECT_GE(counted.staged, moved);
}
INSTANTIATE_TEST_SUITE_P(over, nixl, ::testing::Values("tcp", "rc_v"),
                         [](const auto& each) { return name_of(each.param); });

} // namespace
