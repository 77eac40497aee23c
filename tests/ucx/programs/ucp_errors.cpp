// SPDX-License-Identifier: BSD-3-Clause
// An active process with one worker and an endpoint to each of two passive processes, A and B. A or a device
// fails: operations in flight to A end with an error that UCX reports, and B is not affected. Where UCX
// aborts a process, exactly that process must end.
#include "tests/ucx/programs/ucp_passive.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace ucp_side;

struct link {
    link(std::string called, pid_t of, int socket) : name(std::move(called)), process(of), line(socket) {}
    std::string name;
    pid_t process;
    notes line;
    ucp_ep_h endpoint = nullptr;
    unsigned errors = 0; // calls of the error handler
    ucs_status_t reported = UCS_OK;
};

// Every thread of a process, for the message of a wait that expires: its name, its state and where it sleeps.
std::string describe_process(pid_t process) {
    namespace fs = std::filesystem;
    std::string threads;
    std::error_code gone;
    for (const auto& each : fs::directory_iterator(fmt::format("/proc/{}/task", process), gone)) {
        const auto read = [&](const char* name) {
            std::ifstream file(each.path() / name);
            std::string line;
            std::getline(file, line);
            return line;
        };
        threads += fmt::format("\n  {}; sleeps in {}; system call {}", read("stat").substr(0, 60),
                               read("wchan"), read("syscall"));
    }
    return threads.empty() ? "has ended" : threads;
}

// The state of A's endpoint or process after the error.
enum class afterwards {
    endpoint_ends,
    endpoint_lives, // the transport checks before it copies
    process_ends,   // UCX aborts A: it cannot report the error
    self_ends       // UCX aborts this process
};

