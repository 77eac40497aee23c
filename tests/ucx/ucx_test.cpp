// SPDX-License-Identifier: BSD-3-Clause
// The plugin under stock UCX: 1.22 (no InfiniBand) and 1.23 (with libuct_ib). ucp_peers checks every byte.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

// ---- ucx_info and discovery ----

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
          "UCX_GAUDI_COPY_ZCOPY_MAX=1G\n", "# Export Gaudi memory as DMA-BUFs to network transports"})
        EXPECT_HAS(shown.output, line);
}

TEST_P(both_versions, the_log_level_is_the_plugins_alone) {
    const auto loud =
        peers(prefix(), "tcp", "--sizes 8 --rounds 1 --operations put", {"UCX_GAUDI_COPY_LOG_LEVEL=debug"});
    EXPECT_EQ(loud.status, 0) << loud.output;
    EXPECT_HAS(loud.output, "GAUDI DEBUG ");
    EXPECT_HAS_NOT(loud.output, "UCX  DEBUG");
    EXPECT_HAS_NOT(loud.output, "UCX  TRACE");
    const auto quiet = peers(prefix(), "tcp", "--sizes 200g --rounds 1 --operations put",
                             {"UCX_GAUDI_COPY_LOG_LEVEL=fatal"});
    EXPECT_NE(quiet.status, 0);
    EXPECT_HAS_NOT(quiet.output, " GAUDI ");
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

// Without a lab: only UCX and the plugin.
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
    EXPECT_HAS(loud.output, "no Gaudi:"); // the plugin was loaded and searched for devices
}

TEST_P(both_versions, what_hides_every_gaudi_is_named) {
    const auto hidden = run(prefix(), "ucx_info -d", {"HABANA_VISIBLE_DEVICES=5"});
    EXPECT_EQ(hidden.status, 0);
    EXPECT_HAS_NOT(hidden.output, "GAUDI"); // may be intended
    const auto loud = run(prefix(), "ucx_info -d", {"HABANA_VISIBLE_DEVICES=5", "UCX_LOG_LEVEL=debug"});
    EXPECT_HAS(loud.output, "no Gaudi: hl-thunk finds none, or none that HABANA_VISIBLE_DEVICES and");
    const auto malformed = run(prefix(), "ucx_info -d", {"HABANA_VISIBLE_DEVICES=x"});
    EXPECT_EQ(malformed.status, 0);
    const std::regex line("GAUDI +WARN +no Gaudi: .*HABANA_VISIBLE_DEVICES=x: 'x' is no number");
    EXPECT_EQ(std::distance(std::sregex_iterator(malformed.output.begin(), malformed.output.end(), line), {}),
              1)
        << malformed.output;
}

TEST_P(both_versions, host_memory_is_transferred_without_a_gaudi) {
    for (const auto* transports : {"tcp", "posix,cma"}) {
        SCOPED_TRACE(transports);
        const auto command = fmt::format(
            "UCX_TLS={} UCX_NET_DEVICES=lo {} --here host --there host --rounds 1", transports, UCP_PEERS);
        expect_right(run_program(without_lab(prefix(), command)));
    }
}

// ---- every byte, every path ----

