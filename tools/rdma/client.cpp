// SPDX-License-Identifier: BSD-3-Clause
// rdma_client: connects to an rdma_server and moves data with it, every byte checked.
#include "tools/rdma/report.hpp"
#include "tools/self.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <thread>

namespace {

using namespace tools::rdma;

constexpr const char* program_name = "rdma_client";

struct run {
    tools::rdma::options options;
    job work;
    std::string peer;
    double wait_for_server_seconds = 0;
    const char* lab_reason = nullptr;
    setup_costs costs;
    json report;

    [[nodiscard]] bool talks() const { return !options.quiet && !options.as_json; }
};

// A server that was started at the same time may not listen yet.
gaudi::result<gaudi::connection> connect_when_listening(run& all, const endpoint& home) {
    for (const stopwatch waiting;;) {
        const stopwatch connecting;
        auto link = gaudi::connect(home.nic, all.peer, all.options.connection());
        all.costs.connect = connecting.seconds();
        if (link || link.error().code() != gaudi::errc::connection_refused || stop_requested ||
            waiting.seconds() >= all.wait_for_server_seconds)
            return link;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

outcome<gaudi::connection> connect_to(run& all, const endpoint& home) {
    auto link = connect_when_listening(all, home);
    if (!link) {
        const auto code = link.error().code();
        return tl::unexpected(failed(link.error(), code == gaudi::errc::host_unknown ? usage : no_setup));
    }
    return std::move(*link);
}

// The client sends what to do; the server answers with what it provides for it.
outcome<json> agree(run& all, gaudi::connection& link, const buffer& memory) {
    json words = {{"version", gaudi::version()},
                  {"size", all.work.size},
                  {"iterations", all.work.iterations},
                  {"tests", all.work.tests}};
    words.update(memory.to_json());
    if (auto sent = send_note(link, words); !sent)
        return tl::unexpected(sent.error());
    return receive_note(link, all.options.deadline_seconds);
}

outcome<void> work_through(run& all) {
    auto home = endpoint::open(all.options);
    if (!home)
        return tl::unexpected(home.error());
    all.costs.open = home->open_seconds;
    all.report["endpoint"] = home->to_json();
    if (all.talks())
        print_head(program_name, *home, all.lab_reason);
    auto memory = buffer::make(*home, all.work.size, all.options);
    if (!memory)
        return tl::unexpected(memory.error());
    all.report["memory"] = memory->to_json();
    if (all.talks())
        fmt::print("  memory   {}: {}\n", tools::human_bytes(all.work.size), memory->path_text());
    auto link = connect_to(all, *home);
    if (!link)
        return tl::unexpected(link.error());
    auto peer = agree(all, *link, *memory);
    if (!peer)
        return tl::unexpected(peer.error());
    all.report["peer"] = *peer;
    if (all.talks())
        fmt::print("  server   {}: {} on {}, {}\n", link->peer(), peer->value("path", "?"),
                   peer->value("device", "?"), peer->value("nic", "?"));
    session both(*link, *memory, all.work, all.options, *peer);
    progress_bar bar(all.talks(), all.work.iterations * 4);
    auto went = both.run_as_client(bar);
    if (!went) {
        send_failure(*link, went.error());
        return went;
    }
    all.costs.allocate = memory->allocate_seconds;
    all.costs.export_dmabuf = memory->export_seconds;
    all.costs.registration = memory->register_seconds;
    all.costs.first_byte = both.first_byte_seconds;
    all.report["results"] = results_json(both.results);
    all.report["setup_seconds"] = all.costs.to_json();
    if (!all.talks())
        return {};
    print_results(both.results, all.costs);
    if (!home->why_host.empty())
        fmt::print("HOST MEMORY was used, because there is no Gaudi here\n");
    if (memory->region().path() == gaudi::memory_path::staged)
        fmt::print("STAGED through host memory: {}\n", memory->region().reason());
    return {};
}

} // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0); // lines keep their order in a pipe too
    auto line = parse_client(argc, argv);
    if (line.completed)
        return *line.completed;
    run all;
    all.options = line.options;
    all.work = line.work;
    all.peer = line.peer;
    all.wait_for_server_seconds = line.wait_for_server_seconds;
    all.lab_reason = tools::go_to_lab_without_hardware(all.options.no_lab);
    stop_on_signals();
    all.report = {{"program", program_name}, {"version", gaudi::version()}};
    const auto went = work_through(all);
    const int status = went ? right : went.error().status;
    if (all.options.as_json) {
        all.report["status"] = status;
        all.report["problem"] = went ? json(nullptr) : json(went.error().text);
        fmt::print("{}\n", all.report.dump(2));
    }
    if (!went)
        fmt::print(stderr, "{}: {}\n", program_name, went.error().text);
    else if (!all.options.as_json)
        fmt::print("all data right\n");
    return status;
}