class active {
public:
    active(link a, link b, afterwards then, bool handles_errors)
        : context_(features), worker_(context_, false), a_(std::move(a)), b_(std::move(b)), then_(then) {
        for (auto* each : {&a_, &b_}) {
            auto how = errors_handled(handles_errors);
            how.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
            how.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
                auto& failed = *static_cast<link*>(arg);
                ++failed.errors;
                failed.reported = status;
            };
            how.err_handler.arg = each;
            each->endpoint = worker_.connect(each->line, how);
            each->line.send_note({'m'});
            (void)receive_note(*each);
        }
        mine_ = std::make_unique<memory>(context_, "gaudi", large);
        for (auto* each : {&a_, &b_})
            trade(*each, *mine_);
    }
    ~active() {
        ucp_request_param_t force{};
        force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        force.flags = UCP_EP_CLOSE_FLAG_FORCE;
        for (auto* each : {&a_, &b_})
            if (const auto request = ucp_ep_close_nbx(each->endpoint, &force); UCS_PTR_IS_PTR(request)) {
                while (ucp_request_check_status(request) == UCS_INPROGRESS)
                    ucp_worker_progress(worker_.handle());
                ucp_request_free(request);
            }
    }
    active(const active&) = delete;
    active& operator=(const active&) = delete;

    void killed() {
        a_.line.send_note({die});
        auto param = mine_->param();
        const auto sending = ucp_tag_send_nbx(a_.endpoint, mine_->address(), large, fatal_tag, &param);
        must_fail(outcome(sending), "the message to A");
        await_report();
        trade(b_, *mine_);
    }
    void outside() {
        a_.line.send_note({pass});
        const remote_memory theirs(a_.endpoint, receive_note(a_));
        must_fail(put(a_, *mine_, theirs, large / 2), "the put beyond A's memory");
        go_on_with_a();
        trade(b_, *mine_);
    }
    // The key and the memory of A are the right ones; the address is a page before its start.
    void before() {
        a_.line.send_note({pass});
        const remote_memory theirs(a_.endpoint, receive_note(a_));
        must_fail(put(a_, *mine_, theirs, std::size_t{0} - 4096), "the put before A's memory");
        go_on_with_a();
        trade(b_, *mine_);
    }
    // Flips a bit in the plugin's part of the key, which starts with the bytes `begins`.
    void corrupted(std::string_view begins) {
        a_.line.send_note({pass});
        auto note = receive_note(a_);
        const std::string_view all(note.data(), note.size());
        const auto at = all.find(begins);
        if (at == all.npos)
            throw failure("the key holds nothing of the plugin");
        for (const auto wrong : {at, at + begins.size() + 4, at + begins.size() + 20}) {
            auto copy = note;
            copy[wrong] = static_cast<char>(copy[wrong] ^ 1);
            ucp_rkey_h key = nullptr;
            const auto status = ucp_ep_rkey_unpack(a_.endpoint, copy.data() + sizeof(std::uint64_t), &key);
            if (status == UCS_OK)
                ucp_rkey_destroy(key);
            must_fail(status, "unpacking a corrupted key");
        }
        const remote_memory theirs(a_.endpoint, note);
        check(put(a_, *mine_, theirs, 0), "a put with the right key");
        trade(a_, *mine_);
        trade(b_, *mine_);
    }
    void freed(order how) {
        a_.line.send_note({pass});
        const remote_memory theirs(a_.endpoint, receive_note(a_));
        check(put(a_, *mine_, theirs, 0), "the put before the memory is freed");
        a_.line.send_note({how});
        (void)receive_note(a_);
        must_fail(put(a_, *mine_, theirs, 0), "the put to freed memory");
        go_on_with_a();
        trade(b_, *mine_);
    }
    // The fault script resets the device during a copy. The put is from memory that no NIC has registered:
    // after the reset it is too late to register it.
    void reset() {
        a_.line.send_note({pass});
        const remote_memory theirs(a_.endpoint, receive_note(a_));
        const auto device = gaudi::expect(gaudi::open_device());
        const auto unknown = gaudi::expect(device->heap().allocate(large));
        if (!lose_device(*mine_))
            throw failure("a hundred copies and no reset: is there a fault script?");
        ucp_request_param_t none{};
        must_fail(put(a_, reinterpret_cast<void*>(unknown.address().value()), none, theirs, 0),
                  "the put from a device that was reset");
        compare_others();
        memory host(context_, "host", large);
        trade(a_, host);
        trade(b_, host);
    }
    // Sends long messages until a device is lost during one of them: A's, or that of this process.
    void in_flight() {
        const auto device = gaudi::expect(gaudi::open_device()); // already open in this process
        memory source(context_, "gaudi", longest);
        source.fill(1);
        for (int messages = 0; messages < 100; ++messages) {
            a_.line.send_note({take, 1});
            auto param = source.param();
            const auto sent = outcome(ucp_tag_send_nbx(a_.endpoint, source.address(), longest, 1, &param));
            if (then_ == afterwards::process_ends && (sent != UCS_OK || gone(a_))) {
                must_fail(sent, "the message under the reset");
                await_report();
                return trade(b_, *mine_);
            }
            const auto word = receive_note(a_);
            const auto received = static_cast<ucs_status_t>(word.at(1));
            const bool own = device->lost(), theirs = word.at(2) != 0;
            if (sent == UCS_OK && received == UCS_OK && !own && !theirs)
                continue;
            fmt::print("the message under the reset: {}; its receiver: {}\n", ucs_status_string(sent),
                       ucs_status_string(received));
            memory host(context_, "host", large);
            if (!theirs) {
                a_.line.send_note({check_bytes, 1});
                fmt::print("its bytes are {}\n", receive_note(a_).at(1) != 0 ? "right" : "not");
                trade(a_, host);
            }
            return trade(b_, host);
        }
        throw failure("a hundred messages and no reset: is there a fault script?");
    }
    // The same with puts, which this process executes alone.
    void putting() {
        a_.line.send_note({pass});
        const remote_memory theirs(a_.endpoint, receive_note(a_));
        const auto device = gaudi::expect(gaudi::open_device()); // already open in this process
        for (int puts = 0; puts < 1000; ++puts)
            if (const auto status = put(a_, *mine_, theirs, 0); status != UCS_OK) {
                must_fail(status, "the put under the reset");
                const bool own = device->lost();
                fmt::print("lost: the device of {}\n", own ? "the active process" : "A");
                memory host(context_, "host", large);
                if (own) {
                    trade(a_, host);
                    compare_others();
                }
                return trade(b_, host);
            }
        throw failure("a thousand puts and no reset: is there a fault script?");
    }
    // A registered region stays usable by the NIC after the reset, until the process closes the device.
    void past_the_device() {
        a_.line.send_note({pass});
        const remote_memory theirs(a_.endpoint, receive_note(a_));
        const auto seed = ++seed_;
        mine_->fill(seed);
        memory spare(context_, "gaudi", large);
        std::atomic<bool> lost{false};
        std::thread losing([&] { lost = lose_device(spare); });
        ucs_status_t status = UCS_OK;
        for (int after = 0; status == UCS_OK && after < 2; after += lost ? 1 : 0)
            status = put(a_, *mine_, theirs, 0);
        losing.join();
        check(status, "a put under the reset");
        memory host(context_, "host", large);
        auto param = host.param();
        check(
            outcome(ucp_get_nbx(a_.endpoint, host.address(), large, theirs.address(), theirs.key(), &param)),
            "ucp_get_nbx");
        host.expect(seed, "what was put under the reset");
        fmt::print("puts under the reset: right\n");
        trade(a_, host);
        trade(b_, host);
    }
    void end() {
        if (b_.errors != 0)
            throw failure(fmt::format("the handler of B was called: {}", ucs_status_string(b_.reported)));
        b_.line.send_note({leave});
    }
    void dismiss_a() { a_.line.send_note({leave}); }

