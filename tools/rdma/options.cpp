// SPDX-License-Identifier: BSD-3-Clause
#include "tools/rdma/options.hpp"

#include "tools/arguments.hpp"

#include <gaudi/version.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace tools::rdma {
namespace {

constexpr std::string_view known_tests[] = {"sendrecv", "write", "read", "atomics", "all"};
constexpr unsigned most_iterations = 1'000'000;

void add_options(CLI::App& program, options& into) {
    program.add_option("--memory", into.memory, "gaudi, host, or auto: Gaudi memory where there is a Gaudi")
        ->capture_default_str();
    program.add_option("--device", into.device, "Which Gaudi: index or bus id (the first free one)");
    program.add_option("--ib-dev", into.nic,
                       "Which NIC: NAME or NAME:PORT (the nearest with an active port)");
    program.add_option("--gid-index", into.gid_index, "Which GID of the port (RoCE v2 over IPv4 first)");
    program.add_option("--require", into.require, "zero-copy: fail rather than stage through host memory");
    program.add_flag("--stage", into.stage, "Stage device memory through host memory, for comparison");
    program.add_option("--wait", into.wait, "poll, or events: sleep until something happens")
        ->capture_default_str();
    program
        .add_option("--deadline", into.deadline_seconds,
                    "Seconds that a transfer or a step of the peer may take")
        ->capture_default_str();
    program.add_flag("--no-flush", into.no_flush,
                     "Report a message before its bytes are certain to be in Gaudi memory, for comparison");
    program.add_flag("--json", into.as_json, "Machine-readable output");
    program.add_flag("--quiet", into.quiet, "Only the result, and what went wrong");
    program.add_flag("--no-lab", into.no_lab, "Do not go to the lab when there is no hardware");
}

void add_job(CLI::App& program, job& into) {
    program.add_option("--size", into.size_text, "Bytes of the buffer; K, M and G are binary")
        ->capture_default_str();
    program.add_option("--iterations", into.iterations, "How often each test is run")->capture_default_str();
    program.add_option("--test", into.tests, "sendrecv, write, read, atomics or all, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
}

std::string check(const options& options) {
    const auto one_of = [](std::string_view option, const std::string& value,
                           std::initializer_list<std::string_view> allowed) -> std::string {
        if (std::find(allowed.begin(), allowed.end(), value) != allowed.end())
            return {};
        return fmt::format("{} '{}': expected {}", option, value, fmt::join(allowed, ", "));
    };
    std::string problem = one_of("--memory", options.memory, {"gaudi", "host", "auto"});
    if (problem.empty() && !options.require.empty())
        problem = one_of("--require", options.require, {"zero-copy"});
    if (problem.empty())
        problem = one_of("--wait", options.wait, {"poll", "events"});
    if (problem.empty() && options.memory == "host")
        for (const auto& [option, contradicts] : {std::pair{"--device", !options.device.empty()},
                                                  {"--require zero-copy", !options.require.empty()},
                                                  {"--stage", options.stage},
                                                  {"--no-flush", options.no_flush}})
            if (contradicts)
                return fmt::format("{} is about Gaudi memory and contradicts --memory host: leave out one",
                                   option);
    if (problem.empty() && options.stage && !options.require.empty())
        return "--stage and --require zero-copy contradict each other: leave out one";
    if (problem.empty() && options.deadline_seconds == 0)
        return "--deadline 0: expected at least 1 second";
    return problem;
}

// Parses and checks; returns the exit status if the program must exit now.
std::optional<int> parse(CLI::App& program, int argc, char** argv) {
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return report_error(program, error, usage);
    }
    return {};
}

std::optional<int> complain(const CLI::App& program, const std::string& problem) {
    if (problem.empty())
        return {};
    fmt::print(stderr, "{}: {}\n", program.get_name(), problem);
    return usage;
}

} // namespace

gaudi::path_policy options::policy() const {
    return stage             ? gaudi::path_policy::staged_only
           : require.empty() ? gaudi::path_policy::prefer_zero_copy
                             : gaudi::path_policy::require_zero_copy;
}

