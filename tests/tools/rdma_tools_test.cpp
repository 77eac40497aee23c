// SPDX-License-Identifier: BSD-3-Clause
// rdma_server and rdma_client as a user runs them, and their output.
#include "tests/judges/two_programs.hpp"
#include "tests/support/expect_has.hpp"
#include "tools/rdma/pattern.hpp"

#include <arpa/inet.h>
#include <csignal>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <sys/socket.h>

namespace {

using namespace testing_support;

const auto server_program = std::string(RDMA_SERVER);
const auto client_program = std::string(RDMA_CLIENT);

class rdma_tools : public judge {
protected:
    // The lab description of both sides.
    void describe_lab(const std::string& text) {
        std::ofstream(root() / "tools.lab") << text;
        lab_options_ = fmt::format("--lab tools --config {}", (root() / "tools.lab").string());
    }
    std::vector<std::string> lab(const std::string& command) const { return in_lab(lab_options_, command); }
    program_result run_alone(const std::string& command) const {
        return run_program(lab(command), without_hlthunk, std::chrono::seconds(120));
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

    // Starts a server and returns once it listens. End it with stop().
    std::unique_ptr<running_program> serve(unsigned port, const std::string& options = "") const {
        auto server = std::make_unique<running_program>(
            lab(fmt::format("{} --port {} {}", server_program, port, options)), without_hlthunk);
        EXPECT_TRUE(wait_until_listening(*server, port)) << server->output();
        return server;
    }
    static program_result stop(running_program& server) {
        server.signal_group(SIGINT);
        return server.wait();
    }
    // Starts a client with very many iterations and returns once it transfers.
    std::unique_ptr<running_program> busy_client(unsigned port) const {
        auto client = std::make_unique<running_program>(
            lab(fmt::format("{} localhost:{} --iterations 100000 --size 64K", client_program, port)),
            without_hlthunk);
        EXPECT_TRUE(client->wait_for_output("  server   ")) << client->output();
        return client;
    }

private:
    std::string lab_options_ = "--lab tools --gaudis 2";
};

// The virtual NIC holds back the last bytes of what it writes to Gaudi memory.
TEST_F(rdma_tools, wait_until_the_bytes_are_in_gaudi_memory) {
    ::setenv("GAUDI_LAB_HCA_MODE", "posted=60000ms", 1);
    const auto with = run_pair("--memory gaudi", "--memory gaudi");
    const auto without = run_pair("--memory gaudi --no-flush", "--memory gaudi --no-flush --test sendrecv");
    ::unsetenv("GAUDI_LAB_HCA_MODE");
    expect_right(with);
    EXPECT_EQ(without.client.status, 1) << without.client.output;
}

// Memory of server and client, link layer, wait mode.
using pair_parameters = std::tuple<const char*, const char*, const char*, const char*>;
class rdma_pairs : public rdma_tools, public ::testing::WithParamInterface<pair_parameters> {};

TEST_P(rdma_pairs, all_tests_right) {
    const auto [server, client, link, wait] = GetParam();
    describe_lab(fmt::format("gaudis = 2\nhcas = 1\nlink_layer = {}\n", link));
    const auto both = run_pair(fmt::format("--memory {} --wait {}", server, wait),
                               fmt::format("--memory {} --wait {}", client, wait));
    expect_right(both);
    const auto path_of = [](std::string_view memory) { return memory == "host" ? "host" : "zero-copy"; };
    EXPECT_HAS(both.client.output, fmt::format("{} to {}", path_of(client), path_of(server)));
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

// A Gaudi3 has no queues for users: the programs fill and read its memory through the NIC in loopback.
TEST_F(rdma_tools, memory_of_gaudi3_moves_without_staging) {
    describe_lab("gaudis = 2\nhcas = 1\ngeneration = gaudi3\n");
    const auto both = run_pair("--memory gaudi --require zero-copy", "--memory gaudi --require zero-copy");
    expect_right(both);
    EXPECT_HAS(both.client.output, "zero-copy to zero-copy");
    for (const auto* each : {&both.client, &both.server}) {
        EXPECT_HAS(each->output, "gaudi3");
        EXPECT_HAS_NOT(each->output, "STAGED");
    }
}

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
// labels: full
INSTANTIATE_TEST_SUITE_P(large, rdma_sizes, ::testing::Values("1G"), name_of_size);

// A cause that prevents zero-copy, and the message that names it.
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

TEST_P(rdma_obstacles, lead_to_announced_staging) {
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
    EXPECT_EQ(client["memory"]["path"], "zero-copy");
    EXPECT_EQ(client["peer"]["path"], "zero-copy");
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
        {"localhost:1", 3, "no program listens there"},
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

// labels: waits
TEST_F(rdma_tools, a_port_in_use_and_a_busy_device_are_named) {
    describe_lab("gaudis = 1\nhcas = 1\n");
    const auto port = free_port();
    const auto server = serve(port);
    const auto second = run_alone(fmt::format("{} --memory host --port {}", server_program, port));
    EXPECT_EQ(second.status, 3);
    EXPECT_HAS(second.output, fmt::format("port {}", port));
    EXPECT_HAS(second.output, "choose another port");
    const auto client = run_alone(fmt::format("{} localhost:{}", client_program, port));
    EXPECT_EQ(client.status, 3);
    EXPECT_HAS(client.output, "another process has the device open");
    EXPECT_HAS(client.output, "rdma_server");
    EXPECT_EQ(stop(*server).status, 0);
}

TEST_F(rdma_tools, thirty_two_clients_at_once) {
    describe_lab("gaudis = 1\nhcas = 1\n");
    const auto port = free_port();
    const auto server = serve(port, "--wait events");
    std::vector<std::unique_ptr<running_program>> clients;
    for (int i = 0; i < 32; ++i)
        clients.push_back(std::make_unique<running_program>(
            lab(fmt::format("{} localhost:{} --memory host --size 100000 --wait events --quiet",
                            client_program, port)),
            without_hlthunk));
    for (const auto& client : clients) {
        const auto result = client->wait(std::chrono::seconds(240));
        EXPECT_EQ(result.status, 0) << result.output;
    }
    const auto serving = stop(*server);
    std::size_t served = 0;
    for (auto at = serving.output.find("all data right"); at != std::string::npos;
         at = serving.output.find("all data right", at + 1))
        ++served;
    EXPECT_EQ(served, 32U) << serving.output;
}

TEST_F(rdma_tools, a_killed_peer_is_noticed_and_the_server_goes_on) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    const auto server = serve(port);
    for (int i = 0; i < 3; ++i) {
        const auto client = busy_client(port);
        client->signal_group(SIGKILL);
        EXPECT_EQ(client->wait().status, 128 + SIGKILL);
    }
    // The device of a killed process is free when all of its threads are gone.
    program_result good;
    for (int i = 0; i < 100; ++i) {
        good = run_alone(fmt::format("{} localhost:{}", client_program, port));
        if (good.output.find("another process has the device open") == std::string::npos)
            break;
    }
    EXPECT_EQ(good.status, 0) << good.output;
    // Now the server dies while a client transfers.
    const auto client = busy_client(port);
    server->signal_group(SIGKILL);
    const auto serving = server->wait();
    EXPECT_HAS(serving.output, "the peer is no longer there");
    const auto bad = client->wait();
    EXPECT_EQ(bad.status, 4) << bad.output;
    EXPECT_HAS(bad.output, "the peer is no longer there");
}

// One side dies inside its Nth verbs call: set-up, handshake, transfers, tear-down. The other side reports it
// and exits, and the Gaudi is free for the next process.
class rdma_deaths : public rdma_tools, public ::testing::WithParamInterface<const char*> {};
// labels: waits
TEST_P(rdma_deaths, at_every_step) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const bool client_dies = std::string_view(GetParam()) == "client";
    const char* text = std::getenv("GAUDI_TEST_STRIDE");
    const int stride = text != nullptr ? std::atoi(text) : 83;
    for (int n = 1; n < 1000000; n += n < 1000 ? stride : n / 4) { // later calls only poll for completions
        SCOPED_TRACE(fmt::format("call {}", n));
        const auto port = free_port();
        auto server = fmt::format("{} --once --port {}", server_program, port);
        auto client = fmt::format("{} localhost:{} --iterations 1 --size 64K --wait-for-server 0",
                                  client_program, port);
        auto& dying = client_dies ? client : server;
        std::ofstream(root() / "faults") << fmt::format("* {} die\n", n);
        dying = fmt::format("env GAUDI_LAB_FAULTS=@{} {}", (root() / "faults").string(), dying);
        running_program serving(lab(server), without_hlthunk);
        (void)wait_until_listening(serving, port); // returns early if the server dies before that
        both_results both;
        both.client = run_program(lab(client), without_hlthunk);
        // If the client died before it connected, the server still waits: another client ends it.
        if (client_dies && !serving.ended())
            (void)run_program(lab(fmt::format("{} localhost:{} --iterations 1 --size 64K --wait-for-server 0",
                                              client_program, port)),
                              without_hlthunk);
        both.server = serving.wait();
        const auto& [gone, left] =
            client_dies ? std::pair{both.client, both.server} : std::pair{both.server, both.client};
        EXPECT_HAS_NOT(left.output, "did not end in time");
        EXPECT_LT(left.status, 128) << left.output;
        if (gone.status != 128 + SIGKILL) {
            EXPECT_EQ(gone.status, 0) << gone.output;
            EXPECT_GT(n, 50);
            return;
        }
        if (left.status != 0) {
            EXPECT_TRUE(left.output.find("no longer there") != std::string::npos ||
                        left.output.find("no program listens") != std::string::npos ||
                        left.output.find("connection failed") != std::string::npos)
                << left.output;
        }
    }
    FAIL() << "no end";
}
INSTANTIATE_TEST_SUITE_P(of, rdma_deaths, ::testing::Values("client", "server"), name_of_size);

// labels: waits
TEST_F(rdma_tools, a_bar_shows_progress_on_a_terminal) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    const auto server = serve(port, "--quiet");
    auto on_terminal = lab("script -qec");
    on_terminal.push_back(
        fmt::format("{} localhost:{} --size 16M --iterations 100000", client_program, port));
    on_terminal.emplace_back("/dev/null");
    running_program shown(on_terminal, without_hlthunk);
    const bool bar = shown.wait_for_output("/400000 ");
    if (shown.output().find("failed to create pseudo-terminal") != std::string::npos)
        GTEST_SKIP() << "no terminals here: a chroot without /dev/pts";
    EXPECT_TRUE(bar) << shown.output();
    EXPECT_HAS(shown.output(), "\r[");
    shown.signal_group(SIGKILL); // the program ends with its terminal
    (void)shown.wait();
    (void)stop(*server);
}

// labels: waits
TEST_F(rdma_tools, ctrl_c_ends_both_in_good_order) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    const auto server = serve(port);
    const auto client = busy_client(port);
    client->signal_group(SIGINT);
    EXPECT_HAS(client->wait().output, "rdma_client: interrupted");
    EXPECT_TRUE(server->wait_for_output("reports: interrupted"));
    const auto serving = stop(*server);
    EXPECT_EQ(serving.status, 0);
    EXPECT_HAS_NOT(serving.output, "Segmentation");
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

// labels: waits
TEST_F(rdma_tools, unknown_clients_and_silence_do_not_stop_the_server) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    const auto server = serve(port);
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
    for (const auto* words :
         {"its first bytes are not a gaudi-direct handshake", "has protocol version 99, this side 2",
          "the peer did not answer in time", "all data right"})
        EXPECT_TRUE(server->wait_for_output(words)) << words << " in " << server->output();
    EXPECT_EQ(stop(*server).status, 0);
    for (const int fd : fds)
        ::close(fd);
}

