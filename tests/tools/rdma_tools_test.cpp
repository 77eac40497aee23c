// SPDX-License-Identifier: BSD-3-Clause
// rdma_server and rdma_client as a user runs them, with what he reads.
#include "tests/judges/two_programs.hpp"
#include "tests/support/expect_has.hpp"
#include "tools/rdma/pattern.hpp"

#include <arpa/inet.h>
#include <csignal>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

namespace {

using namespace testing_support;

const auto server_program = std::string(RDMA_SERVER);
const auto client_program = std::string(RDMA_CLIENT);

class rdma_tools : public judge {
protected:
    // A lab description that both sides use.
    void describe_lab(const std::string& text) {
        std::ofstream(root() / "tools.lab") << text;
        lab_options_ = fmt::format("--lab tools --config {}", (root() / "tools.lab").string());
    }
    std::vector<std::string> lab(const std::string& command) const { return in_lab(lab_options_, command); }
    program_result run_alone(const std::string& command) const {
        return run_program(lab(command), {"GAUDI_DIRECT_HLTHUNK"}, std::chrono::seconds(60));
    }
    both_results run_pair(const std::string& server_options, const std::string& client_options) const {
        const auto port = free_port();
        return run_both(lab(fmt::format("{} --once --port {} {}", server_program, port, server_options)),
                        lab(fmt::format("{} localhost:{} {}", client_program, port, client_options)), port);
    }
    static void expect_right(const both_results& both) {
        EXPECT_EQ(both.server.status, 0) << both.server.output;
        EXPECT_EQ(both.client.status, 0) << both.client.output;
        EXPECT_HAS(both.client.output, "all data right");
        EXPECT_HAS(both.server.output, "all data right");
    }

private:
    std::string lab_options_ = "--lab tools --gaudis 2";
};

// Pairs, link layers, ways to wait.
using pair_parameters = std::tuple<const char*, const char*, const char*, const char*>;
class rdma_pairs : public rdma_tools, public ::testing::WithParamInterface<pair_parameters> {};

TEST_P(rdma_pairs, all_tests_right) {
    const auto [server, client, link, wait] = GetParam();
    describe_lab(fmt::format("gaudis = 2\nhcas = 1\nlink_layer = {}\n", link));
    const auto both = run_pair(fmt::format("--memory {} --wait {}", server, wait),
                               fmt::format("--memory {} --wait {}", client, wait));
    expect_right(both);
    const auto way_of = [](std::string_view memory) { return memory == "host" ? "host" : "zero-copy"; };
    EXPECT_HAS(both.client.output, fmt::format("{} to {}", way_of(client), way_of(server)));
    EXPECT_HAS(both.client.output, std::string_view(link) == "ethernet" ? "RoCE 400" : "InfiniBand 400");
    for (const auto* line :
         {"send       client  right", "send back  server  right", "write      server  right",
          "read       client  right", "atomics    client  right", "virtual devices"})
        EXPECT_HAS(both.client.output, line);
}
std::string name_of_pair(const ::testing::TestParamInfo<pair_parameters>& info) {
    const auto [server, client, link, wait] = info.param;
    return fmt::format("{}_{}_{}_{}", server, client, link, wait);
}
INSTANTIATE_TEST_SUITE_P(every, rdma_pairs,
                         ::testing::Combine(::testing::Values("gaudi", "host"),
                                            ::testing::Values("gaudi", "host"),
                                            ::testing::Values("infiniband", "ethernet"),
                                            ::testing::Values("poll", "events")),
                         name_of_pair);

class rdma_sizes : public rdma_tools, public ::testing::WithParamInterface<const char*> {};
TEST_P(rdma_sizes, are_right) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    expect_right(run_pair("", fmt::format("--size {}", GetParam())));
    const auto staged = run_pair("--stage", fmt::format("--size {} --stage", GetParam()));
    expect_right(staged);
    EXPECT_HAS(staged.client.output, "staged to staged");
}
std::string name_of_size(const ::testing::TestParamInfo<const char*>& info) {
    return info.param;
}
INSTANTIATE_TEST_SUITE_P(sizes, rdma_sizes, ::testing::Values("1", "4095", "4096", "4097", "4M"),
                         name_of_size);