gaudi::connection_options options::connection() const {
    gaudi::connection_options chosen;
    chosen.wait = wait == "events" ? gaudi::wait_mode::events : gaudi::wait_mode::poll;
    chosen.flush_device = !no_flush;
    return chosen;
}

bool job::has(std::string_view test) const {
    return std::any_of(tests.begin(), tests.end(),
                       [&](const auto& each) { return each == test || each == "all"; });
}

std::optional<std::uint64_t> parse_size(const std::string& text) {
    std::uint64_t number = 0;
    const auto* end = text.data() + text.size();
    const auto [rest, wrong] = std::from_chars(text.data(), end, number);
    const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
    if (wrong != std::errc{})
        return {};
    unsigned shift = 0;
    if (unit == "K" || unit == "k" || unit == "KiB")
        shift = 10;
    else if (unit == "M" || unit == "m" || unit == "MiB")
        shift = 20;
    else if (unit == "G" || unit == "g" || unit == "GiB")
        shift = 30;
    else if (!unit.empty() && unit != "B")
        return {};
    if (number > ~0ULL >> shift)
        return {};
    return number << shift;
}

std::string complete(job& work) {
    const auto size = parse_size(work.size_text);
    if (!size)
        return fmt::format("--size '{}': expected a number of bytes such as 4096, 4M or 1G", work.size_text);
    if (*size == 0)
        return "--size 0: expected at least 1 byte";
    work.size = *size;
    if (work.iterations == 0 || work.iterations > most_iterations)
        return fmt::format("--iterations {}: expected 1 to {}", work.iterations, most_iterations);
    for (const auto& test : work.tests)
        if (std::find(std::begin(known_tests), std::end(known_tests), test) == std::end(known_tests))
            return fmt::format("--test '{}': expected {}", test, fmt::join(known_tests, ", "));
    return {};
}

client_line parse_client(int argc, char** argv) {
    client_line line;
    auto port = gaudi::default_port;
    CLI::App program{"Moves data between its Gaudi and an rdma_server's by RDMA, and checks every byte",
                     "rdma_client"};
    program.set_version_flag("--version", std::string(gaudi::version()));
    program.add_option("peer", line.peer, "HOST, HOST:PORT or [IPV6]:PORT of the server")->required();
    program.add_option("--port", port, "Port where the peer names none")->capture_default_str();
    program
        .add_option("--wait-for-server", line.wait_for_server_seconds,
                    "Seconds to go on trying while no server listens")
        ->capture_default_str();
    add_job(program, line.work);
    add_options(program, line.options);
    line.completed = parse(program, argc, argv);
    if (!line.completed)
        line.completed = complain(program, check(line.options));
    if (!line.completed)
        line.completed = complain(program, complete(line.work));
    const auto colons = std::count(line.peer.begin(), line.peer.end(), ':');
    if (colons > 1 && !line.peer.starts_with('['))
        line.peer = fmt::format("[{}]", line.peer); // an IPv6 address
    if (colons == 0 || line.peer.ends_with(']'))
        line.peer += fmt::format(":{}", port);
    return line;
}

server_line parse_server(int argc, char** argv) {
    server_line line;
    CLI::App program{"Serves rdma_clients: receives into Gaudi memory, doubles, sends back; writes, is read",
                     "rdma_server"};
    program.set_version_flag("--version", std::string(gaudi::version()));
    program.add_option("--port", line.port, "Where to listen; 0: any free port")->capture_default_str();
    program.add_option("--address", line.address, "Address to listen on (every one of this host)");
    program.add_flag("--once", line.once, "End after one client, with its result as exit status");
    program.add_option("--max-size", line.most_text, "Largest buffer that a client may request")
        ->capture_default_str();
    add_options(program, line.options);
    line.completed = parse(program, argc, argv);
    if (!line.completed)
        line.completed = complain(program, check(line.options));
    const auto most = parse_size(line.most_text);
    if (!line.completed && (!most || *most == 0))
        line.completed = complain(
            program, fmt::format("--max-size '{}': expected a number of bytes such as 4096, 4M or 1G",
                                 line.most_text));
    line.most_bytes = most.value_or(0);
    return line;
}

} // namespace tools::rdma
