// SPDX-License-Identifier: BSD-3-Clause
// An active process with one worker and an endpoint to each of two others. Something goes wrong with the
// first: what is under way there ends with an error that UCX itself reports, and the second does not notice.
#include "tests/ucx/ucp_side.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace ucp_side;

constexpr std::uint64_t features = UCP_FEATURE_TAG | UCP_FEATURE_RMA;
constexpr std::size_t large = 1 << 20;
constexpr std::uint64_t seed_of_target = 11, seed_of_other = 12, seed_of_fresh = 13, fatal_tag = 14;

// What the active process asks of a passive one.
enum order : char { exchange, pass, die, release, compare, leave };

// ---- passive ----

class passive {
public:
    explicit passive(int socket)
        : context_(features), worker_(context_, false), notes_(socket),
          peer_(worker_, worker_.connect(notes_, errors_handled(true)), socket, false) {
        renew(target_, seed_of_target);
        renew(other_, seed_of_other); // beside it, so that what goes too far is found
    }

    void serve() {
        for (;;) {
            const auto word = peer_.hear();
            switch (word.at(0)) {
            case exchange:
                receive(static_cast<std::uint64_t>(word.at(1)));
                break;
            case pass:
                peer_.tell(target_->pass());
                break;
            case die:
                die_under_a_message();
                break;
            case release:
                target_.reset();
                renew(fresh_, seed_of_fresh); // where the other one was, as a rule
                peer_.tell({release});
                break;
            case compare:
                other_->expect(seed_of_other, "memory that nobody was to write");
                if (fresh_)
                    fresh_->expect(seed_of_fresh, "memory that came after what was freed");
                peer_.tell({compare});
                break;
            default:
                return;
            }
        }
    }

private:
    void renew(std::unique_ptr<memory>& which, std::uint64_t seed) {
        which = std::make_unique<memory>(context_, "gaudi", large);
        which->fill(made(seed, large));
    }
    // A put into this process's memory, then a message.
    void receive(std::uint64_t seed) {
        memory mine(context_, "gaudi", large);
        mine.fill(made(~seed, large));
        peer_.tell(mine.pass());
        (void)peer_.hear();
        mine.expect(seed, "a put");
        mine.fill(made(~seed, large));
        auto param = mine.param();
        peer_.done(ucp_tag_recv_nbx(worker_.handle(), mine.address(), large, seed, ~0ULL, &param),
                   "ucp_tag_recv_nbx");
        mine.expect(seed, "a message");
        peer_.tell({exchange});
    }
    // When it was announced; its data waits to be asked for.
    [[noreturn]] void die_under_a_message() {
        ucp_tag_recv_info_t info{};
        while (ucp_tag_probe_nb(worker_.handle(), fatal_tag, ~0ULL, 0, &info) == nullptr)
            ucp_worker_progress(worker_.handle());
        ::raise(SIGKILL);
        throw failure("lives on after SIGKILL");
    }

    context context_;
    worker worker_;
    notes notes_;
    peer peer_;
    std::unique_ptr<memory> target_, other_, fresh_;
};

// ---- active ----

struct link {
    link(std::string called, int socket) : name(std::move(called)), beside(socket) {}
    std::string name;
    notes beside;
    ucp_ep_h endpoint = nullptr;
    unsigned errors = 0; // calls of its handler
    ucs_status_t reported = UCS_OK;
};

class active {
public:
    active(int first, int second, bool outlives)
        : context_(features), worker_(context_, false), a_("A", first), b_("B", second), outlives_(outlives) {
        for (auto* each : {&a_, &b_}) {
            auto how = errors_handled(true);
            how.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
            how.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
                auto& failed = *static_cast<link*>(arg);
                ++failed.errors;
                failed.reported = status;
            };
            how.err_handler.arg = each;
            each->endpoint = worker_.connect(each->beside, how);
            each->beside.tell({'m'});
            (void)hear(*each);
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
        a_.beside.tell({die});
        auto param = mine_->param();
        const auto sending = ucp_tag_send_nbx(a_.endpoint, mine_->address(), large, fatal_tag, &param);
        must_fail(outcome(sending), "the message to A");
        await_report();
        trade(b_, *mine_);
    }
    void outside() {
        a_.beside.tell({pass});
        const remote_memory theirs(a_.endpoint, hear(a_));
        must_fail(put(a_, *mine_, theirs, large / 2), "the put beyond A's memory");
        end_or_outlive();
        compare_others();
        trade(b_, *mine_);
    }
    void freed() {
        a_.beside.tell({pass});
        const remote_memory theirs(a_.endpoint, hear(a_));
        check(put(a_, *mine_, theirs, 0), "the put before the memory is freed");
        a_.beside.tell({release});
        (void)hear(a_);
        must_fail(put(a_, *mine_, theirs, 0), "the put to freed memory");
        end_or_outlive();
        compare_others();
        trade(b_, *mine_);
    }
    // The fault script resets the device under one of the copies. What a NIC has registered before is its
    // own; what it has not comes too late.
    void reset() {
        a_.beside.tell({pass});
        const remote_memory theirs(a_.endpoint, hear(a_));
        const auto device = gaudi::expect(gaudi::open_device());
        const auto unknown = gaudi::expect(device->heap().allocate(large));
        lose_device();
        ucp_request_param_t none{};
        must_fail(put(a_, reinterpret_cast<void*>(unknown.address().value()), none, theirs, 0),
                  "the put from a device that was reset");
        compare_others();
        memory host(context_, "host", large);
        trade(a_, host);
        trade(b_, host);
    }
    void end() {
        if (b_.errors != 0)
            throw failure(fmt::format("the handler of B was called: {}", ucs_status_string(b_.reported)));
        b_.beside.tell({leave});
    }
    void dismiss_a() { a_.beside.tell({leave}); }

private:
    static constexpr auto patience = std::chrono::seconds(20);