// These programs enter the lab without `lab run`, which would clean up after them.
TEST_F(rdma_tools, memory_of_killed_programs_is_released_by_the_next_user) {
    const std::vector<std::vector<std::string>> commands{
        {GAUDI_DIRECT_TOOL, "lab", "list"}, {GAUDI_DIRECT_TOOL, "lab", "show"}, {GAUDI_DIRECT_TOOL, "info"}};
    for (const auto& command : commands) {
        SCOPED_TRACE(command.back());
        const auto port = std::to_string(free_port());
        running_program server({server_program, "--port", port}, without_hlthunk);
        ASSERT_TRUE(server.wait_for_output("listening on port")) << server.output();
        running_program client(
            {client_program, "localhost:" + port, "--size", "64M", "--iterations", "100000"},
            without_hlthunk);
        ASSERT_TRUE(client.wait_for_output("  server   ")) << client.output();
        while (stored_bytes(root()) < 100 << 20)
            ASSERT_FALSE(client.ended()) << client.output();
        server.stop_it(); // both: a survivor would release its memory itself
        client.stop_it();
        for (auto* each : {&server, &client}) {
            each->signal_group(SIGKILL);
            EXPECT_EQ(each->wait().status, 128 + SIGKILL);
        }
        EXPECT_GE(stored_bytes(root()), 100U << 20) << "no program has entered the lab since";
        EXPECT_EQ(run_program(command, without_hlthunk).status, 0);
        EXPECT_LT(stored_bytes(root()), 16U << 20);
    }
}

