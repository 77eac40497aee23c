// SPDX-License-Identifier: BSD-3-Clause
// The plugin under stock UCX: 1.22 (no InfiniBand) and 1.23 (with libuct_ib). Our own program checks every
// byte.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;
// ---- what a user sees first ----

class both_versions : public ucx_test, public ::testing::WithParamInterface<const char*> {
protected:
    [[nodiscard]] std::string prefix() const { return prefix_of(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(ucx, both_versions, ::testing::Values("1.22", "1.23"),
                         [](const auto& each) { return name_of(each.param); });

TEST_P(both_versions, info_shows_the_memory_domain_and_its_transport) {
    const auto shown = run(prefix(), "ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    const auto at = shown.output.find("# Memory domain: gaudi_copy\n");
    ASSERT_NE(at, std::string::npos) << shown.output;
    const auto block = shown.output.substr(at, 1500);
    for (const auto* line :
         {"#     Component: gaudi_copy\n", "#             allocate: unlimited\n",
          "#             register: unlimited", "gaudi (access,alloc,reg,cache,detect,dmabuf)",
          "#      Transport: gaudi_cpy\n", "#         Device: gaudi_copy\n",
          "#           Type: accelerator\n", "put_short: <= 256\n", "put_bcopy: <= 32K\n", "put_zcopy: <= 1G",
          "get_short: <= 256\n", "get_bcopy: <= 32K\n", "get_zcopy: <= 1G"})
        EXPECT_HAS(block, line);
    const auto version = run(prefix(), "ucx_info -v");
    EXPECT_HAS(version.output, fmt::format("Library version: {}.0", GetParam()));
}

TEST_P(both_versions, settings_are_listed_with_their_help) {
    const auto shown = run(prefix(), "ucx_info -cf");
    for (const auto* line :
         {"UCX_GAUDI_COPY_DMABUF=try\n", "UCX_GAUDI_COPY_DEVICE=auto\n", "UCX_GAUDI_COPY_HEAP_CHUNK=auto\n",
          "UCX_GAUDI_COPY_QUEUES=2\n", "UCX_GAUDI_COPY_NIC_MAX=32K\n", "UCX_GAUDI_COPY_LOG_LEVEL=\n",
          "UCX_GAUDI_COPY_STATISTICS=n\n", "UCX_GAUDI_COPY_SHORT_MAX=256\n", "UCX_GAUDI_COPY_BCOPY_MAX=32K\n",
          "UCX_GAUDI_COPY_ZCOPY_MAX=1G\n", "# Give DMA-BUFs of Gaudi memory to network transports"})
        EXPECT_HAS(shown.output, line);
}

TEST_P(both_versions, limits_are_what_is_set) {
    const auto shown =
        run(prefix(), "ucx_info -d",
            {"UCX_GAUDI_COPY_SHORT_MAX=100", "UCX_GAUDI_COPY_BCOPY_MAX=2k", "UCX_GAUDI_COPY_ZCOPY_MAX=64k"});
    for (const auto* line : {"put_short: <= 100\n", "get_short: <= 100\n", "put_bcopy: <= 2K\n",
                             "get_bcopy: <= 2K\n", "put_zcopy: <= 64K", "get_zcopy: <= 64K"})
        EXPECT_HAS(shown.output, line);
    EXPECT_HAS_NOT(shown.output, "WARN");
}

TEST_P(both_versions, ucx_reckons_with_what_the_tool_measured) {
    const auto measured = run(prefix(), GAUDI_DIRECT_TOOL " measure --json");
    ASSERT_EQ(measured.status, 0) << measured.output;
    const auto settings = nlohmann::json::parse(measured.output)["settings"];
    std::vector<std::string> environment;
    for (const auto& [name, value] : settings.items())
        environment.push_back(name + "=" + value.get<std::string>());
    const auto number = [&](const char* name) { return std::stoul(settings.at(name).get<std::string>()); };
    const auto shown = run(prefix(), "ucx_info -d", environment);
    EXPECT_HAS_NOT(shown.output, "unused environment variable");
    for (const auto* transport : {"cpy", "dma"}) {
        const auto at = shown.output.find(fmt::format("#      Transport: gaudi_{}\n", transport));
        ASSERT_NE(at, std::string::npos) << shown.output;
        const auto block = shown.output.substr(at, 400);
        const bool dma = transport == std::string_view("dma");
        EXPECT_HAS(block, fmt::format("latency: {} nsec\n",
                                      number(dma ? "UCX_GAUDI_DMA_LATENCY" : "UCX_GAUDI_COPY_LATENCY")));
        EXPECT_HAS(block, fmt::format("overhead: {} nsec\n",
                                      number(dma ? "UCX_GAUDI_DMA_OVERHEAD" : "UCX_GAUDI_COPY_OVERHEAD")));
        const auto speed = number(dma ? "UCX_GAUDI_DMA_BW" : "UCX_GAUDI_COPY_BW_TO_DEVICE");
        EXPECT_HAS(block, fmt::format("bandwidth: {}.00/ppn", speed));
    }
}

// No lab at all: only UCX and the plugin.
std::vector<std::string> without_lab(const std::string& prefix, const std::string& command) {
    return words(fmt::format("env -u GAUDI_DIRECT_HLTHUNK LD_LIBRARY_PATH={}/lib UCX_PLUGIN_PATH={} {}",
                             prefix, PLUGIN_FOLDER, command));
}

TEST_P(both_versions, nothing_is_said_or_shown_without_a_gaudi) {
    const auto command = prefix() + "/bin/ucx_info -d";
    const auto with = run_program(without_lab(prefix(), command));
    EXPECT_EQ(with.status, 0);
    EXPECT_HAS_NOT(with.output, "gaudi_copy");
    EXPECT_HAS_NOT(with.output, "GAUDI");
    const auto loud = run_program(without_lab(prefix(), "UCX_LOG_LEVEL=debug " + command));
    EXPECT_HAS(loud.output, "no Gaudi:"); // it was there, and looked
}

TEST_P(both_versions, host_memory_goes_its_way_without_a_gaudi) {
    for (const auto* transports : {"tcp", "posix,cma"}) {
        SCOPED_TRACE(transports);
        const auto command = fmt::format(
            "UCX_TLS={} UCX_NET_DEVICES=lo {} --here host --there host --rounds 1", transports, UCP_PEERS);
        expect_right(run_program(without_lab(prefix(), command)));
    }
}

// ---- every byte, every way ----

struct way {
    const char* version;
    const char* transports;
    const char* more;
    const char* environment;
};

class data : public ucx_test, public ::testing::WithParamInterface<way> {};
TEST_P(data, is_right) {
    const auto& [version, transports, more, environment] = GetParam();
    const auto prefix = prefix_of(version);
    expect_right(peers(prefix, transports, more, words(environment)));
}
std::string name_of_way(const ::testing::TestParamInfo<way>& info) {
    return name_of(fmt::format("{} {} {} {}", info.param.version, info.param.transports, info.param.more,
                               info.param.environment));
}
INSTANTIATE_TEST_SUITE_P(
    staged, data,
    ::testing::Values(
        way{"1.22", "tcp", "", ""}, way{"1.23", "tcp", "", ""}, way{"1.22", "posix,cma", "", ""},
        way{"1.23", "posix,cma", "", ""}, way{"1.22", "sysv", "--rounds 1", ""},
        way{"1.23", "sysv", "--rounds 1 --sizes 8,4097,1m", ""},
        way{"1.22", "tcp", "--here host --rounds 1", ""}, way{"1.23", "tcp", "--there host --rounds 1", ""},
        way{"1.23", "posix,cma", "--here host --rounds 1", ""},
        way{"1.22", "posix,cma", "--there host --rounds 1", ""}, way{"1.22", "tcp", "--sleep --rounds 1", ""},
        way{"1.22", "tcp", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
        way{"1.22", "tcp", "--library --rounds 1", ""},
        way{"1.22", "tcp", "--rounds 1", "UCX_MEMTYPE_CACHE=n"},
        way{"1.22", "tcp", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=0"},
        way{"1.22", "tcp", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=inf"},
        way{"1.23", "rc_v", "--rounds 1", "UCX_GAUDI_COPY_DMABUF=no"}, way{"1.23", "ud_v", "--rounds 1", ""},
        way{"1.23", "ud_v", "--sleep --rounds 1 --sizes 8,4097,1m", ""},
        way{"1.23", "ud_v", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
        way{"1.23", "tcp", "--sleep --rounds 1 --sizes 8,4097,1m", ""},
        way{"1.23", "tcp", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
        // As UCX is without our haste: code that is patched, which memory of the library comes and goes
        // under.
        way{"1.22", "tcp", "--library --rounds 1", "UCX_MEM_MMAP_HOOK_MODE=bistro"}),
    name_of_way);
INSTANTIATE_TEST_SUITE_P(
    threads_on_one_worker, data,
    ::testing::Values(
        way{"1.22", "tcp",
            "--one-worker --threads 4 --rounds 2 --sizes 8,4096,1m --operations put,get,tag,am", ""},
        way{"1.23", "posix,cma",
            "--one-worker --threads 4 --rounds 2 --sizes 8,4096,1m --operations put,get,tag,am", ""},
        way{"1.23", "rc_v",
            "--one-worker --threads 4 --rounds 4 --sizes 8,4096,1m --operations put,get,tag,am", ""}),
    name_of_way);
INSTANTIATE_TEST_SUITE_P(
    infiniband, data,
    ::testing::Values(way{"1.23", "rc_v", "", ""}, way{"1.23", "rc_v", "--here host --rounds 1", ""},
                      way{"1.23", "rc_v", "--there host --rounds 1", ""},
                      way{"1.23", "rc_v", "--sleep --rounds 1", ""},
                      way{"1.23", "rc_v", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
                      way{"1.23", "rc_v", "--library --rounds 1", ""},
                      way{"1.23", "rc_v", "--rounds 1", "UCX_MEMTYPE_CACHE=n"},
                      way{"1.23", "rc_v", "--library --rounds 1", "UCX_MEM_MMAP_HOOK_MODE=bistro"},
                      way{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_SCHEME=put_zcopy"},
                      way{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_SCHEME=get_zcopy"},
                      way{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_SCHEME=am"},
                      way{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=0"},
                      way{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=inf"},
                      way{"1.23", "rc_v,ud_v,tcp,posix,cma", "--rounds 1", ""}),
    name_of_way);
INSTANTIATE_TEST_SUITE_P(
    one_gibibyte, data,
    ::testing::Values(
        way{"1.22", "tcp", "--sizes 1g --rounds 1 --operations tag", ""},
        way{"1.22", "posix,cma", "--sizes 1g --rounds 1 --operations tag", ""},
        way{"1.23", "rc_v", "--sizes 1g --rounds 1 --operations put,get,tag", ""},
        way{"1.22", "posix,gaudi_ipc", "--sizes 1g --rounds 1 --operations put,get,tag", ""},
        way{"1.23", "posix,gaudi_ipc,gaudi_dma", "--sizes 1g --rounds 1 --operations put,get,tag", ""},
        way{"1.22", "posix,gaudi_ipc,gaudi_dma", "--sizes 1g --rounds 1 --operations put,get,tag,am", ""},
        way{"1.23", "posix,gaudi_ipc", "--sizes 1g --rounds 1 --operations put,get,tag,am", ""},
        way{"1.23", "posix,gaudi_dma", "--sizes 1g --rounds 1 --operations tag", ""},
        way{"1.23", "tcp", "--sizes 1g --rounds 1 --operations tag,am", ""},
        way{"1.23", "posix,cma", "--sizes 1g --rounds 1 --operations tag,stream", ""}),
    name_of_way);

TEST_F(ucx_test, data_is_right_where_each_process_has_two_devices) {
    describe_lab("gaudis = 4\nhcas = 1\n");
    for (const auto* version : {"1.22", "1.23"})
        for (const auto* transports : {"tcp", "posix,cma", "posix,gaudi_ipc", "posix,gaudi_dma", "rc_v"})
            if (version == std::string_view("1.23") || transports != std::string_view("rc_v")) {
                SCOPED_TRACE(fmt::format("{} {}", version, transports));
                expect_right(
                    peers(prefix_of(version), transports, "--devices 2 --rounds 1 --sizes 8,4097,1m,9m"));
            }
}

TEST_F(ucx_test, data_is_right_over_roce) {
    describe_lab("gaudis = 2\nhcas = 1\nlink_layer = ethernet\n");
    expect_right(peers(new_ucx, "rc_v", "--rounds 1"));
    expect_right(peers(new_ucx, "ud_v", "--rounds 1 --sizes 8,4097,1m"));
}

// ---- zero-copy, proved ----

TEST_F(ucx_test, zero_copy_is_what_the_nic_counts) {
    const auto moved = 3ULL * (1 << 20); // put, get and tag, 1 MiB each
    const auto direct = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations put,get,tag", counting());
    EXPECT_EQ(direct.status, 0) << direct.output;
    const auto zero = ways_of();
    EXPECT_EQ(zero.from_dmabuf, moved);
    EXPECT_EQ(zero.to_dmabuf, moved);
    EXPECT_EQ(zero.staged, 0U);
    EXPECT_GT(zero.exports, 0U);
    EXPECT_LT(zero.bytes, moved + 65536); // nothing but them and UCX's own messages

    forget_counts();
    auto without = counting();
    without.emplace_back("UCX_GAUDI_COPY_DMABUF=no");
    const auto indirect = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations put,get,tag", without);
    EXPECT_EQ(indirect.status, 0) << indirect.output;
    const auto staged = ways_of();
    EXPECT_EQ(staged.from_dmabuf, 0U);
    EXPECT_EQ(staged.to_dmabuf, 0U);
    EXPECT_EQ(staged.staged, 2 * moved); // out of one device, into the other
    EXPECT_EQ(staged.exports, 0U);
}

TEST_F(ucx_test, ucx_itself_says_zero_copy) {
    const auto shown = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations tag", {"UCX_PROTO_INFO=y"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_TRUE(
        std::regex_search(shown.output, std::regex("inf \\| .*zero-copy read from remote *\\| rc_verbs")))
        << shown.output;
}

TEST_F(ucx_test, the_near_nic_carries_gaudi_memory) {
    describe_lab("gaudis = 2\nhcas = 2\n[hca 0]\nbus_id = 0000:1c:00.0\n[hca 1]\nbus_id = 0000:1b:00.0\n");
    for (const auto& [device, near, far] :
         {std::tuple("0", "vhca1:1", "vhca0:1"), std::tuple("1", "vhca0:1", "vhca1:1")}) {
        SCOPED_TRACE(fmt::format("Gaudi {}", device));
        const auto port = free_port();
        const auto program = [&](const char* on, const char* host) {
            auto command =
                lab(new_ucx,
                    fmt::format(
                        "env UCX_TLS=rc_v,gaudi_cpy UCX_PROTO_INFO=y UCX_GAUDI_COPY_DEVICE={} ucx_perftest "
                        "-p {} -w 5 -n 20 -t tag_bw -s 1048576 -m gaudi,host {}",
                        on, port, host));
            command.insert(command.begin(), SOURCE_FOLDER "/tests/ucx/near_nic.sh");
            return command;
        };
        const auto both =
            run_both(program(device == std::string("0") ? "1" : "0", ""), program(device, "localhost"), port);
        if (both.client.status == 77)
            GTEST_SKIP() << "no mount namespaces here";
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        const auto& said = both.client.output;
        const auto at = said.find(fmt::format("by ucp_tag_send*(multi) from gaudi/GAUDI_{}", device));
        ASSERT_NE(at, std::string::npos) << said;
        std::smatch line;
        const auto block = said.substr(at);
        ASSERT_TRUE(std::regex_search(block, line, std::regex("inf \\|.*rendezvous zero-copy.*"))) << block;
        EXPECT_HAS(line.str(), near);
        EXPECT_HAS_NOT(line.str(), far);
    }
}

TEST_F(ucx_test, the_lower_layer_alone_moves_memory_without_a_copy) {
    const auto shown =
        run(new_ucx, EXAMPLE_UCT_PUT, {"GAUDI_LAB_HCA_REPORT=" + (root() / "report").string()});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "put_zcopy of 1048576 bytes from HBM to HBM over rc_verbs: data right");
    EXPECT_EQ(ways_of().from_dmabuf, 1U << 20);
    EXPECT_EQ(ways_of().to_dmabuf, 1U << 20);
}

// ---- ucx_perftest ----

class perftest_test : public ucx_test, public ::testing::WithParamInterface<way> {};
TEST_P(perftest_test, passes) {
    const auto& [version, transports, more, environment] = GetParam();
    const auto prefix = prefix_of(version);
    const auto port = free_port();
    const auto program = fmt::format("env {} UCX_TLS={},gaudi_cpy {} ucx_perftest -p {} -w 5 {}",
                                     devices_for(transports), transports, environment, port, more);
    const auto both = run_both(lab(prefix, program), lab(prefix, program + " localhost"), port);
    EXPECT_EQ(both.server.status, 0) << both.server.output;
    EXPECT_EQ(both.client.status, 0) << both.client.output;
    EXPECT_HAS(both.client.output, "Final:");
    EXPECT_HAS_NOT(both.client.output, "ERROR");
    EXPECT_HAS_NOT(both.server.output, "ERROR");
}
INSTANTIATE_TEST_SUITE_P(
    ucx, perftest_test,
    ::testing::Values(way{"1.22", "tcp", "-t tag_bw -m gaudi -n 20 -s 1048576", ""},
                      way{"1.22", "tcp", "-t tag_lat -m gaudi,host -n 50", ""},
                      way{"1.22", "posix,cma", "-t ucp_put_bw -m gaudi -n 20 -s 65536", ""},
                      way{"1.22", "posix,cma", "-t ucp_get -m host,gaudi -n 20 -s 65536", ""},
                      way{"1.22", "tcp", "-t stream_bw -m gaudi -n 20 -s 65536", ""},
                      way{"1.23", "tcp", "-t tag_bw -m gaudi -n 20 -s 1048576", ""},
                      way{"1.23", "posix,cma", "-t tag_bw -m host,gaudi -n 20 -s 1048576", ""},
                      way{"1.23", "rc_v", "-t stream_bw -m gaudi -n 20 -s 65536", ""},
                      way{"1.23", "rc_v", "-t ucp_am_lat -m gaudi,host -n 20", ""},
                      way{"1.23", "rc_v", "-t tag_bw -m gaudi -n 50 -s 1048576 -T 3", ""},
                      way{"1.23", "rc_v", "-t tag_bw -m gaudi -n 50 -s 1048576", ""},
                      way{"1.23", "rc_v", "-t tag_lat -m gaudi -n 50", ""},
                      way{"1.23", "rc_v", "-t ucp_put_bw -m gaudi,host -n 50 -s 1048576", ""},
                      way{"1.23", "rc_v", "-t ucp_put_lat -m gaudi -n 20", ""},
                      way{"1.23", "rc_v", "-t ucp_get -m host,gaudi -n 50 -s 1048576", ""},
                      way{"1.23", "rc_v", "-t ucp_am_bw -m gaudi -n 50 -s 1048576", ""},
                      way{"1.23", "rc_v", "-t tag_lat -m gaudi -n 50 -E sleep", ""},
                      way{"1.23", "ud_v", "-t tag_bw -m gaudi -n 20 -s 65536", ""}),
    name_of_way);

// ---- NIXL ----

class nixl : public ucx_test, public ::testing::WithParamInterface<const char*> {};
TEST_P(nixl, moves_memory_of_the_library) {
    const std::string folder = NIXL_FOLDER;
    auto environment = counting();
    environment.push_back(fmt::format("UCX_TLS={},gaudi_cpy", GetParam()));
    environment.push_back(devices_for(GetParam()));
    environment.push_back("NIXL_PLUGIN_DIR=" + folder + "/.nixl_cu12.mesonpy.libs/plugins");
    const std::vector<std::size_t> sizes = {4096, 1 << 20, 256 << 20};
    const auto done = run(new_ucx,
                          fmt::format("/usr/bin/python3 {}/tests/ucx/nixl_peers.py {}/nixl_cu12 {} {}",
                                      SOURCE_FOLDER, folder, LIBGAUDI_DIRECT, fmt::join(sizes, " ")),
                          environment, 120);
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "active: ");
    EXPECT_HAS(done.output, "passive: ");
    std::uint64_t moved = 0;
    for (const auto size : sizes)
        moved += 2 * size; // READ and WRITE
    const auto counted = ways_of();
    const bool network = std::string_view(GetParam()) == "rc_v";
    EXPECT_EQ(counted.to_dmabuf, moved);
    if (network)
        EXPECT_EQ(counted.from_dmabuf, moved);
    else // the NIC in loopback copies the pieces that UCX sends, and reads a byte behind each that it writes
        EXPECT_GE(counted.from_dmabuf, moved);
    if (network)
        EXPECT_EQ(counted.staged, 0U);
    else // twice that, unless NIXL leaves a context open at its end, whose domain then says nothing
        EXPECT_GE(counted.staged, moved);
}
INSTANTIATE_TEST_SUITE_P(over, nixl, ::testing::Values("tcp", "rc_v"),
                         [](const auto& each) { return name_of(each.param); });

// ---- what is refused, and how ----

TEST_F(ucx_test, an_unknown_version_is_declined_and_ucx_works_on) {
    const auto shown = run(new_ucx, "env LD_PRELOAD=" OTHER_VERSION " ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output, "libuct_gaudi is not used: UCX 1.99.0");
    EXPECT_HAS(shown.output, "known are 1.22 and 1.23");
    EXPECT_HAS(shown.output, "# Memory domain: self");
    EXPECT_HAS_NOT(shown.output, "Memory domain: gaudi_copy");
}

TEST_P(both_versions, other_sizes_than_known_are_declined_and_ucx_works_on) {
    const auto shown = run(prefix(), "env LD_PRELOAD=" OTHER_SIZES " ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    const std::regex line(
        "libuct_gaudi is not used: UCX " + std::string(GetParam()) +
        R"(\.0 \(interface of (\d+) bytes, endpoint of (\d+)\).*1\.23 \((\d+) and (\d+)\))");
    std::smatch sizes;
    ASSERT_TRUE(std::regex_search(shown.output, sizes, line)) << shown.output;
    EXPECT_EQ(std::stoul(sizes[1]), std::stoul(sizes[3]) + sizeof(void*)) << "of interfaces";
    EXPECT_EQ(sizes[2], sizes[4]) << "of endpoints";
    EXPECT_HAS(shown.output, "# Memory domain: self");
    EXPECT_HAS_NOT(shown.output, "Memory domain: gaudi_copy");
}

TEST_F(ucx_test, two_ucx_in_one_process_share_the_devices) {
    // UCX's default: two of them that patch relocations instead patch each other's, with any plugin or none.
    const auto shown =
        run(new_ucx, fmt::format("{} {}/lib/libucp.so.0 {}/lib/libucp.so.0", TWO_UCX, old_ucx, new_ucx),
            {"UCX_MEM_MMAP_HOOK_MODE=bistro"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "UCX 1.22.0\nUCX 1.23.0\n");
    EXPECT_HAS(shown.output, "both right");
    EXPECT_HAS_NOT(shown.output, "ERROR");
}

struct bad_setting {
    const char* setting;
    const char* said;
};

TEST_F(ucx_test, settings_without_sense_are_named) {
    for (const auto& [setting, said] :
         {bad_setting{"UCX_GAUDI_COPY_QUEUES=9", "UCX_GAUDI_COPY_QUEUES=9: use 1 to 4"},
          bad_setting{"UCX_GAUDI_COPY_DEVICE=first", "UCX_GAUDI_COPY_DEVICE=first: use auto, an index"},
          bad_setting{"UCX_GAUDI_COPY_HEAP_CHUNK=0", "UCX_GAUDI_COPY_HEAP_CHUNK=0: use 1 to"},
          bad_setting{"UCX_GAUDI_COPY_LOG_LEVEL=loud", "UCX_GAUDI_COPY_LOG_LEVEL=loud: use a level"},
          bad_setting{"UCX_GAUDI_COPY_NIC_MAX=2m", "UCX_GAUDI_COPY_NIC_MAX=2097152: use 0 to 1048576 bytes"},
          bad_setting{"UCX_GAUDI_COPY_DMABUF=often", "often"}}) {
        const auto shown = peers(old_ucx, "tcp", "--sizes 8 --rounds 1 --operations tag", {setting});
        EXPECT_NE(shown.status, 0) << setting;
        EXPECT_HAS(shown.output, said);
    }
}

// Of a transport: the domain is there, and the transport does not open.
class bad_transport_setting : public ucx_test, public ::testing::WithParamInterface<bad_setting> {};
TEST_P(bad_transport_setting, is_named_and_refused) {
    const auto& [setting, said] = GetParam();
    const auto shown = run(old_ucx, "ucx_info -d", {setting});
    EXPECT_HAS(shown.output, std::string("ERROR ") + said);
    const auto* transport =
        std::string_view(setting).starts_with("UCX_GAUDI_DMA") ? "gaudi_dma" : "gaudi_cpy";
    const auto at = shown.output.find(fmt::format("#      Transport: {}\n", transport));
    ASSERT_NE(at, std::string::npos) << shown.output;
    EXPECT_HAS(shown.output.substr(at, 400), "failed to open interface");
}
INSTANTIATE_TEST_SUITE_P(
    ucx, bad_transport_setting,
    ::testing::Values(
        bad_setting{"UCX_GAUDI_COPY_SHORT_MAX=0", "UCX_GAUDI_COPY_SHORT_MAX=0: use 1 to 1m"},
        bad_setting{"UCX_GAUDI_COPY_SHORT_MAX=2m", "UCX_GAUDI_COPY_SHORT_MAX=2097152: use 1 to 1m"},
        bad_setting{"UCX_GAUDI_COPY_BCOPY_MAX=1", "UCX_GAUDI_COPY_BCOPY_MAX=1: use SHORT_MAX (256) to 1g"},
        bad_setting{"UCX_GAUDI_COPY_ZCOPY_MAX=1k",
                    "UCX_GAUDI_COPY_ZCOPY_MAX=1024: use BCOPY_MAX (32768) or more, or inf"},
        bad_setting{"UCX_GAUDI_COPY_ZCOPY_MAX=auto", "UCX_GAUDI_COPY_ZCOPY_MAX=auto: use BCOPY_MAX"},
        bad_setting{"UCX_GAUDI_COPY_BW_TO_DEVICE=0MBs",
                    "UCX_GAUDI_COPY_BW_TO_DEVICE=0: use a bandwidth of more than 0"},
        bad_setting{"UCX_GAUDI_COPY_BW_FROM_DEVICE=nanMBs",
                    "UCX_GAUDI_COPY_BW_FROM_DEVICE=nan: use a bandwidth"},
        bad_setting{"UCX_GAUDI_COPY_BW_WITHIN=-1MBs", "UCX_GAUDI_COPY_BW_WITHIN=-1048576: use a bandwidth"},
        bad_setting{"UCX_GAUDI_COPY_LATENCY=-1us", "UCX_GAUDI_COPY_LATENCY=-1e-06: use a time of 0 or more"},
        bad_setting{"UCX_GAUDI_COPY_NIC_LATENCY=nanus", "UCX_GAUDI_COPY_NIC_LATENCY=nan: use a time"},
        bad_setting{"UCX_GAUDI_COPY_OVERHEAD=infs", "UCX_GAUDI_COPY_OVERHEAD=inf: use a time"},
        bad_setting{"UCX_GAUDI_DMA_QUEUES=0", "UCX_GAUDI_DMA_QUEUES=0: use 1 to 4"},
        bad_setting{"UCX_GAUDI_DMA_QUEUES=5", "UCX_GAUDI_DMA_QUEUES=5: use 1 to 4"},
        bad_setting{"UCX_GAUDI_DMA_BATCH=0", "UCX_GAUDI_DMA_BATCH=0: use 1 to 256"},
        bad_setting{"UCX_GAUDI_DMA_BATCH=257", "UCX_GAUDI_DMA_BATCH=257: use 1 to 256"},
        bad_setting{"UCX_GAUDI_DMA_IN_FLIGHT=0", "UCX_GAUDI_DMA_IN_FLIGHT=0: use 1 or more"},
        bad_setting{"UCX_GAUDI_DMA_STRIPE=1k", "UCX_GAUDI_DMA_STRIPE=1024: use 64k or more"},
        bad_setting{"UCX_GAUDI_DMA_BW=0MBs",
                    "UCX_GAUDI_DMA_BW=0: use a bandwidth of more than 0 bytes per second"},
        bad_setting{"UCX_GAUDI_DMA_BW=nanMBs", "UCX_GAUDI_DMA_BW=nan: use a bandwidth"},
        bad_setting{"UCX_GAUDI_DMA_STRIPE=auto", "UCX_GAUDI_DMA_STRIPE="}),
    [](const auto& each) { return name_of(each.param.setting); });

TEST_F(ucx_test, no_gaudi_a_busy_one_and_a_full_one_are_said) {
    describe_lab("gaudis = 1\nhcas = 1\n");
    const auto busy = peers(old_ucx, "tcp", "--sizes 8 --rounds 1 --operations tag");
    EXPECT_NE(busy.status, 0);
    EXPECT_HAS(busy.output, "another process has the device open (busy)");
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto large = peers(old_ucx, "tcp", "--sizes 200g --rounds 1 --operations put");
    EXPECT_NE(large.status, 0);
    EXPECT_HAS(large.output, "buffer of 214748364800 bytes");
    describe_lab("gaudis = 0\nhcas = 1\n");
    const auto port = free_port();
    const auto program = fmt::format("timeout -s KILL 4 ucx_perftest -t tag_bw -m gaudi -p {}", port);
    const auto none = run_both(lab(old_ucx, program), lab(old_ucx, program + " localhost"), port).client;
    EXPECT_NE(none.status, 0);
    EXPECT_HAS(none.output, "no Gaudi: the driver finds none");
}

TEST_F(ucx_test, perftest_ends_with_a_status_where_no_device_has_queues) {
    describe_lab("gaudis = 2\ngeneration = gaudi3\nhcas = 1\n");
    const auto port = free_port();
    const auto program = fmt::format("timeout -s KILL 4 ucx_perftest -t tag_bw -m gaudi -p {}", port);
    const auto both = run_both(lab(old_ucx, program), lab(old_ucx, program + " localhost"), port);
    EXPECT_HAS(both.client.output, "Gaudi memory: no device has a queue for copies");
    EXPECT_NE(both.client.status, 0);
}

TEST_F(ucx_test, a_nic_without_dmabufs_carries_staged_memory) {
    describe_lab("gaudis = 2\nhcas = 1\n[hca 0]\ndmabuf = no\n");
    const auto done = peers(new_ucx, "rc_v", "--sizes 8,1m --rounds 1", counting());
    EXPECT_EQ(done.status, 0) << done.output;
    const auto counted = ways_of();
    EXPECT_EQ(counted.from_dmabuf + counted.to_dmabuf, 0U);
    EXPECT_GE(counted.staged, 5U << 20); // five operations
}

TEST_F(ucx_test, a_plugin_folder_that_is_not_there_disturbs_nobody) {
    const auto shown = run(new_ucx, "env UCX_PLUGIN_PATH=/no/such/folder:/nor/this/one ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output, "# Memory domain: self");
    EXPECT_HAS_NOT(shown.output, "ERROR");
    EXPECT_HAS_NOT(shown.output, "gaudi_copy");
}

TEST_F(ucx_test, an_export_that_fails_is_an_error_only_where_it_must_work) {
    std::ofstream(root() / "faults") << "hlthunk_device_mapped_memory_export_dmabuf_fd 1+ errno ENODEV\n";
    const auto faults = "GAUDI_LAB_FAULTS=@" + (root() / "faults").string();
    const auto must = peers(new_ucx, "rc_v", "--sizes 8 --rounds 1 --operations tag",
                            {faults, "UCX_GAUDI_COPY_DMABUF=yes"});
    EXPECT_NE(must.status, 0);
    EXPECT_HAS(must.output, "UCX_GAUDI_COPY_DMABUF=yes: the driver does not export the memory as a DMA-BUF");
    const auto may = peers(old_ucx, "tcp", "--sizes 8,1m --rounds 1 --operations tag,put", {faults});
    expect_right(may);
    // UCX has counted on it by then: the NIC is given a bare address, and the user told what to do.
    const auto late = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations tag", {faults});
    EXPECT_NE(late.status, 0);
    EXPECT_HAS(late.output,
               "no NIC will reach this memory (UCX_GAUDI_COPY_DMABUF=no stages all of it instead)");
    expect_right(peers(new_ucx, "rc_v", "--sizes 8,1m --rounds 1 --operations tag,put",
                       {faults, "UCX_GAUDI_COPY_DMABUF=no"}));
}

TEST_F(ucx_test, an_hlthunk_that_cannot_export_is_staged) {
    auto variables = counting();
    variables.emplace_back("UCX_TLS=rc_v,gaudi_cpy");
    const auto done = run(new_ucx,
                          fmt::format("env GAUDI_DIRECT_HLTHUNK={} {} --sizes 8,1m --rounds 1 "
                                      "--operations tag,put,get,am",
                                      HLTHUNK_WITHOUT_EXPORT, UCP_PEERS),
                          variables);
    EXPECT_EQ(done.status, 0) << done.output;
    const auto counted = ways_of();
    EXPECT_EQ(counted.from_dmabuf + counted.to_dmabuf, 0U);
    EXPECT_GE(counted.staged, 4U << 20);
}

} // namespace