class data : public ucx_test, public ::testing::WithParamInterface<path> {};
TEST_P(data, is_right) {
    const auto& [version, transports, more, environment] = GetParam();
    const auto prefix = prefix_of(version);
    expect_right(peers(prefix, transports, more, words(environment)));
}
INSTANTIATE_TEST_SUITE_P(
    staged, data,
    ::testing::Values(path{"1.22", "tcp", "", ""}, path{"1.23", "tcp", "", ""},
                      path{"1.22", "posix,cma", "", ""}, path{"1.23", "posix,cma", "", ""},
                      path{"1.22", "sysv", "--rounds 1", ""},
                      path{"1.23", "sysv", "--rounds 1 --sizes 8,4097,1m", ""},
                      path{"1.22", "tcp", "--here host --rounds 1", ""},
                      path{"1.23", "tcp", "--there host --rounds 1", ""},
                      path{"1.23", "posix,cma", "--here host --rounds 1", ""},
                      path{"1.22", "posix,cma", "--there host --rounds 1", ""},
                      path{"1.22", "tcp", "--sleep --rounds 1", ""},
                      path{"1.22", "tcp", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
                      path{"1.22", "tcp", "--library --rounds 1", ""},
                      path{"1.22", "tcp", "--rounds 1", "UCX_MEMTYPE_CACHE=n"},
                      path{"1.22", "tcp", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=0"},
                      path{"1.22", "tcp", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=inf"},
                      path{"1.23", "rc_v", "--rounds 1", "UCX_GAUDI_COPY_DMABUF=no"},
                      path{"1.23", "ud_v", "--rounds 1", ""},
                      path{"1.23", "ud_v", "--sleep --rounds 1 --sizes 8,4097,1m", ""},
                      path{"1.23", "ud_v", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
                      path{"1.23", "tcp", "--sleep --rounds 1 --sizes 8,4097,1m", ""},
                      path{"1.22", "posix,cma", "--sleep --rounds 1 --sizes 8,4097,1m", ""},
                      path{"1.23", "posix,cma", "--sleep --rounds 1 --sizes 8,4097,1m", ""},
                      path{"1.22", "tcp", "--rounds 1 --sizes 16m,100m --operations put,get,tag", ""},
                      path{"1.23", "posix,cma", "--rounds 1 --sizes 16m,100m --operations stream,am", ""},
                      path{"1.23", "tcp", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
                      // More fragments in flight than the limit of gaudi_dma for requests that can wait.
                      path{"1.22", "posix,gaudi_dma", "--rounds 1 --sizes 64m --operations tag",
                           "UCX_GAUDI_DMA_IN_FLIGHT=8"},
                      path{"1.23", "posix,gaudi_dma", "--rounds 1 --sizes 64m --operations tag",
                           "UCX_GAUDI_DMA_IN_FLIGHT=8"},
                      // UCX's default hooks (see shorten_ucx_timeouts()): it patches code while the library
                      // allocates and frees memory.
                      path{"1.22", "tcp", "--library --rounds 1", "UCX_MEM_MMAP_HOOK_MODE=bistro"}),
    name_of_path);
// UCX gets only addresses, with and without its memory-type cache.
INSTANTIATE_TEST_SUITE_P(detected, data, ::testing::ValuesIn([] {
                             std::vector<path> all;
                             for (const auto& [version, transports] :
                                  {std::pair("1.22", "tcp"), std::pair("1.23", "posix,cma"),
                                   std::pair("1.23", "rc_v"), std::pair("1.22", "posix,gaudi_ipc")})
                                 for (const auto* memory : {"--bare --rounds 1 --sizes 8,4097,1m",
                                                            "--bare --rounds 1 --sizes 8,4097,1m --library",
                                                            "--bare --rounds 1 --sizes 8,4097,1m --synapse"})
                                     for (const auto* cache : {"UCX_MEMTYPE_CACHE=y", "UCX_MEMTYPE_CACHE=n"})
                                         all.push_back({version, transports, memory, cache});
                             return all;
                         }()),
                         [](const auto& each) {
                             const std::string_view more = each.param.more;
                             return name_of(fmt::format("{} {} {} {}", each.param.version,
                                                        each.param.transports,
                                                        more.ends_with("library")           ? "library"
                                                        : more.find("synapse") != more.npos ? "synapse"
                                                                                            : "ucx",
                                                        each.param.environment));
                         });
INSTANTIATE_TEST_SUITE_P(
    several_contexts, data,
    ::testing::Values(path{"1.22", "posix,cma", "--own-contexts --threads 3 --rounds 1 --sizes 8,4096,1m",
                           ""},
                      path{"1.23", "tcp", "--own-contexts --threads 3 --rounds 1 --sizes 8,4096,1m", ""},
                      path{"1.23", "rc_v", "--own-contexts --threads 3 --rounds 1 --sizes 8,4096,1m", ""}),
    name_of_path);
INSTANTIATE_TEST_SUITE_P(
    shared_worker, data,
    ::testing::Values(
        path{"1.22", "tcp",
             "--one-worker --threads 4 --rounds 2 --sizes 8,4096,1m --operations put,get,tag,am", ""},
        path{"1.23", "posix,cma",
             "--one-worker --threads 4 --rounds 2 --sizes 8,4096,1m --operations put,get,tag,am", ""},
        path{"1.23", "rc_v",
             "--one-worker --threads 4 --rounds 4 --sizes 8,4096,1m --operations put,get,tag,am", ""}),
    name_of_path);
INSTANTIATE_TEST_SUITE_P(
    infiniband, data,
    ::testing::Values(path{"1.23", "rc_v", "", ""}, path{"1.23", "rc_v", "--here host --rounds 1", ""},
                      path{"1.23", "rc_v", "--there host --rounds 1", ""},
                      path{"1.23", "rc_v", "--sleep --rounds 1", ""},
                      path{"1.23", "rc_v", "--threads 3 --rounds 1 --sizes 8,4096,1m", ""},
                      path{"1.23", "rc_v", "--library --rounds 1", ""},
                      path{"1.23", "rc_v", "--rounds 1", "UCX_MEMTYPE_CACHE=n"},
                      path{"1.23", "rc_v", "--library --rounds 1", "UCX_MEM_MMAP_HOOK_MODE=bistro"},
                      path{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_SCHEME=put_zcopy"},
                      path{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_SCHEME=get_zcopy"},
                      path{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_SCHEME=am"},
                      path{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=0"},
                      path{"1.23", "rc_v", "--rounds 1 --operations tag,am", "UCX_RNDV_THRESH=inf"},
                      path{"1.23", "rc_v,ud_v,tcp,posix,cma", "--rounds 1", ""}),
    name_of_path);
// labels: full
INSTANTIATE_TEST_SUITE_P(
    one_gibibyte, data,
    ::testing::Values(path{"1.22", "tcp", "--sizes 1g --rounds 1 --operations tag", ""},
                      path{"1.23", "tcp", "--sizes 1g --rounds 1 --operations am", ""},
                      path{"1.22", "posix,cma", "--sizes 1g --rounds 1 --operations put", ""},
                      path{"1.23", "posix,cma", "--sizes 1g --rounds 1 --operations stream", ""},
                      path{"1.23", "ud_v", "--sizes 1g --rounds 1 --operations get", ""},
                      path{"1.23", "rc_v", "--sizes 1g --rounds 1", ""}),
    name_of_path);
// labels: full
INSTANTIATE_TEST_SUITE_P(every_gibibyte, data, ::testing::ValuesIn([] {
                             std::vector<path> all;
                             for (const auto* version : {"1.22", "1.23"})
                                 for (const auto* transports :
                                      {"tcp", "posix,cma", "posix,gaudi_ipc", "posix,gaudi_dma",
                                       "posix,gaudi_ipc,gaudi_dma"})
                                     all.push_back({version, transports, "--sizes 1g --rounds 1", ""});
                             all.push_back({"1.23", "ud_v", "--sizes 1g --rounds 1", ""});
                             return all;
                         }()),
                         name_of_path);

// Operand and reply are Gaudi memory, the target is host memory.
INSTANTIATE_TEST_SUITE_P(atomics, data, ::testing::ValuesIn([] {
                             std::vector<path> all;
                             for (const auto& [version, transports] :
                                  {std::pair("1.22", "tcp"), std::pair("1.23", "tcp"),
                                   std::pair("1.22", "posix,cma"), std::pair("1.23", "posix,cma"),
                                   std::pair("1.23", "rc_v"), std::pair("1.23", "ud_v")})
                                 for (const auto* more :
                                      {"--operations atomic --sizes 4,8 --there host",
                                       "--operations atomic --sizes 4,8 --there host --library --bare"})
                                     all.push_back({version, transports, more, ""});
                             return all;
                         }()),
                         name_of_path);

// docs/ucx.md, "Is it zero-copy?": one row for each set of transports, one column for each operation.
TEST_F(ucx_test, the_table_of_operations_is_true) {
    const auto text = text_of(SOURCE_FOLDER "/docs/ucx.md");
    const auto cells_of = [](const std::string& line) {
        std::vector<std::string> cells;
        const std::regex cell(R"(\| *`?([^|`]*[^|` ])`? *(?=\|))");
        for (std::sregex_iterator each(line.begin(), line.end(), cell), end; each != end; ++each)
            cells.push_back((*each)[1]);
        return cells;
    };
    const auto begin = text.find("| transports | put |");
    ASSERT_NE(begin, text.npos);
    std::istringstream table(text.substr(begin));
    std::string line;
    std::getline(table, line);
    const auto operations = cells_of(line);
    ASSERT_EQ(operations.size(), 6U) << line;
    std::getline(table, line); // the separator row
    unsigned rows = 0;
    for (; std::getline(table, line) && line.starts_with("| "); ++rows) {
        const auto row = cells_of(line);
        ASSERT_EQ(row.size(), operations.size()) << line;
        for (std::size_t i = 1; i < row.size(); ++i) {
            forget_counts();
            auto settings = counting();
            settings.emplace_back("UCX_GAUDI_COPY_NIC_MAX=0"); // the NIC makes no copies to host memory
            const auto done =
                peers(new_ucx, row[0], fmt::format("--sizes 1m --rounds 2 --operations {}", operations[i]),
                      settings);
            ASSERT_EQ(done.status, 0) << done.output;
            constexpr std::uint64_t payload = 2 << 20;
            const auto counted = paths_of();
            const auto sides = (counted.staged + counted.dma + payload / 2) / payload;
            const auto* found = sides == 0 ? "zero-copy" : sides == 1 ? "receiver" : "both";
            EXPECT_EQ(row[i], found) << operations[i] << " over " << row[0] << ": " << counted.staged
                                     << " bytes staged";
            // The NIC, which gaudi_ipc uses too, moved every byte from Gaudi to Gaudi memory.
            if (sides == 0) {
                EXPECT_GE(std::min(counted.from_dmabuf, counted.to_dmabuf), payload);
            } else if (sides == 1) { // the NIC read the sender's memory directly; the receiver staged
                EXPECT_GE(counted.from_dmabuf, payload);
                EXPECT_LT(counted.to_dmabuf, payload);
            }
        }
    }
    EXPECT_EQ(rows, 5U);
}

// Gotcha U18: libucs_gaudi makes a setting on machines with a GPU and a Gaudi, unless the user made it.
TEST_P(both_versions, fragments_stay_in_host_memory_where_a_gpu_is) {
    const auto setting = [&](const std::string& with, const std::string& info = "ucx_info -c -a") {
        auto command = lab(prefix(), info);
        std::vector<std::string> environment{"GAUDI_DIRECT_HLTHUNK"};
        if (!with.empty()) {
            command.insert(command.begin(), SOURCE_FOLDER "/tests/ucx/programs/with_nvidiactl.sh");
            environment.push_back(with);
        }
        const auto shown = run_program(command, environment);
        EXPECT_TRUE(shown.status == 0 || shown.status == 77) << shown.output;
        std::smatch found;
        if (shown.status == 77 ||
            !std::regex_search(shown.output, found, std::regex("UCX_RNDV_FRAG_MEM_TYPES=(\\S*)")))
            return std::string("none");
        return found[1].str();
    };
    EXPECT_EQ(setting(""), "host,cuda") << "UCX's own";
    const auto with_gaudi = setting("GAUDI_TEST=1");
    if (with_gaudi == "none")
        GTEST_SKIP() << "needs the right to mount";
    EXPECT_EQ(with_gaudi, "host");
    EXPECT_EQ(setting("UCX_RNDV_FRAG_MEM_TYPES=cuda"), "cuda") << "the user's stays";
    // Outside the lab sysfs tells whether there is a Gaudi.
    const auto* outside = "env -u GAUDI_DIRECT_HLTHUNK ucx_info -c -a";
    EXPECT_EQ(setting("ACCEL_VENDOR=0x1da3", outside), "host");
    EXPECT_EQ(setting("ACCEL_VENDOR=0x1002", outside), "host,cuda") << "another vendor's accelerator";
}

// Gotcha U17: UCX deadlocked if sysfs lacked a device.
TEST_P(both_versions, log_level_debug_hangs_nothing) {
    for (const auto* transports : {"tcp", "posix,gaudi_ipc", "rc_v"}) {
        if (prefix() == old_ucx && transports == std::string_view("rc_v"))
            continue;
        const auto done = peers(prefix(), transports, "--sizes 8,1m --rounds 1",
                                {"UCX_LOG_LEVEL=debug", "UCX_LOG_FILE=" + (root() / "ucx.log.%p").string()});
        EXPECT_EQ(done.status, 0) << transports << done.output;
        EXPECT_HAS(logged(), "DEBUG");
        EXPECT_HAS(logged(), "0000:19:00.0: not in /sys/bus/pci/devices, UCX does not learn its location");
    }
}

// Gotcha U6: UCX executes the atomic in software, on the CPU of the target process.
TEST_P(both_versions, an_atomic_on_gaudi_memory_ends_its_owner_and_fails_the_peer) {
    const auto ended = peers(prefix(), "tcp", "--operations atomic --sizes 8 --rounds 1");
    EXPECT_NE(ended.status, 0);
    EXPECT_HAS(ended.output, "passive: ended by signal 11");
    EXPECT_TRUE(std::regex_search(
        ended.output,
        std::regex("active: ucp_.*: (Connection reset by remote peer|Endpoint is not connected)")))
        << ended.output;
}

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
    expect_right(peers(new_ucx, "rc_v", "--sizes 1g --rounds 1 --operations tag"));
    for (const auto* transports : {"rc_v", "ud_v"})
        for (const auto* more : {"", "--here host", "--there host", "--sleep", "--threads 3"}) {
            SCOPED_TRACE(fmt::format("{} {}", transports, more));
            expect_right(peers(new_ucx, transports, fmt::format("--rounds 1 --sizes 8,4097,1m {}", more)));
        }
}

// Memory of SynapseAI, which programs compute on; UCX gets its address.
TEST_F(ucx_test, data_is_right_in_memory_of_synapse) {
    for (const auto& [version, transports] : {std::pair("1.22", "tcp"), std::pair("1.22", "posix,gaudi_ipc"),
                                              std::pair("1.23", "posix,cma"), std::pair("1.23", "rc_v")}) {
        SCOPED_TRACE(fmt::format("{} {}", version, transports));
        expect_right(peers(prefix_of(version), transports, "--rounds 1 --synapse"));
    }
    const auto direct =
        peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations put,get,tag --synapse", counting());
    EXPECT_EQ(direct.status, 0) << direct.output;
    EXPECT_EQ(paths_of().from_dmabuf, 3U << 20);
    EXPECT_EQ(paths_of().to_dmabuf, 3U << 20);
    EXPECT_EQ(paths_of().staged, 0U);
}

// ---- process exit ----

using version_and_end = std::tuple<const char*, const char*>;
class process_end : public ucx_test, public ::testing::WithParamInterface<version_and_end> {};
TEST_P(process_end, disturbs_nothing) {
    const auto prefix = prefix_of(std::get<0>(GetParam()));
    const std::string how = std::get<1>(GetParam());
    const auto ended = run(prefix, fmt::format("{} {}/lib/libucp.so.0 {}", EXIT_ORDER, prefix, how));
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(ended.output,
              how == "by_a_handler_from_before" ? "ends now\nclosed by the handler\n" : "ends now\n");
}
INSTANTIATE_TEST_SUITE_P(
    ucx, process_end,
    ::testing::Combine(::testing::Values("1.22", "1.23"),
                       ::testing::Values("everything_open", "a_copy_in_flight", "statics_of_the_program",
                                         "the_library_before_ucx", "ucx_before_the_library",
                                         "ucx_unloaded_while_open", "ucx_opened_again",
                                         "by_a_handler_from_before", "at_once")),
    [](const auto& each) {
        return name_of(fmt::format("{} {}", std::get<0>(each.param), std::get<1>(each.param)));
    });

// ---- zero-copy, by the NIC's counters ----

TEST_F(ucx_test, zero_copy_is_what_the_nic_counts) {
    const auto moved = 3ULL * (1 << 20); // put, get and tag, 1 MiB each
    const auto direct = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations put,get,tag", counting());
    EXPECT_EQ(direct.status, 0) << direct.output;
    const auto zero = paths_of();
    EXPECT_EQ(zero.from_dmabuf, moved);
    EXPECT_EQ(zero.to_dmabuf, moved);
    EXPECT_EQ(zero.staged, 0U);
    EXPECT_GT(zero.exports, 0U);
    EXPECT_LT(zero.bytes, moved + 65536); // the data and UCX's own messages only

    forget_counts();
    auto without = counting();
    without.emplace_back("UCX_GAUDI_COPY_DMABUF=no");
    const auto indirect = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations put,get,tag", without);
    EXPECT_EQ(indirect.status, 0) << indirect.output;
    const auto staged = paths_of();
    EXPECT_EQ(staged.from_dmabuf, 0U);
    EXPECT_EQ(staged.to_dmabuf, 0U);
    EXPECT_EQ(staged.staged, 2 * moved); // once out of a device, once into the other
    EXPECT_EQ(staged.exports, 0U);
}

TEST_F(ucx_test, ucx_itself_says_zero_copy) {
    const auto shown = peers(new_ucx, "rc_v", "--sizes 1m --rounds 1 --operations tag", {"UCX_PROTO_INFO=y"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_TRUE(
        std::regex_search(shown.output, std::regex("inf \\| .*zero-copy read from remote *\\| rc_verbs")))
        << shown.output;
}

TEST_F(ucx_test, the_nearest_nic_carries_gaudi_memory) {
    describe_lab("gaudis = 2\nhcas = 2\n[hca 0]\nbus_id = 0000:1c:00.0\n[hca 1]\nbus_id = 0000:1b:00.0\n");
    for (const auto& [device, nearest_nic, other_nic] :
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
            command.insert(command.begin(), SOURCE_FOLDER "/tests/ucx/programs/two_switches.sh");
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
        EXPECT_HAS(line.str(), nearest_nic);
        EXPECT_HAS_NOT(line.str(), other_nic);
    }
}

TEST_F(ucx_test, the_lower_layer_alone_moves_memory_without_a_copy) {
    const auto shown =
        run(new_ucx, EXAMPLE_UCT_PUT, {"GAUDI_LAB_HCA_REPORT=" + (root() / "report").string()});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "put_zcopy of 1048576 bytes from HBM to HBM over rc_verbs: data right");
    EXPECT_EQ(paths_of().from_dmabuf, 1U << 20);
    EXPECT_EQ(paths_of().to_dmabuf, 1U << 20);
}

} // namespace
