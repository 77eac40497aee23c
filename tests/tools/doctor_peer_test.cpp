// SPDX-License-Identifier: BSD-3-Clause
// gaudi-direct doctor --peer: what two servers find out about each other, and each verdict about it.
#include "tests/judges/two_programs.hpp"
#include "tests/support/child.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/test_lab.hpp"

#include <fmt/format.h>
#include <fstream>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace testing_support;
using json = nlohmann::json;

// Something that listens where a doctor should, sends one line to who connects, and reads until it leaves.
class stranger {
public:
    explicit stranger(std::string says) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof(address);
        if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(socket_, 1) != 0 ||
            ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
            throw std::runtime_error("no socket");
        port_ = ntohs(address.sin_port);
        answering_ = std::thread([this, line = std::move(says) + "\n"] {
            const int peer = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
            (void)::send(peer, line.data(), line.size(), MSG_NOSIGNAL);
            for (char byte = 0; ::recv(peer, &byte, 1, 0) > 0;)
                ;
            ::close(peer);
        });
    }
    ~stranger() {
        ::shutdown(socket_, SHUT_RDWR); // if none connected
        answering_.join();
        ::close(socket_);
    }
    stranger(const stranger&) = delete;
    stranger& operator=(const stranger&) = delete;
    [[nodiscard]] std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

private:
    int socket_;
    std::uint16_t port_ = 0;
    std::thread answering_;
};

class doctor_peer_test : public test_lab {
protected:
    static std::vector<std::string> in_lab(const std::string& name, const std::vector<std::string>& arguments,
                                           const std::vector<std::string>& variables = {}) {
        std::vector<std::string> command = {GAUDI_DIRECT_TOOL, "lab", "run", "--lab", name, "--", "env"};
        command.insert(command.end(), variables.begin(), variables.end());
        command.insert(command.end(), {GAUDI_DIRECT_TOOL, "doctor"});
        command.insert(command.end(), arguments.begin(), arguments.end());
        return command;
    }
    // What the doctor of this lab finds about a peer.
    static json about(const std::string& peer) {
        const auto done = run_program(in_lab("default", {"--json", "--no-probe", "--peer", peer}),
                                      {"GAUDI_DIRECT_HLTHUNK"});
        auto report = json::parse(done.output, nullptr, false);
        if (report.is_discarded())
            ADD_FAILURE() << done.output;
        return report;
    }
    static json about_stranger(json facts) {
        const stranger other(facts.dump());
        return about(other.address());
    }
    // What a good doctor says, with a NIC like that of this lab.
    static json facts() {
        return {{"doctor", 1},
                {"version", "0.1.0"},
                {"ucx", "1.23.0"},
                {"gaudi", false},
                {"problem", ""},
                {"port", 1},
                {"nic",
                 {{"name", "mlx5_0:1"},
                  {"ethernet", false},
                  {"gbps", 400},
                  {"mtu", 4096},
                  {"gid", "fe80::1 (index 0)"}}}};
    }
    static void expect(const json& report, const std::string& check, const std::string& verdict,
                       const std::string& observed, const std::string& remedy = "") {
        for (const auto& entry : report["findings"])
            if (entry["check"] == check) {
                EXPECT_EQ(entry["verdict"], verdict) << entry.dump();
                EXPECT_HAS(entry["observed"].get<std::string>(), observed);
                EXPECT_HAS(entry["remedy"].get<std::string>(), remedy);
                return;
            }
        ADD_FAILURE() << "no " << check << " in " << report.dump(1);
    }
    // Another doctor of this lab, or of another one, that waits.
    struct other_doctor {
        std::string port = std::to_string(free_port());
        running_program program;
        explicit other_doctor(const std::string& lab = "default",
                              const std::vector<std::string>& variables = {})
            : program(in_lab(lab, {"--serve", "--port", port}, variables), {"GAUDI_DIRECT_HLTHUNK"}) {
            if (!program.wait_for_output("waiting at TCP port " + port))
                throw std::runtime_error(program.output());
        }
        [[nodiscard]] std::string address() const { return "127.0.0.1:" + port; }
    };
};

TEST_F(doctor_peer_test, bytes_pass_in_both_directions) {
    describe("gaudis = 2\nhcas = 1");
    other_doctor other;
    const auto seen = about(other.address());
    expect(seen, "peer.reachable", "good", "a doctor answers");
    expect(seen, "peer.version", "good", "gaudi-direct ");
    expect(seen, "peer.fabric", "good", "vhca0:1 (InfiniBand 400 Gbit/s, GID fe80:");
    expect(seen, "peer.gid", "good", "");
    expect(seen, "peer.mtu", "good", "MTU 4096");
    expect(seen, "peer.host_transfer", "good", "host memory to host memory, every byte right, ");
    expect(seen, "peer.gaudi_transfer", "good", "HBM to HBM, every byte right, ");
    EXPECT_HAS(seen["zero_copy"]["answer"].get<std::string>(),
               fmt::format("; with {}: yes", other.address()));
    const auto done = other.program.wait();
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_HAS(done.output, "a doctor of 127.0.0.1 connected\n16 messages of 4 MiB with 127.0.0.1\n");
}