INSTANTIATE_TEST_SUITE_P(large, rdma_sizes, ::testing::Values("1G"), name_of_size);

// What stands against zero-copy, and the words for it.
struct obstacle {
    const char* name;
    const char* description;
    const char* faults;
    const char* words;
};
void PrintTo(const obstacle& what, std::ostream* out) {
    *out << what.name;
}
class rdma_obstacles : public rdma_tools, public ::testing::WithParamInterface<obstacle> {
protected:
    std::string with_faults() {
        const std::string faults = GetParam().faults;
        if (faults.empty())
            return {};
        std::ofstream(root() / "faults") << faults << '\n';
        return fmt::format("env GAUDI_LAB_FAULTS=@{} ", (root() / "faults").string());
    }
};

TEST_P(rdma_obstacles, are_named_when_zero_copy_is_required) {
    describe_lab(GetParam().description);
    const auto refused =
        run_alone(fmt::format("{}{} --require zero-copy --port 0", with_faults(), server_program));
    EXPECT_EQ(refused.status, 5) << refused.output;
    EXPECT_HAS(refused.output, "zero-copy was required and is impossible");
    EXPECT_HAS(refused.output, GetParam().words);
}

TEST_P(rdma_obstacles, lead_to_staging_that_is_announced_and_right) {
    describe_lab(GetParam().description);
    const auto port = free_port();
    const auto prefix = with_faults();
    const auto both = run_both(lab(fmt::format("{}{} --once --port {}", prefix, server_program, port)),
                               lab(fmt::format("{}{} localhost:{}", prefix, client_program, port)), port);
    expect_right(both);
    EXPECT_HAS(both.client.output, "STAGED through host memory");
    EXPECT_HAS(both.server.output, "STAGED through host memory");
    EXPECT_HAS(both.client.output, "staged to staged");
    EXPECT_HAS(both.client.output, GetParam().words);
    EXPECT_HAS(both.client.output, "skipped: the server's memory is staged");
}
std::string name_of_obstacle(const ::testing::TestParamInfo<obstacle>& info) {
    return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(
    all, rdma_obstacles,
    ::testing::Values(obstacle{"nic_without_dmabuf", "gaudis = 2\nhcas = 1\ndmabuf = no\n", "",
                               "its driver does not register DMA-BUFs"},
                      obstacle{"small_bar", "gaudis = 2\nhcas = 1\nsmall_bar = yes\n", "",
                               "the driver does not export the memory as a DMA-BUF"},
                      // The first call is the probe.
                      obstacle{"registration_refused", "gaudis = 2\nhcas = 1\n",
                               "ibv_reg_dmabuf_mr 2+ errno ENOMEM", "the NIC does not register the memory"}),
    name_of_obstacle);

TEST_F(rdma_tools, without_a_gaudi_host_memory_is_used_and_said_twice) {
    describe_lab("gaudis = 0\nhcas = 1\n");
    const auto both = run_pair("", "");
    expect_right(both);
    EXPECT_HAS(both.client.output, "Gaudi    HOST MEMORY, because there is no Gaudi");
    EXPECT_HAS(both.client.output, "\nHOST MEMORY was used");
    EXPECT_HAS(both.client.output, "host to host");
    const auto strict = run_alone(client_program + " localhost --memory gaudi");
    EXPECT_EQ(strict.status, 3);
    EXPECT_HAS(strict.output, "the driver knows no Gaudi");
}

TEST_F(rdma_tools, json_holds_everything) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto both = run_pair("--json", "--json --iterations 2 --size 64K");
    ASSERT_EQ(both.client.status, 0) << both.client.output;
    const auto client = nlohmann::json::parse(both.client.output);
    EXPECT_EQ(client["status"], 0);
    EXPECT_TRUE(client["problem"].is_null());
    EXPECT_EQ(client["endpoint"]["virtual"], true);
    EXPECT_EQ(client["endpoint"]["nic"]["name"], "vhca0");
    EXPECT_EQ(client["memory"]["way"], "zero-copy");
    EXPECT_EQ(client["peer"]["way"], "zero-copy");
    ASSERT_EQ(client["results"].size(), 5U);
    EXPECT_EQ(client["results"][0]["bytes"], 2 * 65536);
    for (const auto* cost : {"open", "allocate", "export", "register", "connect", "first_byte"})
        EXPECT_GT(client["setup_seconds"][cost].get<double>(), 0) << cost;
    const auto server = nlohmann::json::parse(both.server.output);
    EXPECT_EQ(server["sessions"][0]["results"].size(), 5U);
    EXPECT_EQ(server["sessions"][0]["status"], 0);
}

