// SPDX-License-Identifier: BSD-3-Clause
// Two hosts: network namespaces joined by a veth pair. Third-party programs run between them.
#include "tests/judges/two_programs.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/soon_true.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <regex>

namespace {

using namespace testing_support;

class two_hosts : public judge, public ::testing::WithParamInterface<std::pair<const char*, const char*>> {
protected:
    void SetUp() override {
        shorten_ucx_timeouts();
        local_ = fmt::format("gdn{}", ::getpid());
        remote_ = fmt::format("gdf{}", ::getpid());
        for (const auto& left : {local_, remote_}) // left by a killed run with the same pid
            (void)shell(fmt::format("ip netns del {}", left));
        if (shell(fmt::format("ip netns add {0} && ip netns exec {0} true", local_)) != 0)
            GTEST_SKIP() << "no network namespaces here: no right to make them, or a chroot";
        ASSERT_EQ(
            shell(fmt::format(
                "ip netns add {1} && ip link add gdv0 netns {0} type veth peer name gdv1 netns {1} && "
                "ip -n {0} addr add 10.77.0.1/24 dev gdv0 && ip -n {1} addr add 10.77.0.2/24 dev gdv1 && "
                "ip -n {0} link set gdv0 up && ip -n {1} link set gdv1 up && "
                "ip -n {0} link set lo up && ip -n {1} link set lo up",
                local_, remote_)),
            0);
        // UCX ignores an interface without carrier.
        for (const auto& [host, port] : {std::pair(local_, "gdv0"), std::pair(remote_, "gdv1")})
            ASSERT_EQ(shell(fmt::format("for i in $(seq 300); do ip -n {} link show {} | grep -q LOWER_UP && "
                                        "exit 0; sleep 0.01; done; exit 1",
                                        host, port)),
                      0);
        std::ofstream(root() / "host.lab")
            << "gaudis = 1\nhcas = 1\nlink_layer = ethernet\n"; // each host has its own address
    }
    void TearDown() override {
        (void)shell(fmt::format("ip netns del {}", local_));
        (void)shell(fmt::format("ip netns del {}", remote_));
        judge::TearDown();
    }
    static int shell(const std::string& command) {
        return std::system((command + " >/dev/null 2>&1").c_str());
    }

    std::vector<std::string> on(const std::string& host, const std::string& lab, const std::string& options,
                                const std::string& command) {
        auto all = words(fmt::format("ip netns exec {}", host));
        for (const auto& word :
             in_lab(fmt::format("--lab {} --config {} {}", lab, (root() / "host.lab").string(), options),
                    command))
            all.push_back(word);
        return all;
    }
    // `meanwhile` runs while server and client run.
    both_results run_on_both(const std::string& options, const std::string& server, const std::string& client,
                             const std::function<void()>& meanwhile = {}) {
        const unsigned port = 21000;
        // A process in the remote namespace: its /proc/PID/net lists the ports there.
        child holder([&] {
            const auto path = "/run/netns/" + remote_;
            ::execlp("nsenter", "nsenter", ("--net=" + path).c_str(), "sleep", "600", nullptr);
            return 1;
        });
        const auto network = [](const std::string& process) {
            return std::filesystem::read_symlink("/proc/" + process + "/ns/net");
        };
        EXPECT_TRUE(soon_true([&] { return network(std::to_string(holder.pid())) != network("self"); }))
            << "nsenter has not entered " << remote_;
        const auto tables = fmt::format("/proc/{}/net", holder.pid());
        running_program serving(on(remote_, "remote", options, fmt::format("{} -p {}", server, port)),
                                without_hlthunk);
        EXPECT_TRUE(wait_until_listening(serving, port, tables)) << serving.output();
        running_program asking(on(local_, "local", options, fmt::format("{} -p {}", client, port)),
                               without_hlthunk);
        if (meanwhile)
            meanwhile();
        both_results both;
        both.client = asking.wait(std::chrono::seconds(120));
        if (meanwhile) // the server gets no notice of the cut
            serving.signal_group(SIGKILL);
        both.server = serving.wait(std::chrono::seconds(120));
        return both;
    }
    void expect_both(const std::string& options, const std::string& server, const std::string& client) {
        const auto both = run_on_both(options, server, client);
        EXPECT_EQ(both.server.status, 0) << both.server.output;
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        for (const auto& each : {both.server, both.client}) // pingpong -c reports wrong data but exits with 0
            EXPECT_HAS_NOT(each.output, "invalid data");
    }