TEST_F(rdma_tools, a_server_bounds_what_a_client_may_ask_for) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto both = run_pair("--max-size 1M", "--size 1048577");
    EXPECT_EQ(both.client.status, 4) << both.client.output;
    for (const auto* each : {&both.client, &both.server})
        EXPECT_HAS(each->output,
                   "the client requests 1.00 MiB (1048577 bytes); this server allows up to 1.00 MiB "
                   "(rdma_server --max-size)");
    const auto huge = run_pair("", "--size 90G");
    EXPECT_EQ(huge.client.status, 4) << huge.client.output;
    EXPECT_HAS(huge.client.output, "up to 4.00 GiB (rdma_server --max-size)");
    // Host memory too: nothing is allocated before the size is known to fit.
    const auto too_large =
        run_alone(fmt::format("{} localhost:{} --memory host --size 200000G", client_program, free_port()));
    EXPECT_EQ(too_large.status, 3) << too_large.output;
    EXPECT_HAS(too_large.output, "of memory are available on this host or in this container");
    const auto nonsense = run_alone(fmt::format("{} --max-size many", server_program));
    EXPECT_EQ(nonsense.status, 2);
    EXPECT_HAS(nonsense.output, "--max-size 'many': expected a number of bytes such as 4096, 4M or 1G");
}

