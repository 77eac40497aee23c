// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/connection.hpp>

#include <optional>
#include <string>
#include <vector>

namespace tools::rdma {

// Exit statuses of both programs.
enum exit_code {
    right = 0,        // all data arrived as it was sent
    wrong = 1,        // a byte was wrong, or a transfer failed
    usage = 2,        // an option or its value is invalid
    no_setup = 3,     // no device, NIC, memory or connection
    peer_lost = 4,    // the peer disconnected, or refused
    no_zero_copy = 5, // required, but not possible
    interrupted = 130
};

// The options of both programs.
struct options {
    std::string memory = "auto"; // gaudi, host or auto
    std::string device;          // index or bus id
    std::string nic;             // NAME or NAME:PORT
    std::optional<unsigned> gid_index;
    std::string require; // zero-copy
    bool stage = false;
    std::string wait = "poll"; // poll or events
    unsigned deadline_seconds = 30;
    bool as_json = false, quiet = false, no_lab = false, no_flush = false;

    [[nodiscard]] gaudi::path_policy policy() const;
    [[nodiscard]] gaudi::connection_options connection() const;
};

// What the client decides for both sides.
struct job {
    std::string size_text = "4M";
    std::uint64_t size = 0;
    unsigned iterations = 3;
    std::vector<std::string> tests{"all"};

    [[nodiscard]] bool has(std::string_view test) const;
};

// The two command lines. `completed` holds the exit status if the program must exit now: after help, version,
// or an invalid option, which was reported.
struct client_line {
    rdma::options options;
    job work;
    std::string peer; // always with a port
    double wait_for_server_seconds = 2;
    std::optional<int> completed;
};
struct server_line {
    rdma::options options;
    std::uint16_t port = gaudi::default_port;
    std::string address;
    bool once = false;
    std::string most_text = "4G";
    std::uint64_t most_bytes = 0; // maximum that one client may ask for
    std::optional<int> completed;
};
[[nodiscard]] client_line parse_client(int argc, char** argv);
[[nodiscard]] server_line parse_server(int argc, char** argv);
// Sets the size; returns an empty text, or what is wrong.
[[nodiscard]] std::string complete(job& work);
// "4M", "1G", "4096"; empty if the text is no size.
[[nodiscard]] std::optional<std::uint64_t> parse_size(const std::string& text);

} // namespace tools::rdma