TEST_F(rdma_tools, only_the_tests_asked_for) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto both = run_pair("--quiet", "--test write,read --iterations 1");
    EXPECT_EQ(both.client.status, 0) << both.client.output;
    EXPECT_HAS(both.client.output, "write      server");
    EXPECT_HAS(both.client.output, "read       client");
    EXPECT_HAS_NOT(both.client.output, "send ");
    EXPECT_EQ(both.server.output, "");
}

TEST_F(rdma_tools, bad_input_is_one_line_with_the_remedy) {
    describe_lab("gaudis = 1\nhcas = 2\n[hca 1]\nport_up = no\n");
    const struct {
        const char* arguments;
        int status;
        const char* words;
    } cases[] = {
        {"no.such.host.invalid", 2, "the host or port cannot be resolved"},
        {"localhost:99999", 2, "'localhost:99999'"},
        {"localhost:1", 3, "nobody listens there"},
        {"localhost --size 0", 2, "--size 0: expected at least 1 byte"},
        {"localhost --size 4X", 2, "expected a number of bytes such as 4096, 4M or 1G"},
        {"localhost --size 200G", 3, "more than the device has"},
        {"localhost --iterations 0", 2, "--iterations 0: expected 1 to 1000000"},
        {"localhost --test sendrecv,fly", 2, "--test 'fly': expected sendrecv, write, read, atomics, all"},
        {"localhost --memory hbm", 2, "--memory 'hbm': expected gaudi, host, auto"},
        {"localhost --device 7", 3, "index 7; there are: 0 (0000:19:00.0, module 0)"},
        {"localhost --device x", 2, "expected an index such as 0 or a bus id"},
        {"localhost --ib-dev mlx5_0", 3, "mlx5_0; there are: vhca0 port 1"},
        {"localhost --ib-dev vhca0:x", 2, "expected NAME or NAME:PORT"},
        {"localhost --ib-dev vhca1", 3, "vhca1 port 1 is down"},
        {"localhost --gid-index 99", 3, "GID index 99 of vhca0 port 1"},
        {"localhost --memory host --stage", 2, "--stage is about Gaudi memory and contradicts --memory host"},
        {"localhost --stage --require zero-copy", 2, "contradict each other"},
        {"localhost --require speed", 2, "--require 'speed': expected zero-copy"},
        {"localhost --wait sleep", 2, "--wait 'sleep': expected poll, events"},
        {"", 2, "peer is required"},
        {"--nic mlx5_0", 2, "rdma_client: unknown argument '--nic'"},
    };
    for (const auto& each : cases) {
        SCOPED_TRACE(each.arguments);
        const auto refused = run_alone(fmt::format("{} {} --quiet", client_program, each.arguments));
        EXPECT_EQ(refused.status, each.status) << refused.output;
        EXPECT_HAS(refused.output, each.words);
    }
}

TEST_F(rdma_tools, a_port_in_use_and_a_busy_device_are_named) {
    describe_lab("gaudis = 1\nhcas = 1\n");
    const auto port = free_port();
    const auto both =
        run_both(lab(fmt::format("timeout --foreground -s INT 1.5 {} --port {}", server_program, port)),
                 lab(fmt::format("{} --memory host --port {}", server_program, port)), port);
    EXPECT_EQ(both.client.status, 3);
    EXPECT_HAS(both.client.output, fmt::format("port {}", port));
    EXPECT_HAS(both.client.output, "choose another port");
    const auto other = free_port();
    const auto again =
        run_both(lab(fmt::format("timeout --foreground -s INT 1.5 {} --port {}", server_program, other)),
                 lab(fmt::format("{} localhost:{}", client_program, other)), other);
    EXPECT_EQ(again.client.status, 3);
    EXPECT_HAS(again.client.output, "another process has the device open");
    EXPECT_HAS(again.client.output, "rdma_server");
}