TEST_F(doctor_peer_test, without_a_free_gaudi_host_memory_is_tried) {
    describe("gaudis = 1\nhcas = 1"); // one side gets it
    other_doctor other;
    const auto seen = about(other.address());
    expect(seen, "peer.host_transfer", "good", "every byte right");
    expect(seen, "peer.gaudi_transfer", "unknown", "no Gaudi is free for it ",
           "when one is free on each side");
    EXPECT_EQ(other.program.wait().status, 0);
}

TEST_F(doctor_peer_test, who_is_not_there) {
    describe("gaudis = 0\nhcas = 1");
    const auto nobody = fmt::format("127.0.0.1:{}", free_port());
    auto seen = about(nobody);
    expect(seen, "peer.reachable", "broken", "Connection refused",
           "start gaudi-direct doctor --serve there, and open TCP port");
    EXPECT_HAS(seen["zero_copy"]["answer"].get<std::string>(), fmt::format("not with {}, because ", nobody));
    expect(about("no.such.host.invalid"), "peer.reachable", "broken", "no.such.host.invalid is not known");
    expect(about_stranger("hello"), "peer.reachable", "broken", "is no doctor");
    expect(about_stranger({{"doctor", 2}}), "peer.reachable", "broken", "is no doctor");
    expect(about_stranger({{"doctor", 1}}), "peer.version", "broken", "the other doctor's answer",
           "install the same version");
}

TEST_F(doctor_peer_test, what_does_not_fit) {
    describe("gaudis = 0\nhcas = 1");
    auto other = facts();
    other["version"] = "9.9.9";
    other["ucx"] = "1.20.0";
    other["nic"]["mtu"] = 1024;
    auto seen = about_stranger(other);
    expect(seen, "peer.version", "warning", "9.9.9 there", "install the same version on both");
    expect(seen, "peer.ucx", "warning", "UCX 1.20.0", "must not be sent keys of Gaudi memory");
    expect(seen, "peer.mtu", "warning", "MTU 4096 here, 1024 there: the smaller one is used",
           "set the same MTU");
    expect(seen, "peer.connection", "broken", "");
    other = facts();
    other["ucx"] = "";
    seen = about_stranger(other);
    expect(seen, "peer.ucx", "unknown", "no UCX is found there");
    other["ucx"] = "1.23.0";
    other["nic"]["ethernet"] = true;
    seen = about_stranger(other);
    expect(seen, "peer.ucx", "good", "UCX 1.23.0");
    expect(seen, "peer.fabric", "broken", "Ethernet 400 Gbit/s, GID fe80::1", "use NICs of one fabric");
    other.erase("nic");
    other["problem"] = "there is no NIC";
    seen = about_stranger(other);
    expect(seen, "peer.nic", "broken", "there is no NIC", "run doctor on that side alone");
}

TEST_F(doctor_peer_test, unlike_gids_are_a_warning) {
    describe("gaudis = 0\nhcas = 1\nlink_layer = ethernet\naddress = 127.0.0.1");
    auto other = facts();
    other["nic"]["ethernet"] = true;
    other["nic"]["gid"] = "2001:db8::7 (index 3)";
    expect(about_stranger(other), "peer.gid", "warning", "GIDs of unlike types", "choose GIDs of one type");
}

TEST_F(doctor_peer_test, a_peer_that_dies_or_carries_wrong_bytes) {
    describe("gaudis = 2\nhcas = 1");
    {
        other_doctor other("default", {"GAUDI_LAB_FAULTS=ibv_post_send 3 die"});
        expect(about(other.address()), "peer.host_transfer", "broken", "host memory to host memory: ");
    }
    describe("gaudis = 2\nhcas = 1\npeer_to_peer = no");
    other_doctor other;
    const auto seen = about(other.address());
    expect(seen, "peer.host_transfer", "good", "every byte right");
    expect(seen, "peer.gaudi_transfer", "broken", "bytes arrived wrong", "PCIe does not carry");
    EXPECT_EQ(other.program.wait().status, 1) << "it says so too";
}

TEST_F(doctor_peer_test, a_taken_port_is_named) {
    describe("gaudis = 0\nhcas = 1");
    other_doctor other;
    const auto second =
        run_program(in_lab("default", {"--serve", "--port", other.port}), {"GAUDI_DIRECT_HLTHUNK"});
    EXPECT_EQ(second.status, 1);
    EXPECT_HAS(second.output,
               fmt::format("cannot listen on port {}: Address already in use; name another port with --port",
                           other.port));
}

} // namespace