TEST_F(rdma_tools, a_client_waits_for_its_server) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto port = free_port();
    running_program client(lab(fmt::format("{} localhost:{} --wait-for-server 60", client_program, port)),
                           without_hlthunk);
    ASSERT_TRUE(client.wait_for_output("  memory   ")) << client.output();
    const auto server = serve(port);
    EXPECT_EQ(client.wait().status, 0) << client.output();
    EXPECT_EQ(stop(*server).status, 0);
    const auto help =
        run_alone(fmt::format("{} --help", client_program)); // README starts both without a pause
    EXPECT_HAS(help.output, "--wait-for-server FLOAT=2 ");
    const auto alone =
        run_alone(fmt::format("{} localhost:{} --wait-for-server 0", client_program, free_port()));
    EXPECT_EQ(alone.status, 3);
    EXPECT_HAS(alone.output, "no program listens there");
    // In a pipe, too, the error follows the earlier output.
    EXPECT_LT(alone.output.find("  memory   "), alone.output.find("no program listens there"));
}

TEST_F(rdma_tools, short_operations_say_a_rate_and_no_address_twice) {
    describe_lab("gaudis = 2\nhcas = 1\n");
    const auto both = run_pair("", "--size 8");
    EXPECT_EQ(both.client.status, 0) << both.client.output;
    EXPECT_HAS_NOT(both.client.output, "GB/s");
    EXPECT_TRUE(
        std::regex_search(both.client.output, std::regex("atomics +client +right +[0-9]+ .* [0-9.]+ [kM]/s")))
        << both.client.output;
    const auto port = free_port();
    const auto server = serve(port);
    const auto client = busy_client(port);
    client->signal_group(SIGINT);
    (void)client->wait();
    EXPECT_TRUE(server->wait_for_output("reports: interrupted")) << server->output();
    EXPECT_FALSE(std::regex_search(stop(*server).output, std::regex("(127.0.0.1:[0-9]+): \\1")))
        << server->output();
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
        const auto server = serve(free_port(), options);
        return stop(*server).output;
    };
    const auto first = chosen("--device 0"), second = chosen("--device 1");
    EXPECT_HAS(first, "vhca1 port 1: InfiniBand 400 Gbit/s"); // the port of vhca0 is down
    EXPECT_HAS(first, "chosen: on the NUMA node of the Gaudi");
    EXPECT_HAS(second, "vhca2 port 1");
    EXPECT_HAS(second, "chosen: on the same PCI switch as the Gaudi");
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
    // A part that begins in the middle.
    EXPECT_FALSE(data.check(std::span(bytes).subspan(400), 400));
}

} // namespace
