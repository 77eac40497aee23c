// SPDX-License-Identifier: BSD-3-Clause
// rdma_server: serves any number of rdma_clients at once, until Ctrl-C.
#include "tools/rdma/report.hpp"
#include "tools/self.hpp"

#include <fmt/format.h>
#include <list>
#include <mutex>
#include <thread>

namespace {

using namespace tools::rdma;

constexpr const char* program_name = "rdma_server";
constexpr auto glance = std::chrono::milliseconds(100);
constexpr unsigned most_clients = 256;

class server {
public:
    server(options options, const endpoint& home, std::uint64_t most_bytes)
        : options_(std::move(options)), home_(home), most_bytes_(most_bytes) {}

    // Runs until Ctrl-C, or until one client is served. Returns the exit status.
    int serve(const gaudi::listener& door, bool once);
    [[nodiscard]] const json& sessions() const { return sessions_; }

private:
    struct visit {
        std::thread thread;
        std::atomic<bool> over{false};
    };

    outcome<void> receive(gaudi::pending_connection& peer_connection, json& entry);
    outcome<job> understand(const json& words) const;
    int attend(gaudi::pending_connection peer_connection);
    void say(const std::string& line, bool important = false);

    const options options_;
    const endpoint& home_;
    const std::uint64_t most_bytes_;
    std::mutex mutex_; // guards the members below, and the terminal
    json sessions_ = json::array();
    bool any_wrong_ = false;
};

void server::say(const std::string& line, bool important) {
    const std::lock_guard guard(mutex_);
    if (important)
        fmt::print(stderr, "{}: {}\n", program_name, line);
    else if (!options_.quiet && !options_.as_json)
        fmt::print("{}\n", line);
}

outcome<job> server::understand(const json& words) const {
    job wanted;
    wanted.size_text = std::to_string(words.value("size", std::uint64_t{0}));
    wanted.iterations = words.value("iterations", 0U);
    wanted.tests = words.value("tests", std::vector<std::string>{});
    if (auto problem = complete(wanted); !problem.empty())
        return tl::unexpected(failure{peer_lost, "the client requests " + problem});
    if (wanted.size > most_bytes_)
        return tl::unexpected(
            failure{peer_lost, fmt::format("the client requests {} ({} bytes); this server allows up to "
                                           "{} (rdma_server --max-size)",
                                           tools::human_bytes(wanted.size), wanted.size,
                                           tools::human_bytes(most_bytes_))});
    return wanted;
}

outcome<void> server::receive(gaudi::pending_connection& peer_connection, json& entry) {
    std::optional<buffer> memory; // outlives the connection, whose nic may still write to it
    auto link = peer_connection.handshake(home_.nic, options_.connection());
    if (!link)
        return tl::unexpected(failed(link.error(), peer_lost));
    auto words = receive_note(*link, options_.deadline_seconds);
    if (!words)
        return tl::unexpected(words.error());
    auto work = understand(*words);
    auto allocated =
        work.and_then([&](const job& wanted) { return buffer::make(home_, wanted.size, options_); });
    if (!allocated) {
        (void)tools::rdma::send_note(
            *link, {{"failed", allocated.error().text}, {"status", allocated.error().status}});
        return tl::unexpected(allocated.error());
    }
    memory.emplace(std::move(*allocated));
    entry["client"] = *words;
    entry["memory"] = memory->to_json();
    json answer = memory->to_json();
    answer["version"] = gaudi::version();
    answer["device"] = home_.device ? home_.device_text() : "host memory";
    answer["nic"] = home_.nic->info().name;
    if (auto said = tools::rdma::send_note(*link, answer); !said)
        return tl::unexpected(said.error());
    session both(*link, *memory, *work, options_, *words);
    auto went = both.run_as_server();
    if (!went) {
        send_failure(*link, went.error());
        return went;
    }
    entry["results"] = results_json(both.results);
    say(fmt::format("{}: all data right, {} x {}, {} to {}", peer_connection.peer(), work->iterations,
                    tools::human_bytes(work->size), words->value("path", "?"), answer.value("path", "?")));
    return {};
}

int server::attend(gaudi::pending_connection peer_connection) {
    json entry = {{"peer", peer_connection.peer()}};
    outcome<void> went;
    try {
        went = receive(peer_connection, entry);
    } catch (const std::exception& error) { // numbers of the wrong type in a client's note, or no memory
        went = tl::unexpected(failure{peer_lost, error.what()});
    }
    const int status = went ? right : went.error().status;
    entry["status"] = status;
    entry["problem"] = went ? json(nullptr) : json(went.error().text);
    if (!went)
        say(went.error().text.find(peer_connection.peer()) != std::string::npos
                ? went.error().text // it names the peer already
                : fmt::format("{}: {}", peer_connection.peer(), went.error().text),
            true);
    const std::lock_guard guard(mutex_);
    if (options_.as_json)
        sessions_.push_back(entry);
    any_wrong_ = any_wrong_ || status == wrong;
    return status;
}

int server::serve(const gaudi::listener& door, bool once) {
    std::list<visit> visits;
    const auto tidy = [&](bool all) {
        for (auto entry = visits.begin(); entry != visits.end();)
            if (all || entry->over) {
                entry->thread.join();
                entry = visits.erase(entry);
            } else
                ++entry;
    };
    while (!stop_requested) {
        tidy(false);
        if (visits.size() >= most_clients) {
            std::this_thread::sleep_for(glance);
            continue;
        }
        auto peer_connection = door.next(glance);
        if (!peer_connection) {
            if (peer_connection.error().code() == gaudi::errc::wait_timeout)
                continue;
            say(peer_connection.error().message(), true);
            std::this_thread::sleep_for(glance); // no descriptors left: wait until a client disconnects
            continue;
        }
        if (once)
            return attend(std::move(*peer_connection));
        auto& fresh = visits.emplace_back();
        fresh.thread = std::thread([this, &fresh, accepted = std::move(*peer_connection)]() mutable {
            attend(std::move(accepted));
            fresh.over = true;
        });
    }
    tidy(true);
    return any_wrong_ ? wrong : right;
}

} // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0); // lines keep their order in a pipe too
    const auto line = parse_server(argc, argv);
    if (line.completed)
        return *line.completed;
    const auto& options = line.options;
    const char* lab_reason = tools::go_to_lab_without_hardware(options.no_lab);
    stop_on_signals();
    const auto complain = [](const std::string& text, int status) {
        fmt::print(stderr, "{}: {}\n", program_name, text);
        return status;
    };
    auto home = endpoint::open(options);
    if (!home)
        return complain(home.error().text, home.error().status);
    // Report now, and not to the first client, what cannot work for any client.
    if (const auto trial = buffer::make(*home, 4096, options); !trial)
        return complain(trial.error().text, trial.error().status);
    else if (!options.quiet && !options.as_json) {
        print_head(program_name, *home, lab_reason);
        fmt::print("  memory   {}\n", trial->path_text());
    }
    const auto door = gaudi::listener::open(line.port, line.address);
    if (!door)
        return complain(door.error().message(), no_setup);
    if (!options.quiet && !options.as_json) {
        fmt::print("listening on port {}; Ctrl-C ends\n", door->port());
    }
    server running(options, *home, line.most_bytes);
    const int status = running.serve(*door, line.once);
    if (options.as_json)
        fmt::print("{}\n", json{{"program", program_name},
                                {"version", gaudi::version()},
                                {"endpoint", home->to_json()},
                                {"port", door->port()},
                                {"sessions", running.sessions()},
                                {"status", status}}
                               .dump(2));
    return status;
}