TEST_F(rdma_tools, thirty_two_clients_at_once) {
    describe_lab("gaudis = 1\nhcas = 1\n");
    const auto port = free_port();
    program_result serving;
    std::thread server([&] {
        serving = run_program(lab(fmt::format("timeout --foreground -s INT 40 {} --port {} --wait events",
                                              server_program, port)),
                              {"GAUDI_DIRECT_HLTHUNK"}, std::chrono::seconds(60));
    });
    while (!listening(port))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::vector<program_result> results(32);
    std::vector<std::thread> clients;
    for (auto& result : results)
        clients.emplace_back([&] {
            result = run_program(
                lab(fmt::format("{} localhost:{} --memory host --size 100000 --wait events --quiet",
                                client_program, port)),
                {"GAUDI_DIRECT_HLTHUNK"}, std::chrono::seconds(60));
        });
    for (auto& client : clients)
        client.join();
    for (const auto& result : results)
        EXPECT_EQ(result.status, 0) << result.output;
    // One more as the last word, then the server is told to end by its own client's hand: --once is not on.
    (void)std::system(
        fmt::format("kill -INT $(pgrep -f '^{} --port {} ' | head -1)", server_program, port).c_str());
    server.join();
    std::size_t served = 0;
    for (auto at = serving.output.find("all data right"); at != std::string::npos;
         at = serving.output.find("all data right", at + 1))
        ++served;
    EXPECT_EQ(served, 32U) << serving.output;
}

TEST_F(rdma_tools, a_killed_peer_is_noticed_and_the_server_goes_on) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    program_result serving;
    std::thread server([&] {
        serving =
            run_program(lab(fmt::format("timeout --foreground -s INT 30 {} --port {}", server_program, port)),
                        {"GAUDI_DIRECT_HLTHUNK"}, std::chrono::seconds(60));
    });
    while (!listening(port))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    for (const auto* after : {"0.05", "0.1", "0.2", "0.3", "0.5"})
        (void)run_alone(fmt::format("timeout -s KILL {} {} localhost:{} --iterations 100000 --size 64K",
                                    after, client_program, port));
    const auto good = run_alone(fmt::format("{} localhost:{}", client_program, port));
    EXPECT_EQ(good.status, 0) << good.output;
    // Now the server dies under a client.
    std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        (void)std::system(
            fmt::format("kill -KILL $(pgrep -f '^{} --port {}' | head -1)", server_program, port).c_str());
    });
    const auto begin = std::chrono::steady_clock::now();
    const auto bad = run_alone(
        fmt::format("{} localhost:{} --iterations 100000 --size 64K --quiet", client_program, port));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    EXPECT_EQ(bad.status, 4) << bad.output;
    EXPECT_HAS(bad.output, "the peer is no longer there");
    killer.join();
    server.join();
    EXPECT_HAS(serving.output, "the peer is no longer there");
}

