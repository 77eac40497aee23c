// SPDX-License-Identifier: BSD-3-Clause
// Two processes that move memory through UCX and check every byte; ucx_perftest checks none. Linked to stock
// UCX; the environment selects transports and settings.
#include "tests/ucx/programs/ucp_side.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <arpa/inet.h>
#include <csignal>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <optional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace ucp_side;

struct options {
    std::vector<std::string> operations{"put", "get", "tag", "stream", "am"};
    std::vector<std::size_t> sizes{1, 7, 256, 4095, 4096, 4097, 65536, 1 << 20, (9 << 20) + 5};
    std::string here = "gaudi", there = "gaudi"; // memory of the active and of the passive side
    source of;                                   // the source of device memory
    bool sleep = false;
    unsigned threads = 1;
    bool one_worker = false;   // for all threads
    bool own_contexts = false; // a context for each thread
    unsigned rounds = 2;
    std::string listen, connect;
};

class campaign {
public:
    campaign(const options& what, const context& owner, peer& with, unsigned number)
        : options_(what), context_(owner), peer_(with),
          seed_(0x6a09e667f3bcc908 + (std::uint64_t{number} << 32)) {}

    std::uint64_t run() {
        for (const auto& operation : options_.operations)
            for (const auto size : options_.sizes)
                for (unsigned round = 0; round < options_.rounds; ++round) {
                    ++seed_;
                    const auto what = fmt::format("{} of {} bytes, {} to {}, round {}", operation, size,
                                                  options_.here, options_.there, round);
                    memory mine(context_, peer_.active() ? options_.here : options_.there, size, options_.of);
                    one(operation, mine, size, what);
                    bytes_ += size;
                    peer_.meet();
                }
        peer_.settle();
        return bytes_;
    }

private:
    void one(const std::string& operation, memory& mine, std::size_t size, const std::string& what) {
        if (operation == "put" || operation == "get")
            one_sided(operation, mine, size, what);
        else if (operation == "tag")
            tagged(mine, size, what);
        else if (operation == "stream")
            streamed(mine, size, what);
        else if (operation == "am")
            active_message(mine, size, what);
        else if (operation == "atomic")
            atomic(mine, size, what);
        else
            throw failure("no such operation: " + operation);
    }

    // The active side accesses the passive side's memory with its key; the side that gets the data checks it.
    void one_sided(const std::string& operation, memory& mine, std::size_t size, const std::string& what) {
        const bool from_here = operation == "put";
        const bool gives = from_here == peer_.active();
        mine.fill(gives ? seed_ : ~seed_);
        if (!peer_.active()) {
            peer_.send_note(mine.pass());
            (void)peer_.receive_note(); // the operation is complete
            if (from_here)
                mine.expect(seed_, what);
            return;
        }
        const remote_memory theirs(peer_.endpoint(), peer_.receive_note());
        auto param = mine.param();
        ucp_request_param_t none{};
        if (from_here)
            peer_.done(
                ucp_put_nbx(peer_.endpoint(), mine.address(), size, theirs.address(), theirs.key(), &param),
                "ucp_put_nbx");
        else
            peer_.done(
                ucp_get_nbx(peer_.endpoint(), mine.address(), size, theirs.address(), theirs.key(), &param),
                "ucp_get_nbx");
        peer_.done(ucp_ep_flush_nbx(peer_.endpoint(), &none), "ucp_ep_flush_nbx");
        if (!from_here)
            mine.expect(seed_, what);
        peer_.send_note({'d'});
    }

    void tagged(memory& mine, std::size_t size, const std::string& what) {
        auto param = mine.param();
        if (peer_.active()) {
            mine.fill(seed_);
            peer_.done(ucp_tag_send_nbx(peer_.endpoint(), mine.address(), size, seed_, &param),
                       "ucp_tag_send_nbx");
            return;
        }
        mine.fill(~seed_);
        peer_.done(ucp_tag_recv_nbx(peer_.worker_handle(), mine.address(), size, seed_, ~0ULL, &param),
                   "ucp_tag_recv_nbx");
        mine.expect(seed_, what);
    }

