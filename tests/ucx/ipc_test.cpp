// SPDX-License-Identifier: BSD-3-Clause
// gaudi_ipc under stock UCX: between two processes, by every path, with every byte checked.
#include "tests/ucx/ucx_fixture.hpp"

namespace {

using namespace testing_support;

enum { cpu, engine, context, import, nic, staged, proxy }; // as gaudi::copy_path

struct ipc_case {
    const char* name;
    const char* version;
    const char* description;
    const char* environment;
    int path;
};

class between_processes : public ucx_test, public ::testing::WithParamInterface<ipc_case> {
protected:
    // put, get, tag and am of these sizes; UCX itself does not stage the largest.
    void expect_its_path(const char* sizes, std::uint64_t largest, int limit) {
        const auto& [name, version, description, environment, path] = GetParam();
        describe_lab(description);
        auto variables = counting();
        for (const auto& each : words(environment))
            variables.push_back(each);
        const auto done =
            peers(prefix_of(version), "posix,gaudi_ipc",
                  fmt::format("--operations put,get,tag,am --rounds 1 --sizes {}", sizes), variables, limit);
        EXPECT_EQ(done.status, 0) << done.output;
        EXPECT_HAS_NOT(done.output, "ERROR");
        const auto bytes = ipc_bytes();
        for (int each = 0; each < 7; ++each)
            if (each == path)
                EXPECT_GE(bytes[static_cast<std::size_t>(each)], 4 * largest) << each;
            else
                EXPECT_EQ(bytes[static_cast<std::size_t>(each)], 0U) << each;
        if (path == nic) { // the NIC's own counters; it reports them although it stays open until exit
            const auto counted = paths_of();
            EXPECT_GE(counted.from_dmabuf, 4 * largest);
            EXPECT_GE(counted.to_dmabuf, 4 * largest);
        }
    }
};
INSTANTIATE_TEST_SUITE_P(
    ucx, between_processes,
    ::testing::Values(
        ipc_case{"vendor_import_1_22", "1.22", "gaudis = 2\nhcas = 1\ndmabuf_import = yes\n", "", import},
        ipc_case{"vendor_import_1_23", "1.23", "gaudis = 2\nhcas = 1\ndmabuf_import = yes\n", "", import},
        ipc_case{"nic_1_22", "1.22", "gaudis = 2\nhcas = 1\n", "", nic},
        ipc_case{"nic_1_23", "1.23", "gaudis = 2\nhcas = 1\n", "", nic},
        ipc_case{"staged_1_22", "1.22", "gaudis = 2\nhcas = 0\n", "", staged},
        ipc_case{"staged_1_23", "1.23", "gaudis = 2\nhcas = 0\n", "", staged},
        ipc_case{"one_device_1_22", "1.22", "gaudis = 1\nhcas = 1\n", "UCX_GAUDI_COPY_SHARE_DEVICE=y",
                 context},
        ipc_case{"one_device_1_23", "1.23", "gaudis = 1\nhcas = 1\n", "UCX_GAUDI_COPY_SHARE_DEVICE=y",
                 context},
        ipc_case{"dmabuf_1_22", "1.22", "gaudis = 2\nhcas = 1\n", "UCX_GAUDI_IPC_GIVE=dmabuf", nic},
        ipc_case{"dmabuf_1_23", "1.23", "gaudis = 2\nhcas = 1\n", "UCX_GAUDI_IPC_GIVE=dmabuf", nic},
        ipc_case{"proxy_1_22", "1.22", "gaudis = 2\nhcas = 0\n", "UCX_GAUDI_IPC_GIVE=nothing", proxy},
        ipc_case{"proxy_1_23", "1.23", "gaudis = 2\nhcas = 0\n", "UCX_GAUDI_IPC_GIVE=nothing", proxy}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_P(between_processes, bytes_are_right_and_take_its_path) {
    expect_its_path("1,4099,100k,1m,9m", 9 << 20, 60);
}

class whole_gibibyte : public between_processes {};
INSTANTIATE_TEST_SUITE_P(
    every_gibibyte, whole_gibibyte,
    ::testing::Values(
        ipc_case{"vendor_import", "1.22", "gaudis = 2\nhcas = 1\ndmabuf_import = yes\n", "", import},
        ipc_case{"nic", "1.23", "gaudis = 2\nhcas = 1\n", "", nic},
        ipc_case{"staged", "1.22", "gaudis = 2\nhcas = 0\n", "", staged},
        ipc_case{"one_device", "1.23", "gaudis = 1\nhcas = 1\n", "UCX_GAUDI_COPY_SHARE_DEVICE=y", context},
        ipc_case{"proxy", "1.23", "gaudis = 2\nhcas = 0\n", "UCX_GAUDI_IPC_GIVE=nothing", proxy}),
    [](const auto& each) { return std::string(each.param.name); });
// labels: full
TEST_P(whole_gibibyte, is_right_by_every_path) {
    expect_its_path("1g", 1 << 30, 250);
}

TEST_F(ucx_test, gaudi_dma_works_alone_and_with_the_others) {
    for (const auto* version : {"1.22", "1.23"})
        for (const auto* transports : {"posix,gaudi_dma", "tcp,gaudi_dma", "posix,gaudi_dma,gaudi_ipc",
                                       "posix,gaudi_dma,gaudi_cpy,gaudi_ipc"}) {
            SCOPED_TRACE(fmt::format("{} {}", version, transports));
            forget_counts();
            auto variables = counting();
            variables.push_back(fmt::format("UCX_TLS={}", transports));
            variables.push_back(devices_for(transports));
            const auto done =
                run(prefix_of(version),
                    fmt::format("{} --rounds 1 --operations put,get,tag,am --sizes 1,4099,1m,9m", UCP_PEERS),
                    variables);
            EXPECT_EQ(done.status, 0) << done.output;
            const auto counted = paths_of();
            if (std::string_view(transports).find("gaudi_ipc") == std::string_view::npos)
                EXPECT_GE(counted.dma, 4U * 9 << 20);
            else // gaudi_ipc carries all large operations
                EXPECT_GE(ipc_bytes()[nic], 4U * 9 << 20);
        }
}

class ipc_on_both_versions : public both_versions {};
INSTANTIATE_TEST_SUITE_P(ucx, ipc_on_both_versions, ::testing::Values("1.22", "1.23"),
                         [](const auto& each) { return name_of(each.param); });

TEST_P(ipc_on_both_versions, is_listed) {
    const auto shown = run(prefix(), "ucx_info -d");
    EXPECT_HAS(shown.output, "#      Transport: gaudi_dma\n");
    const auto at = shown.output.find("# Memory domain: gaudi_ipc\n");
    ASSERT_NE(at, std::string::npos) << shown.output;
    const auto block = shown.output.substr(at, 1500);
    for (const auto* line :
         {"#     Component: gaudi_ipc\n", "gaudi (access,reg,cache)", "#      Transport: gaudi_ipc\n",
          "#         Device: gaudi_ipc\n", "put_zcopy: unlimited", "get_zcopy: unlimited",
          "error handling: peer failure, ep_check"})
        EXPECT_HAS(block, line);
    describe_lab("gaudis = 1\ngeneration = gaudi3\n");
    const auto third = run(prefix(), "ucx_info -d", {"UCX_LOG_LEVEL=diag"});
    EXPECT_HAS_NOT(third.output, "gaudi_dma\n");
    EXPECT_HAS(third.output,
               "gaudi_dma is absent: the driver of 0000:19:00.0 offers no queue for user submissions");
    const auto settings = run(prefix(), "ucx_info -cf");
    for (const auto* line :
         {"UCX_GAUDI_IPC_GIVE=auto\n", "UCX_GAUDI_IPC_ALLOW=\n", "UCX_GAUDI_IPC_IMPORTS=256\n",
          "UCX_GAUDI_IPC_STATISTICS=n\n", "UCX_GAUDI_IPC_REQUIRE=none\n", "UCX_GAUDI_DMA_QUEUES=2\n",
          "UCX_GAUDI_DMA_STRIPE=8M\n", "UCX_GAUDI_DMA_BATCH=256\n", "UCX_GAUDI_DMA_IN_FLIGHT=256\n"})
        EXPECT_HAS(settings.output, line);
}

TEST_P(ipc_on_both_versions, ucp_takes_it_before_shared_memory_and_before_a_nic) {
    // UCX_TLS is not set.
    const auto done = run(prefix(), fmt::format("{} --operations tag --rounds 1 --sizes 1m", UCP_PEERS),
                          {"UCX_PROTO_INFO=y", "UCX_NET_DEVICES=lo,vhca0:1"});
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_TRUE(std::regex_search(
        done.output,
        std::regex("rendezvous zero-copy (read from|write to) remote *\\| *gaudi_ipc/gaudi_ipc")))
        << done.output;
}

TEST_P(ipc_on_both_versions, copies_beyond_the_owners_limit_wait) {
    describe_lab("gaudis = 2\nhcas = 0\n");
    const auto done =
        peers(prefix(), "posix,gaudi_ipc", "--operations put,get,tag --rounds 3 --threads 6 --sizes 64k,3m",
              {"UCX_GAUDI_IPC_GIVE=nothing"});
    EXPECT_EQ(done.status, 0) << done.output;
}

// UCX chooses between the two by their estimates.
TEST_P(ipc_on_both_versions, estimates_rank_gaudi_dma_and_gaudi_cpy) {
    const auto by_dma = [&](const std::vector<const char*>& estimates) {
        forget_counts();
        auto environment = counting();
        environment.insert(environment.end(), estimates.begin(), estimates.end());
        expect_right(
            peers(prefix(), "posix,gaudi_dma", "--operations tag --rounds 1 --sizes 4m", environment));
        return paths_of();
    };
    const auto dma = by_dma({"UCX_GAUDI_DMA_BW=60000MBs"});
    EXPECT_GE(dma.dma, 2U * (4 << 20)) << "both sides stage by gaudi_dma";
    const auto copy =
        by_dma({"UCX_GAUDI_COPY_BW_TO_DEVICE=60000MBs", "UCX_GAUDI_COPY_BW_FROM_DEVICE=60000MBs"});
    EXPECT_EQ(copy.dma, 0U);
    EXPECT_GE(copy.staged, 2U * (4 << 20));
}

TEST_P(ipc_on_both_versions, zero_copy_may_be_required) {
    const auto with = [&](const char* description, const char* give) {
        describe_lab(description);
        return peers(prefix(), "posix,gaudi_ipc", "--operations put --rounds 1 --sizes 1m",
                     {"UCX_GAUDI_IPC_REQUIRE=zero-copy", give});
    };
    EXPECT_EQ(with("gaudis = 2\nhcas = 1\n", "UCX_GAUDI_IPC_GIVE=context").status, 0);
    const auto refused = with("gaudis = 2\nhcas = 0\n", "UCX_GAUDI_IPC_GIVE=nothing");
    EXPECT_NE(refused.status, 0);
    EXPECT_HAS(refused.output, "zero-copy was required");
}

// In a rendezvous UCX would leave the peer waiting: both programs must end with an error.
TEST_P(ipc_on_both_versions, refused_zero_copy_fails_both_sides) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const std::string requires_it = "UCX_GAUDI_IPC_REQUIRE=zero-copy",
                      gives_nothing = "UCX_GAUDI_IPC_GIVE=nothing";
    for (const auto& [server, client] :
         {std::pair(requires_it + " " + gives_nothing, requires_it + " " + gives_nothing),
          std::pair(requires_it, gives_nothing), std::pair(gives_nothing, requires_it)}) {
        SCOPED_TRACE(fmt::format("{} / {}", server, client));
        const auto port = free_port();
        const auto side = [&](const std::string& settings, const char* host) {
            return lab(prefix(),
                       fmt::format("timeout -s KILL 40 env UCX_TLS=posix,gaudi_cpy,gaudi_ipc {} ucx_perftest "
                                   "-t tag_bw -m gaudi -s 1048576 -n 20 -p {} {}",
                                   settings, port, host));
        };
        const auto both = run_both(side(server, ""), side(client, "localhost"), port);
        for (const auto* each : {&both.server, &both.client}) {
            EXPECT_NE(each->status, 0) << each->output;
            EXPECT_NE(each->status, 128 + SIGKILL) << "it hangs";
        }
        EXPECT_HAS(both.server.output + both.client.output,
                   "zero-copy was required (UCX_GAUDI_IPC_REQUIRE=zero-copy");
    }
}

TEST_P(ipc_on_both_versions, a_worker_that_sleeps_is_woken) {
    const auto done =
        peers(prefix(), "posix,gaudi_ipc", "--operations tag,put --rounds 1 --sleep --sizes 4096,4m");
    EXPECT_EQ(done.status, 0) << done.output;
}

TEST_P(ipc_on_both_versions, settings_without_sense_are_refused) {
    for (const auto& [setting, said] :
         {std::pair("UCX_GAUDI_IPC_GIVE=all",
                    "ERROR UCX_GAUDI_IPC_GIVE=all: use auto, context, dmabuf or nothing; "
                    "gaudi_ipc is not used"),
          std::pair("UCX_GAUDI_IPC_ALLOW=root", "ERROR UCX_GAUDI_IPC_ALLOW: root: use numbers of users"),
          std::pair("GAUDI_DIRECT_IPC_GIVE=all", "ERROR GAUDI_DIRECT_IPC_GIVE"),
          std::pair("UCX_GAUDI_IPC_IMPORTS=0", "UCX_GAUDI_IPC_IMPORTS=0: use 1 or more")}) {
        const auto shown = run(prefix(), "ucx_info -d", {setting});
        EXPECT_HAS(shown.output, said);
        EXPECT_HAS_NOT(shown.output, "Transport: gaudi_ipc");
        EXPECT_HAS(shown.output, "Transport: gaudi_cpy"); // the other transports stay
    }
    const auto shown = run(prefix(), "ucx_info -d", {"UCX_GAUDI_IPC_REQUIRE=all"});
    EXPECT_HAS(shown.output, "UCX_GAUDI_IPC_REQUIRE=all: use none or zero-copy");
}

} // namespace