// One side dies inside its Nth call of the verbs: set-up, handshake, transfers, tear-down. The other one says
// so and ends, and the Gaudi is free again for the next.
class rdma_deaths : public rdma_tools, public ::testing::WithParamInterface<const char*> {};
TEST_P(rdma_deaths, at_every_step) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const bool client_dies = std::string_view(GetParam()) == "client";
    const char* text = std::getenv("GAUDI_TEST_STRIDE");
    const int stride = text != nullptr ? std::atoi(text) : 83;
    for (int n = 1; n < 1000000; n += n < 1000 ? stride : n / 4) { // later calls only look for the end
        SCOPED_TRACE(fmt::format("call {}", n));
        const auto port = free_port();
        auto server = fmt::format("{} --once --port {}", server_program, port);
        auto client = fmt::format("{} localhost:{} --iterations 1 --size 64K", client_program, port);
        auto& dying = client_dies ? client : server;
        std::ofstream(root() / "faults") << fmt::format("* {} die\n", n);
        dying = fmt::format("env GAUDI_LAB_FAULTS=@{} {}", (root() / "faults").string(), dying);
        // A client that dies before it connects leaves a server that waits on.
        if (client_dies)
            server = "timeout --foreground -s INT 2 " + server;
        const auto begin = std::chrono::steady_clock::now();
        const auto both = run_both(lab(server), lab(client), port, "/proc/net", std::chrono::seconds(20),
                                   std::chrono::seconds(2));
        const auto& [gone, left] =
            client_dies ? std::pair{both.client, both.server} : std::pair{both.server, both.client};
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
        EXPECT_HAS_NOT(left.output, "did not end in time");
        EXPECT_LT(left.status, 128) << left.output;
        if (gone.status != 128 + SIGKILL) {
            EXPECT_EQ(gone.status, 0) << gone.output;
            EXPECT_GT(n, 50);
            return;
        }
        if (left.status != 0) {
            EXPECT_TRUE(left.output.find("no longer there") != std::string::npos ||
                        left.output.find("nobody listens") != std::string::npos ||
                        left.output.find("connection failed") != std::string::npos || left.status == 124)
                << left.output;
        }
    }
    FAIL() << "no end";
}
INSTANTIATE_TEST_SUITE_P(of, rdma_deaths, ::testing::Values("client", "server"), name_of_size);

TEST_F(rdma_tools, a_bar_shows_progress_on_a_terminal) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    const auto work = fmt::format("{} localhost:{} --size 16M --iterations 40", client_program, port);
    auto on_terminal = lab("script -qec");
    on_terminal.push_back(work);
    on_terminal.emplace_back("/dev/null");
    const auto serve = lab(fmt::format("timeout 30 {} --once --port {} --quiet", server_program, port));
    const auto shown = run_both(serve, on_terminal, port).client;
    if (shown.output.find("failed to create pseudo-terminal") != std::string::npos)
        GTEST_SKIP() << "no terminals here: a chroot without /dev/pts";
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_HAS(shown.output, "/160 ");
    EXPECT_HAS(shown.output, "[###");
}

// Here and elsewhere `--foreground`: without it timeout signals the program twice, and the second Ctrl-C ends
// it at once.
TEST_F(rdma_tools, ctrl_c_ends_both_in_good_order) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    const auto both =
        run_both(lab(fmt::format("timeout --foreground -s INT 5 {} --port {}", server_program, port)),
                 lab(fmt::format("timeout --foreground -s INT 2 {} localhost:{} --iterations 100000",
                                 client_program, port)),
                 port);
    EXPECT_HAS(both.client.output, "rdma_client: interrupted");
    EXPECT_HAS(both.server.output, "reports: interrupted");
    EXPECT_HAS_NOT(both.server.output, "Segmentation");
}

TEST_F(rdma_tools, a_pulled_device_is_said_and_the_run_ends) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    std::ofstream(root() / "faults") << "hlthunk_command_submission 20 reset\n";
    const auto port = free_port();
    const auto both = run_both(lab(fmt::format("{} --once --port {}", server_program, port)),
                               lab(fmt::format("env GAUDI_LAB_FAULTS=@{} {} localhost:{} --iterations 100",
                                               (root() / "faults").string(), client_program, port)),
                               port);
    EXPECT_EQ(both.client.status, 1) << both.client.output;
    EXPECT_HAS(both.client.output, "the device failed or was reset");
    EXPECT_EQ(both.server.status, 1) << both.server.output;
    EXPECT_HAS(both.server.output, "reports: the device failed or was reset");
}

TEST_F(rdma_tools, strangers_and_silence_do_not_stop_the_server) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    program_result serving;
    std::thread server([&] {
        serving =
            run_program(lab(fmt::format("timeout --foreground -s INT 9 {} --port {}", server_program, port)),
                        {"GAUDI_DIRECT_HLTHUNK"}, std::chrono::seconds(60));
    });
    while (!listening(port))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto knock = [&](const std::string& words) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<std::uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
        EXPECT_EQ(::send(fd, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
        return fd;
    };
    const std::string magic = "gaudirdm";
    const int fds[] = {knock("GET / HTTP/1.1\r\n\r\n"), knock(std::string(5000, 'x')), knock("ga"), knock(""),
                       knock(magic + std::string("\0\x63", 2) + std::string(86, '\0'))};
    const auto good = run_alone(fmt::format("{} localhost:{}", client_program, port));
    EXPECT_EQ(good.status, 0) << good.output;
    server.join();
    for (const int fd : fds)
        ::close(fd);
    EXPECT_HAS(serving.output, "its first bytes are not ours");
    EXPECT_HAS(serving.output, "speaks protocol 99, we speak 1");
    EXPECT_HAS(serving.output, "the peer did not answer in time");
    EXPECT_HAS(serving.output, "all data right");
}