    void streamed(memory& mine, std::size_t size, const std::string& what) {
        auto param = mine.param();
        if (peer_.active()) {
            mine.fill(seed_);
            peer_.done(ucp_stream_send_nbx(peer_.endpoint(), mine.address(), size, &param),
                       "ucp_stream_send_nbx");
            return;
        }
        mine.fill(~seed_);
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = UCP_STREAM_RECV_FLAG_WAITALL;
        std::size_t got = 0;
        peer_.done(ucp_stream_recv_nbx(peer_.endpoint(), mine.address(), size, &got, &param),
                   "ucp_stream_recv_nbx");
        mine.expect(seed_, what);
    }

    void active_message(memory& mine, std::size_t size, const std::string& what) {
        auto param = mine.param();
        if (peer_.active()) {
            mine.fill(seed_);
            peer_.done(
                ucp_am_send_nbx(peer_.endpoint(), peer_.id(), nullptr, 0, mine.address(), size, &param),
                "ucp_am_send_nbx");
            return;
        }
        mine.fill(~seed_);
        const auto message = peer_.next_message();
        if (message.length != size)
            throw failure(fmt::format("{}: {} bytes came", what, message.length));
        peer_.done(ucp_am_recv_data_nbx(peer_.worker_handle(), message.data, mine.address(), size, &param),
                   "ucp_am_recv_data_nbx");
        mine.expect(seed_, what);
    }

    // Operand and reply are local memory, the target is remote: each reply must be the result of the earlier
    // operations.
    void atomic(memory& mine, std::size_t size, const std::string& what) {
        if (size != 4 && size != 8)
            throw failure(fmt::format("{}: UCX has atomic operations of 4 and 8 bytes", what));
        if (!peer_.active()) {
            mine.fill(~seed_);
            peer_.send_note(mine.pass());
            const auto note = peer_.receive_note();
            expect_value(mine, std::as_bytes(std::span(note)), what + ", the target");
            return;
        }
        const remote_memory theirs(peer_.endpoint(), peer_.receive_note());
        memory reply(context_, options_.here, size, options_.of);
        std::uint64_t target = 0;
        make(std::as_writable_bytes(std::span(&target, 1)).first(size), ~seed_, 0);
        const auto bytes_of = [&](const std::uint64_t& value) {
            return std::as_bytes(std::span(&value, 1)).first(size);
        };
        // `becomes`: the value of the target afterwards. `given`: the initial value of the reply's memory; a
        // compare-and-swap writes it to the target.
        const auto carry_out = [&](ucp_atomic_op_t operation, bool fetches, std::uint64_t operand,
                                   std::uint64_t given, std::uint64_t becomes) {
            mine.write(bytes_of(operand));
            reply.write(bytes_of(given));
            auto param = mine.param();
            param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
            param.datatype = ucp_dt_make_contig(size);
            if (fetches) {
                param.op_attr_mask |= UCP_OP_ATTR_FIELD_REPLY_BUFFER;
                param.reply_buffer = reply.address();
            }
            ucp_request_param_t none{};
            peer_.done(ucp_atomic_op_nbx(peer_.endpoint(), operation, mine.address(), 1, theirs.address(),
                                         theirs.key(), &param),
                       "ucp_atomic_op_nbx");
            peer_.done(ucp_ep_flush_nbx(peer_.endpoint(), &none), "ucp_ep_flush_nbx");
            const auto before = fetches ? target : given;
            expect_value(reply, bytes_of(before),
                         fmt::format("{}, operation {}, the reply", what, static_cast<int>(operation)));
            target = becomes;
        };
        const auto operand = seed_ * 0x9e3779b97f4a7c15;
        carry_out(UCP_ATOMIC_OP_ADD, false, operand, 1, target + operand);
        carry_out(UCP_ATOMIC_OP_ADD, true, operand + 1, 2, target + operand + 1);
        carry_out(UCP_ATOMIC_OP_AND, true, ~(operand >> 3), 3, target & ~(operand >> 3));
        carry_out(UCP_ATOMIC_OP_OR, true, operand >> 5, 4, target | operand >> 5);
        carry_out(UCP_ATOMIC_OP_XOR, false, operand, 5, target ^ operand);
        carry_out(UCP_ATOMIC_OP_SWAP, true, operand + 6, 6, operand + 6);
        carry_out(UCP_ATOMIC_OP_CSWAP, true, target, operand + 7, operand + 7);
        carry_out(UCP_ATOMIC_OP_CSWAP, true, ~target, operand + 8, target); // the comparison fails
        std::vector<char> note(size);
        std::memcpy(note.data(), &target, size);
        peer_.send_note(note);
    }
    static void expect_value(const memory& found, std::span<const std::byte> wanted,
                             const std::string& what) {
        std::vector<std::byte> bytes(wanted.size());
        found.read(bytes);
        if (!std::equal(bytes.begin(), bytes.end(), wanted.begin()))
            throw failure(fmt::format("{}: {:02x}, expected {:02x}", what, fmt::join(as_numbers(bytes), ""),
                                      fmt::join(as_numbers(wanted), "")));
    }
    static std::vector<unsigned> as_numbers(std::span<const std::byte> bytes) {
        std::vector<unsigned> made;
        for (const auto each : bytes)
            made.push_back(std::to_integer<unsigned>(each));
        return made;
    }