private:
    static constexpr auto answer_timeout = std::chrono::seconds(20);

    template <typename F>
    void until(F&& done, const char* what) {
        const auto deadline = std::chrono::steady_clock::now() + answer_timeout;
        for (std::uint64_t turns = 0; !done(); ++turns) {
            ucp_worker_progress(worker_.handle());
            if (std::chrono::steady_clock::now() > deadline)
                throw failure(fmt::format("{}: not in {} s and {} calls of progress; A: {}; B: {}", what,
                                          answer_timeout.count(), turns, describe_process(a_.process),
                                          describe_process(b_.process)));
        }
    }
    // Progresses a request until UCX completes it. Returns its status.
    ucs_status_t outcome(ucs_status_ptr_t request) {
        if (!UCS_PTR_IS_PTR(request))
            return UCS_PTR_STATUS(request);
        until([&] { return ucp_request_check_status(request) != UCS_INPROGRESS; }, "an end of the request");
        const auto status = ucp_request_check_status(request);
        ucp_request_free(request);
        return status;
    }
    ucs_status_t put(link& to, const memory& from, const remote_memory& where, std::size_t into) {
        return put(to, from.address(), from.param(), where, into);
    }
    ucs_status_t put(link& to, const void* from, const ucp_request_param_t& param, const remote_memory& where,
                     std::size_t into) {
        ucp_request_param_t none{};
        const auto sent =
            outcome(ucp_put_nbx(to.endpoint, from, large, where.address() + into, where.key(), &param));
        return sent != UCS_OK ? sent : outcome(ucp_ep_flush_nbx(to.endpoint, &none));
    }
    // Where UCX aborts A, a flush may complete earlier: then only the error handler reports the error.
    void must_fail(ucs_status_t status, const char* what) const {
        if (!UCS_STATUS_IS_ERR(status) && then_ != afterwards::process_ends)
            throw failure(fmt::format("{} ended with: {}", what, ucs_status_string(status)));
        fmt::print("{}: {}\n", what, ucs_status_string(status));
    }
    void await_report() {
        until([&] { return a_.errors != 0; }, "a call of A's handler");
        fmt::print("the handler of A: {}\n", ucs_status_string(a_.reported));
    }
    void go_on_with_a() {
        const bool lives = then_ == afterwards::endpoint_lives;
        if (!lives)
            await_report();
        if (then_ == afterwards::process_ends)
            return;
        if (lives) {
            trade(a_, *mine_);
            if (a_.errors != 0)
                throw failure(fmt::format("the handler of A was called: {}", ucs_status_string(a_.reported)));
        }
        compare_others();
    }
    std::vector<char> receive_note(link& from) {
        return from.line.receive_note([&] { ucp_worker_progress(worker_.handle()); });
    }
    // Whether the process ended without another note.
    bool gone(link& who) {
        pollfd word{who.line.socket(), POLLIN, 0};
        until([&] { return ::poll(&word, 1, 0) == 1; }, "a word of A, or its end");
        return who.line.ended();
    }
    void compare_others() {
        a_.line.send_note({compare});
        (void)receive_note(a_);
    }
    // A put and a message; the passive process compares every byte.
    void trade(link& with, memory& from) {
        const auto seed = ++seed_;
        from.fill(seed);
        with.line.send_note({exchange, static_cast<char>(seed)});
        const remote_memory theirs(with.endpoint, receive_note(with));
        check(put(with, from, theirs, 0), "ucp_put_nbx");
        with.line.send_note({exchange});
        auto param = from.param();
        check(outcome(ucp_tag_send_nbx(with.endpoint, from.address(), large, seed, &param)),
              "ucp_tag_send_nbx");
        (void)receive_note(with);
        fmt::print("a put and a message to {}: right\n", with.name);
    }
    // Copies until the fault script resets the device.
    static bool lose_device(memory& by_copies_to) {
        for (int copies = 0; copies < 100; ++copies)
            try {
                by_copies_to.fill(1);
            } catch (const std::exception& error) {
                fmt::print("{}\n", error.what());
                return true;
            }
        return false;
    }

    context context_;
    worker worker_;
    link a_, b_;
    const afterwards then_;
    std::unique_ptr<memory> mine_;
    std::uint64_t seed_ = 0;
};

// Forks a process that runs `body`; its status is 1 if `body` throws.
template <typename F>
pid_t start(const char* name, std::initializer_list<int> of_others, F&& body) {
    const auto id = ::fork();
    if (id != 0)
        return id;
    for (const int socket : of_others) // so that a socket closes when its process ends
        ::close(socket);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL); // a child does not outlive a parent that a timeout kills
    int status = 0;
    try {
        body();
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}: {}\n", name, error.what());
        status = 1;
    }
    std::fflush(stdout);
    ::_exit(status);
}