TEST_F(rdma_tools, the_example_of_the_readme) {
    const auto port = free_port();
    const auto both = run_both(lab(fmt::format("{} {}", EXAMPLE_SEND_BUFFER, port)),
                               lab(fmt::format("{} localhost:{}", EXAMPLE_SEND_BUFFER, port)), port);
    EXPECT_EQ(both.client.status, 0) << both.client.output;
    EXPECT_EQ(both.server.output, "4194304 bytes, zero-copy\n");
}

TEST_F(rdma_tools, the_nearest_nic_is_chosen_and_the_choice_explained) {
    describe_lab(
        "gaudis = 2\nhcas = 4\n[gaudi 1]\nnuma_node = 1\npci_switch = 9\n[hca 0]\nport_up = no\n"
        "[hca 2]\nnuma_node = 1\npci_switch = 9\n[hca 3]\nnuma_node = 1\npci_switch = 0\nspeed_gbps = 800\n");
    const auto chosen = [&](const std::string& options) {
        return run_alone(
                   fmt::format("timeout --foreground -s INT 0.5 {} --port 0 {}", server_program, options))
            .output;
    };
    const auto first = chosen("--device 0"), second = chosen("--device 1");
    EXPECT_HAS(first, "vhca1 port 1: InfiniBand 400 Gbit/s"); // its own one's port is down
    EXPECT_HAS(first, "chosen: on the NUMA node of the Gaudi");
    EXPECT_HAS(second, "vhca2 port 1");
    EXPECT_HAS(second, "chosen: behind the PCI switch of the Gaudi");
    EXPECT_HAS(chosen("--device 0 --ib-dev vhca3"), "vhca3 port 1: InfiniBand 800 Gbit/s");
    EXPECT_HAS(chosen("--memory host"), "vhca3 port 1"); // the fastest
}

TEST_F(rdma_tools, every_option_is_in_the_man_page) {
    auto text = text_of(SOURCE_FOLDER "/man/rdma_client.1");
    text.erase(std::remove(text.begin(), text.end(), '\\'), text.end());
    for (const auto& program : {server_program, client_program}) {
        std::istringstream help(run_program({program, "--help"}).output);
        for (std::string word; help >> word;)
            if (word.starts_with("--")) {
                EXPECT_HAS(text, word.substr(0, word.find(',')));
            }
    }
}

TEST(rdma_pattern, a_wrong_byte_is_found_with_its_offset) {
    using tools::rdma::pattern;
    std::vector<std::byte> bytes(4099);
    const pattern data{100};
    data.fill(bytes, 0);
    EXPECT_FALSE(data.check(bytes, 0));
    EXPECT_EQ(data.doubled().element(0), 200U);
    EXPECT_EQ(data.doubled().element(1), 202U);
    auto copy = bytes;
    tools::rdma::double_elements(copy);
    EXPECT_FALSE(data.doubled().check(copy, 0));
    for (const std::size_t offset : {0U, 17U, 4095U, 4096U, 4098U}) {
        auto wrong = bytes;
        wrong[offset] ^= std::byte{1};
        const auto found = data.check(wrong, 0);
        ASSERT_TRUE(found) << offset;
        EXPECT_EQ(found->offset, offset < 4096 ? offset / 4 * 4 : offset);
        EXPECT_NE(found->expected, found->found);
    }
    auto wrong = bytes;
    wrong[8] = std::byte{7};
    EXPECT_EQ(data.check(wrong, 0)->text(), "wrong element at offset 8: expected 102, found 7");
    // A piece that begins in the middle.
    EXPECT_FALSE(data.check(std::span(bytes).subspan(400), 400));
}

} // namespace