    std::string local_, remote_;
};

TEST_P(two_hosts, work) {
    const auto [options, command] = GetParam();
    const std::string text = command;
    // ucx_perftest takes the server's name as its first argument, the others as their last.
    const auto ucx = text.find("ucx_perftest");
    const auto client =
        ucx == text.npos ? text + " 10.77.0.2" : std::string(text).insert(ucx + 12, " 10.77.0.2");
    expect_both(options, text, client);
}
std::string name_of_pair(const ::testing::TestParamInfo<std::pair<const char*, const char*>>& info) {
    static const std::regex others("[^A-Za-z0-9]+");
    return std::regex_replace(std::string(info.param.second), others, "_");
}

INSTANTIATE_TEST_SUITE_P(debian, two_hosts,
                         ::testing::Values(std::pair("", "ibv_rc_pingpong -g 0"),
                                           std::pair("", "ibv_rc_pingpong -g 0 -e -c -s 300000 -n 100"),
                                           std::pair("", "ibv_ud_pingpong -g 0"),
                                           std::pair("", "ib_write_bw -d vhca0 -F -n 500"),
                                           std::pair("", "ib_send_bw -d vhca0 -F"),
                                           std::pair("", "ib_read_lat -d vhca0 -F"),
                                           std::pair("", "ib_atomic_lat -d vhca0 -F")),
                         name_of_pair);

// No packet reports that the peer is gone: only the side with outstanding requests gets an error, as with a
// real cable.
class cut_cable : public two_hosts {};
TEST_P(cut_cable, ends_with_a_retry_error) {
    const std::string program = GetParam().second;
    const auto counter = (root() / "sent").string();
    const auto both = run_on_both("", program, program + " 10.77.0.2", [&] {
        std::uint64_t sent = 0, received = 0;
        for (int i = 0; i < 6000 && sent + received < 64 << 20; ++i) {
            ::usleep(10000);
            (void)shell(fmt::format("ip netns exec {} sh -c 'cd /sys/class/net/gdv0/statistics; "
                                    "cat tx_bytes rx_bytes > {}'",
                                    local_, counter));
            std::ifstream(counter) >> sent >> received;
        }
        EXPECT_GE(sent + received, 64U << 20);
        EXPECT_EQ(shell(fmt::format("ip -n {} link set gdv1 down", remote_)), 0);
    });
    EXPECT_EQ(both.client.status, 1) << "it ended by itself, with an error";
    EXPECT_NE(both.client.output.find("Failed status 12"), std::string::npos) << both.client.output;
}
// labels: waits
INSTANTIATE_TEST_SUITE_P(debian, cut_cable, ::testing::Values(std::pair("", "ib_write_bw -d vhca0 -F -D 60")),
                         name_of_pair);
// labels: full
INSTANTIATE_TEST_SUITE_P(whole_matrix, cut_cable,
                         ::testing::Values(std::pair("", "ib_read_bw -d vhca0 -F -D 15")), name_of_pair);

#ifdef UCX_PREFIX
// Checks every byte between two Gaudis of two hosts.
class gaudis_of_two_hosts : public two_hosts {};
TEST_P(gaudis_of_two_hosts, hold_the_same_data) {
    const std::string options = GetParam().first, transports = GetParam().second;
    unsigned port = 21000;
    for (const auto& [here, there] : {std::pair("gaudi", "gaudi"), std::pair("host", "gaudi"),
                                      std::pair("gaudi", "host"), std::pair("host", "host")}) {
        if (transports != "rc_v" && (here != std::string_view("gaudi") || there != std::string_view("gaudi")))
            continue;
        SCOPED_TRACE(fmt::format("{} to {}", here, there));
        const auto program = fmt::format("env UCX_TLS={},gaudi_cpy {} --rounds 1 --here {} --there {}",
                                         transports, UCP_PEERS, here, there);
        ++port;
        both_results both;
        std::thread passive([&] {
            both.server = run_program(
                on(remote_, "remote", options, fmt::format("{} --listen 10.77.0.2:{}", program, port)),
                without_hlthunk);
        });
        both.client =
            run_program(on(local_, "local", options, fmt::format("{} --connect 10.77.0.2:{}", program, port)),
                        without_hlthunk);
        passive.join();
        EXPECT_EQ(both.server.status, 0) << both.server.output;
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        EXPECT_HAS(both.client.output, "all right");
    }
}
INSTANTIATE_TEST_SUITE_P(ucx, gaudis_of_two_hosts,
                         ::testing::Values(std::pair("--ucx " UCX_PREFIX, "rc_v"),
                                           std::pair("--ucx " UCX_PREFIX, "ud_v"),
                                           std::pair("--ucx " UCX_PREFIX, "tcp"),
                                           std::pair("--ucx " OLD_UCX_PREFIX, "tcp,gaudi_ipc")),
                         name_of_pair);

INSTANTIATE_TEST_SUITE_P(ucx, two_hosts,
                         ::testing::Values(std::pair(
                             "--ucx " UCX_PREFIX, "env UCX_TLS=ud_v ucx_perftest -t tag_bw -n 100 -s 65536")),
                         name_of_pair);

// Default UCX settings: put and get begin with a strong fence (gotcha V2).
class every_operation_of_two_hosts : public two_hosts {};
TEST_P(every_operation_of_two_hosts, ends_by_itself) {
    for (const auto* test : {"ucp_put_bw", "ucp_get", "ucp_am_bw", "stream_bw", "tag_bw"})
        for (const auto* size : {"8", "1048576"}) {
            const auto arguments = fmt::format("-t {} -n 50 -w 5 -s {} {}", test, size, GetParam().second);
            SCOPED_TRACE(arguments);
            const std::string program = "env UCX_TLS=rc_v,gaudi_cpy ucx_perftest ";
            expect_both(GetParam().first, program + arguments, program + "10.77.0.2 " + arguments);
        }
}
INSTANTIATE_TEST_SUITE_P(ucx, every_operation_of_two_hosts,
                         ::testing::Values(std::pair("--ucx " UCX_PREFIX, "-m host"),
                                           std::pair("--ucx " UCX_PREFIX, "-m gaudi")),
                         [](const auto& each) { return std::string(each.param.second + 3); });
#endif

} // namespace