    const options& options_;
    const context& context_;
    peer& peer_;
    std::uint64_t seed_;
    std::uint64_t bytes_ = 0;
};

// One side: a context and a worker for each thread, or one worker for all threads.
class side {
public:
    side(const options& what, std::vector<int> sockets, bool active)
        : options_(what), sockets_(std::move(sockets)), active_(active) {}

    int run() {
        std::uint64_t bytes = 0;
        bool right = tried([&] {
            const context made(features_, options_.threads > 1);
            bytes = options_.one_worker ? on_one_worker(made) : on_a_worker_each(made);
        });
        right = right && failures_ == 0;
        if (right)
            fmt::print("{}: {} bytes, all right\n", name(), bytes);
        return right ? 0 : 1;
    }

private:
    [[nodiscard]] const char* name() const { return active_ ? "active" : "passive"; }

    template <typename F>
    bool tried(F&& body) {
        try {
            body();
            return true;
        } catch (const std::exception& error) {
            fmt::print(stderr, "{}: {}\n", name(), error.what());
            return false;
        }
    }
    // Runs `body` in one thread for each socket. Returns the sum of bytes.
    template <typename F>
    std::uint64_t in_threads(F&& body) {
        std::atomic<std::uint64_t> bytes{0};
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < sockets_.size(); ++i)
            threads.emplace_back([&, i] {
                if (tried([&] { bytes += body(i, sockets_[i]); }))
                    return;
                ::shutdown(sockets_[i], SHUT_RDWR);
                ++failures_;
            });
        for (auto& thread : threads)
            thread.join();
        return bytes;
    }
    std::uint64_t on_a_worker_each(const context& made) {
        return in_threads([&](unsigned, int socket) {
            std::optional<context> another;
            if (options_.own_contexts)
                another.emplace(features_, false);
            worker own(another ? *another : made, options_.sleep);
            notes line(socket);
            peer with(own, own.connect(line, errors_handled(false)), socket, active_);
            const auto bytes = campaign(options_, another ? *another : made, with, 0).run();
            with.close();
            return bytes;
        });
    }
    std::uint64_t on_one_worker(const context& made) {
        worker shared(made, options_.sleep, UCS_THREAD_MODE_MULTI);
        notes line(sockets_.front());
        const auto endpoint = shared.connect(line, errors_handled(false));
        const auto bytes = in_threads([&](unsigned number, int socket) {
            peer with(shared, endpoint, socket, active_, number + 1);
            return campaign(options_, made, with, number).run();
        });
        if (failures_ == 0)
            peer(shared, endpoint, sockets_.front(), active_).close();
        return bytes;
    }

    const options& options_;
    const bool atomics_ = std::count(options_.operations.begin(), options_.operations.end(), "atomic") != 0;
    const std::uint64_t features_ = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_STREAM | UCP_FEATURE_AM |
                                    (options_.sleep ? UCP_FEATURE_WAKEUP : 0) |
                                    (atomics_ ? UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64 : 0);
    std::vector<int> sockets_;
    bool active_;
    std::atomic<int> failures_{0};
};