    template <typename F>
    void until(F&& done, const char* what) {
        const auto deadline = std::chrono::steady_clock::now() + patience;
        while (!done()) {
            ucp_worker_progress(worker_.handle());
            if (std::chrono::steady_clock::now() > deadline)
                throw failure(fmt::format("{}: not in {} s", what, patience.count()));
        }
    }
    // UCX alone says how it ends.
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
    static void must_fail(ucs_status_t status, const char* what) {
        if (!UCS_STATUS_IS_ERR(status))
            throw failure(fmt::format("{} ended with: {}", what, ucs_status_string(status)));
        fmt::print("{}: {}\n", what, ucs_status_string(status));
    }
    void await_report() {
        until([&] { return a_.errors != 0; }, "a call of A's handler");
        fmt::print("the handler of A: {}\n", ucs_status_string(a_.reported));
    }
    // A queue pair ends with its first error; where the transport looks before it moves, the endpoint works
    // on.
    void end_or_outlive() {
        if (!outlives_)
            return await_report();
        trade(a_, *mine_);
        if (a_.errors != 0)
            throw failure(fmt::format("the handler of A was called: {}", ucs_status_string(a_.reported)));
    }
    std::vector<char> hear(link& from) {
        return from.beside.hear([&] { ucp_worker_progress(worker_.handle()); });
    }
    void compare_others() {
        a_.beside.tell({compare});
        (void)hear(a_);
    }
    // A put and a message; the other one compares every byte.
    void trade(link& with, memory& from) {
        const auto seed = ++seed_;
        from.fill(made(seed, large));
        with.beside.tell({exchange, static_cast<char>(seed)});
        const remote_memory theirs(with.endpoint, hear(with));
        check(put(with, from, theirs, 0), "ucp_put_nbx");
        with.beside.tell({exchange});
        auto param = from.param();
        check(outcome(ucp_tag_send_nbx(with.endpoint, from.address(), large, seed, &param)),
              "ucp_tag_send_nbx");
        (void)hear(with);
        fmt::print("a put and a message to {}: right\n", with.name);
    }
    void lose_device() {
        const auto bytes = made(1, large);
        for (int copies = 0; copies < 100; ++copies)
            try {
                mine_->fill(bytes);
            } catch (const std::exception& error) {
                fmt::print("{}\n", error.what());
                return;
            }
        throw failure("a hundred copies and no reset: is there a fault script?");
    }

    context context_;
    worker worker_;
    link a_, b_;
    const bool outlives_;
    std::unique_ptr<memory> mine_;
    std::uint64_t seed_ = 0;
};

// A process of its own; its status is what `body` returns.
template <typename F>
pid_t start(const char* name, F&& body) {
    const auto id = ::fork();
    if (id != 0)
        return id;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL); // a parent that is ended for its slowness leaves nobody behind
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

void act(const std::string& what, int a, int b, bool outlives) {
    active self(a, b, outlives);
    if (what == "killed")
        self.killed();
    else if (what == "outside")
        self.outside();
    else if (what == "freed")
        self.freed();
    else
        self.reset();
    self.end();
    if (what != "killed")
        self.dismiss_a();
}

} // namespace

int main(int argc, char** argv) try {
    std::string what, faults;
    bool outlives = false;
    CLI::App app("one process, two others: an error at one of them");
    app.add_option("case", what)->required()->check(CLI::IsMember({"killed", "outside", "freed", "reset"}));
    app.add_option("--faults", faults, "a script for the active process alone");
    app.add_flag("--outlives", outlives, "an error of a put does not end the endpoint");
    CLI11_PARSE(app, argc, argv);

    // None of the three is another's parent: UCX takes a process that nobody has waited for as alive.
    const auto to_a = make_sockets(), to_b = make_sockets();
    const auto a = start("A", [&] { passive(to_a.passive).serve(); });
    const auto b = start("B", [&] { passive(to_b.passive).serve(); });
    const auto self = start("active", [&] {
        if (!faults.empty())
            ::setenv("GAUDI_LAB_FAULTS", faults.c_str(), 1);
        act(what, to_a.active, to_b.active, outlives);
    });
    std::map<pid_t, int> ended;
    while (ended.size() < 3 && !(ended.contains(self) && ended[self] != 0)) {
        int status = 0;
        const auto who = ::waitpid(-1, &status, 0);
        ended[who] = status;
    }
    const bool killed = WIFSIGNALED(ended[a]) && WTERMSIG(ended[a]) == SIGKILL;
    if (ended[self] != 0 || ended[b] != 0 || (what == "killed" ? !killed : ended[a] != 0))
        throw failure(fmt::format("A ended with {:#x}, B with {:#x}, the active process with {:#x}", ended[a],
                                  ended[b], ended[self]));
    fmt::print("all right\n");
    return 0;
} catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
}
