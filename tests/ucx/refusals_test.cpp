// SPDX-License-Identifier: BSD-3-Clause
// What the plugin refuses under stock UCX, and which errors it reports.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

constexpr int killed = 128 + SIGKILL; // the status of timeout -s KILL for a program that hangs

TEST_F(ucx_test, perftest_has_no_gaudi_memory_on_an_unknown_version) {
    const auto port = free_port();
    const auto program = fmt::format(
        "timeout -s KILL 40 env LD_PRELOAD=" OTHER_VERSION " ucx_perftest -t tag_bw -n 10 -p {}", port);
    const auto gaudi =
        run_both(lab(new_ucx, program + " -m gaudi"), lab(new_ucx, program + " -m gaudi localhost"), port)
            .client;
    EXPECT_HAS(gaudi.output, "no Gaudi memory: UCX 1.99.0 is not known; known are 1.22 and 1.23");
    EXPECT_NE(gaudi.status, 0);
    EXPECT_NE(gaudi.status, killed) << "it hangs";
    const auto again = free_port();
    const auto host_program = fmt::format(
        "timeout -s KILL 40 env LD_PRELOAD=" OTHER_VERSION " ucx_perftest -t tag_bw -n 10 -p {}", again);
    const auto host =
        run_both(lab(new_ucx, host_program), lab(new_ucx, host_program + " localhost"), again).client;
    EXPECT_EQ(host.status, 0) << host.output;
    EXPECT_HAS(host.output, "Final:");
}