struct sockets {
    int active = -1, passive = -1;
};
sockets make_sockets() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        throw failure("socketpair");
    return {pair[0], pair[1]};
}

struct options {
    std::string what, faults, faulty = "active", key_begins, lab_of_others;
    afterwards then = afterwards::endpoint_ends;
    bool handles_errors = true; // UCX then avoids protocols that cannot report an error
};

void act(const options& how, link a, link b) {
    active self(std::move(a), std::move(b), how.then, how.handles_errors);
    const auto& what = how.what;
    if (what == "killed")
        self.killed();
    else if (what == "outside")
        self.outside();
    else if (what == "before")
        self.before();
    else if (what == "freed")
        self.freed(release);
    else if (what == "reused")
        self.freed(reuse);
    else if (what == "corrupted")
        self.corrupted(how.key_begins);
    else if (what == "reset")
        self.reset();
    else if (what == "putting")
        self.putting();
    else if (what == "past_the_device")
        self.past_the_device();
    else
        self.in_flight();
    self.end();
    if (what != "killed" && how.then != afterwards::process_ends)
        self.dismiss_a();
}

} // namespace

int main(int argc, char** argv) try {
    options how;
    CLI::App app("one process, two others: an error at one of them");
    app.add_option("case", how.what)
        ->required()
        ->check(CLI::IsMember({"killed", "outside", "before", "freed", "reused", "corrupted", "reset",
                               "in_flight", "putting", "past_the_device"}));
    app.add_option("--key-begins", how.key_begins, "for corrupted: the plugin's part of a key");
    app.add_option("--lab-of-others", how.lab_of_others, "A and B are in this lab, on another virtual host");
    app.add_option("--faults", how.faults, "a script for one process alone");
    app.add_flag("!--careless", how.handles_errors, "endpoints without error handling");
    app.add_option("--faulty", how.faulty, "that process")->check(CLI::IsMember({"active", "A"}));
    app.add_option("--then", how.then, "what an error leaves of A")
        ->transform(CLI::CheckedTransformer(
            std::map<std::string, afterwards>{{"endpoint_ends", afterwards::endpoint_ends},
                                              {"endpoint_lives", afterwards::endpoint_lives},
                                              {"process_ends", afterwards::process_ends},
                                              {"self_ends", afterwards::self_ends}}));
    CLI11_PARSE(app, argc, argv);

    // None of the three is another's parent: UCX takes a zombie for alive.
    const auto to_a = make_sockets(), to_b = make_sockets();
    const auto use_faults = [&](const char* of) {
        if (!how.faults.empty() && how.faulty == of)
            ::setenv("GAUDI_LAB_FAULTS", how.faults.c_str(), 1);
    };
    const auto be_passive = [&](int socket) {
        if (!how.lab_of_others.empty())
            ::setenv("GAUDI_LAB", how.lab_of_others.c_str(), 1);
        passive(socket, how.handles_errors).serve();
    };
    const auto a = start("A", {to_a.active, to_b.active, to_b.passive}, [&] {
        use_faults("A");
        be_passive(to_a.passive);
    });
    const auto b = start("B", {to_a.active, to_a.passive, to_b.active}, [&] { be_passive(to_b.passive); });
    const auto self = start("active", {to_a.passive, to_b.passive}, [&] {
        use_faults("active");
        act(how, {"A", a, to_a.active}, {"B", b, to_b.active});
    });
    for (const int each : {to_a.active, to_a.passive, to_b.active, to_b.passive})
        ::close(each);
    std::map<pid_t, int> ended;
    const bool self_ends = how.then == afterwards::self_ends;
    while (ended.size() < 3 && (self_ends || !ended.contains(self) || ended[self] == 0)) {
        int status = 0;
        const auto who = ::waitpid(-1, &status, 0);
        ended[who] = status;
    }
    // How each of the three ended.
    const auto signal = [&](pid_t of) { return WIFSIGNALED(ended[of]) ? WTERMSIG(ended[of]) : 0; };
    const int of_a = how.what == "killed" ? SIGKILL : how.then == afterwards::process_ends ? SIGABRT : 0;
    const bool expected =
        self_ends ? signal(self) == SIGABRT && signal(a) == 0 && signal(b) == 0
                  : ended[self] == 0 && ended[b] == 0 && signal(a) == of_a && (of_a != 0 || ended[a] == 0);
    if (!expected)
        throw failure(fmt::format("A ended with {:#x}, B with {:#x}, the active process with {:#x}", ended[a],
                                  ended[b], ended[self]));
    fmt::print("all right\n");
    return 0;
} catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
}