// A TCP connection to HOST:PORT, which may be in another network namespace.
int tcp(const std::string& where, bool listening) {
    const auto colon = where.find(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.substr(colon + 1))));
    ::inet_pton(AF_INET, where.substr(0, colon).c_str(), &address.sin_addr);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (!listening) {
        for (int tries = 0; ::connect(made, generic, sizeof(address)) != 0; ++tries) {
            if (tries == 100)
                throw failure("no process listens at " + where);
            ::usleep(100000);
        }
        return made;
    }
    if (::bind(made, generic, sizeof(address)) != 0 || ::listen(made, 1) != 0)
        throw failure("cannot listen at " + where);
    const int accepted = ::accept4(made, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(made);
    return accepted;
}

} // namespace

int main(int argc, char** argv) try {
    options what;
    CLI::App app("two processes that move memory through UCX and check every byte");
    app.add_option("--operations", what.operations)->delimiter(',');
    app.add_option("--sizes", what.sizes)->delimiter(',')->transform(CLI::AsSizeValue(false));
    app.add_option("--here", what.here)->check(CLI::IsMember({"host", "gaudi"}));
    app.add_option("--there", what.there)->check(CLI::IsMember({"host", "gaudi"}));
    app.add_flag("--library{1}", what.of.devices, "device memory from libgaudi-direct, not from UCX");
    app.add_option("--devices", what.of.devices, "the same, on so many devices in turn");
    app.add_flag("--synapse", what.of.synapse, "device memory from SynapseAI's pool");
    app.add_flag("--bare", what.of.bare, "neither type nor handle of memory is given: UCX must detect it");
    app.add_flag("--sleep", what.sleep);
    app.add_option("--threads", what.threads);
    app.add_flag("--one-worker", what.one_worker, "all threads share a worker and an endpoint");
    app.add_flag("--own-contexts", what.own_contexts, "each thread has a context of its own");
    app.add_option("--rounds", what.rounds);
    app.add_option("--listen", what.listen, "HOST:PORT; this process is the passive side");
    app.add_option("--connect", what.connect, "HOST:PORT; this process is the active side");
    CLI11_PARSE(app, argc, argv);
    const auto& chosen = what.operations;
    if (what.one_worker && std::find(chosen.begin(), chosen.end(), "stream") != chosen.end())
        throw failure("the streams of several threads would be one: choose --operations with --one-worker");

    if (!what.listen.empty() || !what.connect.empty()) {
        const bool active = what.listen.empty();
        return side(what, {tcp(active ? what.connect : what.listen, !active)}, active).run();
    }
    std::vector<int> mine, theirs;
    for (unsigned i = 0; i < what.threads; ++i) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            throw failure("socketpair");
        mine.push_back(pair[0]);
        theirs.push_back(pair[1]);
    }
    const auto child = ::fork(); // before either process calls UCX
    if (child == 0)
        ::prctl(PR_SET_PDEATHSIG, SIGKILL); // the child does not outlive a parent that a timeout kills
    for (const int other : child == 0 ? mine : theirs)
        ::close(other);
    const int status = side(what, child == 0 ? theirs : mine, child != 0).run();
    if (child == 0)
        return status;
    int other = 0;
    ::waitpid(child, &other, 0);
    if (!WIFEXITED(other))
        fmt::print(stderr, "passive: ended by signal {}\n", WTERMSIG(other));
    return status != 0 || other != 0 ? 1 : 0;
} catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
}