TEST_F(ucx_test, an_unknown_version_is_declined_and_ucx_works_on) {
    const auto shown = run(new_ucx, "env LD_PRELOAD=" OTHER_VERSION " ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    const auto line = shown.output.find("libuct_gaudi is not used: UCX 1.99.0");
    ASSERT_NE(line, std::string::npos) << shown.output;
    EXPECT_EQ(shown.output.find("libuct_gaudi is not used", line + 1), std::string::npos) << "said twice";
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

// "1.23.0" is what UCX's main branch is called: the number stays while functions are inserted.
TEST_P(both_versions, a_function_that_is_new_under_a_known_number_is_declined) {
    const auto shown = run(prefix(), "env LD_PRELOAD=" OTHER_EXPORTS
                                     " RENAMED=uct_iface_reject:uct_ep_put_newer ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output,
               fmt::format("libuct_gaudi is not used: this UCX {}.0 is not the one that is known by that "
                           "number: it has uct_ep_put_newer; it lacks uct_iface_reject",
                           GetParam()));
    EXPECT_HAS(shown.output, "# Memory domain: self");
    EXPECT_HAS_NOT(shown.output, "Memory domain: gaudi_copy");
}

TEST_P(both_versions, a_ucx_without_a_function_is_declined_and_works_on) {
    const auto without = [&](const std::string& name) {
        auto shown = run(prefix(), fmt::format("env LD_PRELOAD=" LACKING " LACKING={} ucx_info -d", name));
        EXPECT_EQ(shown.status, 0);
        EXPECT_HAS(shown.output, "# Memory domain: self");
        EXPECT_HAS_NOT(shown.output, "Memory domain: gaudi_copy");
        return shown.output;
    };
    EXPECT_HAS(without("uct_md_query_single_md_resource"),
               fmt::format("libuct_gaudi is not used: UCX {}.0 lacks uct_md_query_single_md_resource; known "
                           "are 1.22 and 1.23",
                           GetParam()));
    // Without UCX's log function the plugin writes to stderr.
    EXPECT_HAS(without("ucs_log_dispatch"), "libuct_gaudi is not used: no libuct belongs to ");
}

TEST_F(ucx_test, two_ucx_in_one_process_share_the_devices) {
    // UCX's default mode: with relocations, two UCX patch each other's, with any plugin or none.
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

// A bad setting of a transport: the domain opens, the transport does not.
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
    const auto program = fmt::format("timeout -s KILL 40 ucx_perftest -t tag_bw -m gaudi -p {}", port);
    const auto none = run_both(lab(old_ucx, program), lab(old_ucx, program + " localhost"), port).client;
    EXPECT_NE(none.status, 0);
    EXPECT_NE(none.status, killed) << "it hangs";
    EXPECT_HAS(none.output, "no Gaudi: the driver finds none");
}

TEST_F(ucx_test, perftest_ends_with_a_status_where_no_device_has_queues) {
    describe_lab("gaudis = 2\ngeneration = gaudi3\nhcas = 0\n");
    const auto port = free_port();
    const auto program = fmt::format("timeout -s KILL 40 ucx_perftest -t tag_bw -m gaudi -p {}", port);
    const auto both = run_both(lab(old_ucx, program), lab(old_ucx, program + " localhost"), port);
    EXPECT_HAS(both.client.output, "Gaudi memory: no device has a queue for copies");
    EXPECT_NE(both.client.status, 0);
    EXPECT_NE(both.client.status, killed) << "it hangs";
}

TEST_F(ucx_test, a_nic_without_dmabufs_carries_staged_memory) {
    describe_lab("gaudis = 2\nhcas = 1\n[hca 0]\ndmabuf = no\n");
    const auto done = peers(new_ucx, "rc_v", "--sizes 8,1m --rounds 1", counting());
    EXPECT_EQ(done.status, 0) << done.output;
    const auto counted = paths_of();
    EXPECT_EQ(counted.from_dmabuf + counted.to_dmabuf, 0U);
    EXPECT_GE(counted.staged, 5U << 20); // five operations
    const std::regex line(
        "GAUDI WARN +no NIC here registers DMA-BUFs \\(of those that are active, vhca0 is the first");
    const auto log = logged();
    EXPECT_EQ(std::distance(std::sregex_iterator(log.begin(), log.end(), line), {}), 2)
        << log; // one line a process
}

TEST_P(both_versions, without_such_a_nic_processes_share_memory_by_other_paths) {
    describe_lab("gaudis = 2\nhcas = 1\n[hca 0]\ndmabuf = no\n");
    const auto done = peers(prefix(), "tcp,posix,gaudi_ipc", "--sizes 8,1m,5000001 --rounds 1");
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS_NOT(logged(), "ERROR");
}

TEST_F(ucx_test, a_plugin_folder_that_does_not_exist_is_ignored) {
    const auto shown = run(new_ucx, "env UCX_PLUGIN_PATH=/no/such/folder:/nor/this/one ucx_info -d");
    EXPECT_EQ(shown.status, 0);
    EXPECT_HAS(shown.output, "# Memory domain: self");
    EXPECT_HAS_NOT(shown.output, "ERROR");
    EXPECT_HAS_NOT(shown.output, "gaudi_copy");
}

TEST_F(ucx_test, a_plugin_that_cannot_be_read_is_ignored) {
    const auto folder = root() / "plugins";
    const auto plugin = folder / "libuct_gaudi.so.0";
    std::filesystem::create_directory(folder);
    // Root must drop these capabilities, or it may read every file.
    const std::string rights = "-dac_override,-dac_read_search";
    const auto shown = [&] {
        return run(new_ucx, fmt::format("setpriv --bounding-set={0} --inh-caps={0} env UCX_PLUGIN_PATH={1} "
                                        "ucx_info -d",
                                        rights, folder.string()));
    };
    const auto expect_undisturbed = [&](const char* why) {
        SCOPED_TRACE(why);
        const auto found = shown();
        EXPECT_EQ(found.status, 0) << found.output;
        EXPECT_HAS(found.output, "# Memory domain: self");
        EXPECT_HAS_NOT(found.output, "ERROR");
        EXPECT_HAS_NOT(found.output, "gaudi_copy");
    };
    using std::filesystem::perms;
    std::filesystem::create_symlink(PLUGIN_FOLDER "/libuct_gaudi.so.0", plugin);
    EXPECT_HAS(shown().output, "# Memory domain: gaudi_copy");
    std::filesystem::permissions(folder, perms::none);
    expect_undisturbed("a folder without rights");
    std::filesystem::permissions(folder, perms::owner_all);
    std::filesystem::remove(plugin);
    std::filesystem::copy_file(PLUGIN_FOLDER "/libuct_gaudi.so.0", plugin);
    std::filesystem::permissions(plugin, perms::none);
    expect_undisturbed("a file without rights");
    std::filesystem::permissions(plugin, perms::owner_all);
    std::ofstream(plugin) << "no library at all\n";
    expect_undisturbed("another file");
}

TEST_F(ucx_test, an_export_that_fails_is_an_error_only_where_it_must_work) {
    std::ofstream(root() / "faults") << "hlthunk_device_mapped_memory_export_dmabuf_fd 1+ errno ENODEV\n";
    const auto faults = "GAUDI_LAB_FAULTS=@" + (root() / "faults").string();
    const auto must = peers(new_ucx, "rc_v", "--sizes 8 --rounds 1 --operations tag",
                            {faults, "UCX_GAUDI_COPY_DMABUF=yes"});
    EXPECT_NE(must.status, 0);
    EXPECT_HAS(must.output, "UCX_GAUDI_COPY_DMABUF=yes: the driver does not export the memory as a DMA-BUF");
    // By default the transfer still succeeds, and each process logs once how.
    for (const auto& [version, transports] :
         {std::pair("1.22", "tcp"), std::pair("1.23", "rc_v"), std::pair("1.23", "rc_v,tcp")})
        for (const auto* library : {"", " --library"}) {
            SCOPED_TRACE(fmt::format("{} {}{}", version, transports, library));
            const auto staged = peers(
                prefix_of(version), transports,
                fmt::format("--sizes 8,1m --rounds 1 --operations tag,put,get,am{}", library), {faults});
            EXPECT_EQ(staged.status, 0) << staged.output;
            const std::regex line(
                "WARN  over NICs Gaudi memory goes through host memory: the driver does not "
                "export the memory as a DMA-BUF");
            EXPECT_EQ(
                std::distance(std::sregex_iterator(staged.output.begin(), staged.output.end(), line), {}), 2)
                << staged.output;
            EXPECT_HAS_NOT(staged.output, "ERROR");
        }
    expect_right(peers(new_ucx, "rc_v", "--sizes 8,1m --rounds 1 --operations tag,put",
                       {faults, "UCX_GAUDI_COPY_DMABUF=no"}));
    // The lab refuses the export (gotcha U14), with default settings.
    describe_lab("gaudis = 2\nhcas = 1\nsmall_bar = yes\n");
    const auto small_bar = peers(new_ucx, "rc_v", "--sizes 8,1m --rounds 1");
    EXPECT_EQ(small_bar.status, 0) << small_bar.output;
    EXPECT_HAS(small_bar.output, "WARN  over NICs Gaudi memory goes through host memory");
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
    const auto counted = paths_of();
    EXPECT_EQ(counted.from_dmabuf + counted.to_dmabuf, 0U);
    EXPECT_GE(counted.staged, 4U << 20);
}

// Stock 1.22 has no InfiniBand: what is opened here, our plugin has opened. With libuct_ib UCX itself opens
// every device when it starts (gotcha U19).
TEST_F(ucx_test, the_plugin_opens_no_ports_of_a_gaudi) {
    describe_lab("gaudis = 2\nhcas = 2\n[hca 0]\nof_gaudi = 0\n");
    const auto opens = [&] {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(root()))
            if (entry.path().filename() == "hbl_0.opens")
                return std::filesystem::file_size(entry.path());
        return std::uintmax_t{0};
    };
    const auto moved = run(old_ucx, "ucx_perftest -t tag_bw -m gaudi -l -n 10 -s 1000000", {"UCX_TLS=all"});
    EXPECT_EQ(moved.status, 0) << moved.output;
    const auto shown = run(old_ucx, "ucx_info -d");
    EXPECT_HAS(shown.output, "Transport: gaudi_ipc");
    EXPECT_EQ(opens(), 0U);
    EXPECT_EQ(run(old_ucx, "ibv_devinfo -d hbl_0").status, 0);
    EXPECT_EQ(opens(), 1U) << "the lab counts";
}

} // namespace
