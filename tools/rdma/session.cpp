// SPDX-License-Identifier: BSD-3-Clause
#include "tools/rdma/session.hpp"

#include <csignal>
#include <cstdio>
#include <fmt/format.h>
#include <unistd.h>

namespace tools::rdma {

std::atomic<bool> stop_requested{false};

void stop_on_signals() {
    std::signal(SIGINT, [](int) {
        stop_requested = true;
        std::signal(SIGINT, SIG_DFL);
    });
    std::signal(SIGTERM, [](int) { stop_requested = true; });
}

namespace {

using std::chrono::milliseconds;

constexpr auto glance = milliseconds(100); // how often a wait checks for Ctrl-C and the deadline
constexpr pattern scribble{0xdeadbeef, 7};

// The data of each round, different every time.
pattern sent(unsigned round) {
    return {100 * (round + 1)};
}
pattern written(unsigned round) {
    return {1'000'000 * (round + 1), 3};
}
pattern pulled(unsigned round) {
    return {5'000'000 * (round + 1), 5};
}
pattern counted(unsigned round) {
    return {7'000'000 * (round + 1), 11};
}
std::uint64_t first_word(const pattern& of) {
    return of.element(0) | std::uint64_t{of.element(1)} << 32;
}

failure stopped() {
    return {interrupted, "interrupted"};
}

} // namespace

void operation_result::add(std::uint64_t moved, double took) {
    ++count;
    bytes += moved;
    seconds += took;
    best = count == 1 ? took : std::min(best, took);
}

json operation_result::to_json() const {
    return {{"name", name},   {"by", by},           {"count", count},
            {"bytes", bytes}, {"seconds", seconds}, {"best_seconds", best},
            {"path", path},   {"skipped", skipped}};
}

operation_result operation_result::from_json(const json& text) {
    operation_result result;
    result.name = text.value("name", "?");
    result.by = text.value("by", "?");
    result.count = text.value("count", 0U);
    result.bytes = text.value("bytes", std::uint64_t{0});
    result.seconds = text.value("seconds", 0.0);
    result.best = text.value("best_seconds", 0.0);
    result.path = text.value("path", "?");
    result.skipped = text.value("skipped", "");
    return result;
}

progress_bar::progress_bar(bool wanted, unsigned steps)
    : wanted_(wanted && ::isatty(STDERR_FILENO) == 1), steps_(std::max(steps, 1U)) {}

progress_bar::~progress_bar() {
    if (shown_)
        fmt::print(stderr, "\r\033[K");
}

void progress_bar::step(std::string_view doing) {
    ++done_;
    if (!wanted_ || since_.seconds() < 1)
        return;
    shown_ = true;
    constexpr unsigned width = 30;
    const auto filled = std::min(width, done_ * width / steps_);
    fmt::print(stderr, "\r[{:#<{}}{: <{}}] {}/{} {}\033[K", "", filled, "", width - filled, done_, steps_,
               doing);
    std::fflush(stderr);
}

outcome<void> send_note(gaudi::connection& link, const json& words) {
    const auto text = words.dump();
    if (auto sent = link.send_note(std::as_bytes(std::span(text))); !sent)
        return tl::unexpected(failed(sent.error(), peer_lost));
    return {};
}

void send_failure(gaudi::connection& link, const failure& why) {
    if (why.status == wrong || why.status == interrupted)
        (void)send_note(link, {{"failed", why.text}, {"status", why.status == wrong ? wrong : peer_lost}});
}

namespace {

std::string text_of(const std::vector<std::byte>& note) {
    return {reinterpret_cast<const char*>(note.data()), note.size()};
}

// The failure that the peer reports in its note, if it does.
std::optional<failure> reported(const gaudi::connection& link, const json& words) {
    if (!words.is_object() || !words.contains("failed"))
        return {};
    return failure{words.value("status", static_cast<int>(peer_lost)),
                   fmt::format("{} reports: {}", link.peer(), words.value("failed", "?"))};
}

} // namespace

outcome<json> receive_note(gaudi::connection& link, unsigned limit_seconds) {
    const stopwatch waiting;
    for (;;) {
        const auto received = link.receive_note(glance);
        if (received) {
            auto words = json::parse(text_of(*received), nullptr, false);
            if (!words.is_object())
                return tl::unexpected(
                    failure{peer_lost, fmt::format("{} sent a note that is not a JSON object", link.peer())});
            if (auto why = reported(link, words))
                return tl::unexpected(*why);
            return words;
        }
        if (received.error().code() != gaudi::errc::wait_timeout)
            return tl::unexpected(failed(received.error(), peer_lost));
        if (stop_requested)
            return tl::unexpected(stopped());
        if (waiting.seconds() > limit_seconds)
            return tl::unexpected(
                failure{peer_lost, fmt::format("no message from {} within {} s; raise it with --deadline",
                                               link.peer(), limit_seconds)});
    }
}

session::session(gaudi::connection& link, buffer& memory, const job& work, const options& options, json peer)
    : link_(link), memory_(memory), work_(work), options_(options), peer_(std::move(peer)) {}

// Why the peer disconnected, if it sent a reason.
std::optional<failure> session::peer_failure() {
    const auto words = link_.receive_note(milliseconds(0));
    if (!words)
        return {};
    const auto text = text_of(*words);
    if (auto why = reported(link_, json::parse(text, nullptr, false)))
        return why;
    return failure{peer_lost, fmt::format("{} sent an unexpected note: {}", link_.peer(), text)};
}

// The reason that the peer sent explains a failure better than the local error.
failure session::why_failed(const gaudi::error& seen, int otherwise) {
    auto reason = peer_failure();
    return reason ? *reason : failed(seen, otherwise);
}

outcome<gaudi::completion> session::await(gaudi::result<gaudi::transfer> begun) {
    if (!begun)
        return tl::unexpected(why_failed(begun.error(), wrong));
    if (stop_requested)
        return tl::unexpected(stopped());
    const stopwatch waiting;
    for (;;) {
        const auto done = begun->wait(glance);
        if (done)
            return *done;
        if (done.error().code() != gaudi::errc::wait_timeout)
            return tl::unexpected(why_failed(done.error(), wrong));
        if (stop_requested)
            return tl::unexpected(stopped());
        if (waiting.seconds() > options_.deadline_seconds)
            return tl::unexpected(failure{
                peer_lost, fmt::format("a transfer with {} did not finish in {} s; --deadline raises this",
                                       link_.peer(), options_.deadline_seconds)});
    }
}

template <typename Begin>
outcome<gaudi::completion> session::timed(operation_result& into, Begin&& begin) {
    const stopwatch moving;
    auto done = await(begin());
    if (!done)
        return done;
    const auto took = moving.seconds();
    if (first_byte_seconds == 0)
        first_byte_seconds = took;
    into.add(done->bytes, took);
    return done;
}

outcome<void> session::send_note(const json& words) {
    auto done = rdma::send_note(link_, words);
    if (!done)
        if (auto reason = peer_failure())
            return tl::unexpected(*reason);
    return done;
}

outcome<json> session::receive_note() {
    return rdma::receive_note(link_, options_.deadline_seconds);
}

outcome<gaudi::remote_region> session::receive_offer() {
    const stopwatch waiting;
    for (;;) {
        auto offered = link_.take_offer(glance);
        if (offered)
            return *offered;
        if (auto reason = peer_failure()) // the peer offers nothing because of a failure
            return tl::unexpected(*reason);
        if (offered.error().code() != gaudi::errc::wait_timeout)
            return tl::unexpected(failed(offered.error(), peer_lost));
        if (stop_requested)
            return tl::unexpected(stopped());
        if (waiting.seconds() > options_.deadline_seconds)
            return tl::unexpected(failure{peer_lost, fmt::format("{} offered no memory in {} s", link_.peer(),
                                                                 options_.deadline_seconds)});
    }
}

outcome<void> session::offer(const gaudi::local_region& region, gaudi::remote_access rights) {
    if (auto offered = link_.offer(region, rights); !offered)
        return tl::unexpected(why_failed(offered.error(), wrong));
    return {};
}

operation_result session::blank(const char* name, const char* by) const {
    operation_result result;
    result.name = name;
    result.by = by;
    result.path = fmt::format("{} to {}", gaudi::name_of(memory_.region().path()), peer_.value("path", "?"));
    return result;
}

// Returns a failure to the caller.
#define GAUDI_TRY(step)                                                                                      \
    if (auto went = (step); !went)                                                                           \
    return tl::unexpected(went.error())

outcome<void> session::send_there_and_back(unsigned round, operation_result& sends) {
    GAUDI_TRY(memory_.fill(sent(round)));
    GAUDI_TRY(timed(sends, [&] { return link_.send(memory_.region()); }));
    GAUDI_TRY(memory_.fill(scribble));
    GAUDI_TRY(await(link_.receive(memory_.region())));
    return memory_.check(sent(round).doubled());
}

outcome<void> session::receive_and_answer(unsigned round, operation_result& sends) {
    GAUDI_TRY(memory_.fill(scribble));
    GAUDI_TRY(await(link_.receive(memory_.region())));
    GAUDI_TRY(memory_.check_and_double(sent(round)));
    GAUDI_TRY(timed(sends, [&] { return link_.send(memory_.region()); }));
    return {};
}

outcome<void> session::be_written(unsigned round) {
    GAUDI_TRY(memory_.fill(scribble));
    GAUDI_TRY(offer(memory_.region(), gaudi::remote_access::write));
    GAUDI_TRY(receive_note());
    return memory_.check(written(round));
}

outcome<void> session::push(unsigned round, operation_result& writes) {
    const auto remote = receive_offer();
    if (!remote)
        return tl::unexpected(remote.error());
    GAUDI_TRY(memory_.fill(written(round)));
    GAUDI_TRY(timed(writes, [&] { return link_.write(memory_.region(), *remote); }));
    return send_note({{"written", round}});
}

outcome<void> session::pull(unsigned round, operation_result& reads) {
    const auto remote = receive_offer();
    if (!remote)
        return tl::unexpected(remote.error());
    GAUDI_TRY(memory_.fill(scribble));
    GAUDI_TRY(timed(reads, [&] { return link_.read(memory_.region(), *remote); }));
    GAUDI_TRY(memory_.check(pulled(round)));
    return send_note({{"read", round}});
}

outcome<void> session::be_read(unsigned round) {
    GAUDI_TRY(memory_.fill(pulled(round)));
    GAUDI_TRY(offer(memory_.region(), gaudi::remote_access::read));
    GAUDI_TRY(receive_note());
    return {};
}

outcome<void> session::count_up(unsigned round, operation_result& atomics) {
    const auto remote = receive_offer();
    if (!remote)
        return tl::unexpected(remote.error());
    const auto begin = first_word(counted(round)), end = first_word(counted(round).doubled());
    constexpr std::uint64_t steps = 8;
    const auto expect_value = [&](std::uint64_t expected, auto&& begin_one) -> outcome<void> {
        const auto done = timed(atomics, begin_one);
        if (!done)
            return tl::unexpected(done.error());
        if (done->value != expected)
            return tl::unexpected(failure{
                wrong, fmt::format("an atomic operation found {}, expected {}", done->value, expected)});
        return {};
    };
    for (std::uint64_t i = 0; i < steps; ++i)
        GAUDI_TRY(expect_value(begin + i, [&] { return link_.fetch_add(*remote, 1); }));
    GAUDI_TRY(expect_value(begin + steps, [&] { return link_.compare_swap(*remote, begin, 1); }));
    GAUDI_TRY(expect_value(begin + steps, [&] { return link_.compare_swap(*remote, begin + steps, end); }));
    return send_note({{"counted", round}});
}

outcome<void> session::be_counted(unsigned round) {
    GAUDI_TRY(memory_.fill(counted(round)));
    const auto word = memory_.region().part(0, 8);
    GAUDI_TRY(offer(*word, gaudi::remote_access::atomic));
    GAUDI_TRY(receive_note());
    const auto value = memory_.first_word();
    if (!value)
        return tl::unexpected(value.error());
    if (const auto expected = first_word(counted(round).doubled()); *value != expected)
        return tl::unexpected(failure{
            wrong, fmt::format("wrong word at offset 0 after atomic operations: expected {}, found {}",
                               expected, *value)});
    return {};
}

namespace {

// Why atomic operations cannot be tested; empty if they can.
std::string no_atomics(const gaudi::connection& link, std::uint64_t size, std::string_view server_path) {
    if (!link.atomics())
        return "one of the two NICs has no atomic operations";
    if (size < 8)
        return "the buffer is shorter than 8 bytes";
    if (server_path == gaudi::name_of(gaudi::memory_path::staged))
        return "the server's memory is staged, and a NIC's atomic operations need memory that it can reach";
    return {};
}

} // namespace

// Runs a test if it was requested, for all iterations; stops at the first round that fails.
template <typename Step>
outcome<void> session::each_round(std::string_view test, Step&& step, progress_bar* bar) {
    for (unsigned round = 0; work_.has(test) && round < work_.iterations; ++round) {
        GAUDI_TRY(step(round));
        if (bar != nullptr)
            bar->step(test);
    }
    return {};
}

outcome<void> session::run_as_client(progress_bar& bar) {
    auto sends = blank("send", "client"), reads = blank("read", "client"),
         atomics = blank("atomics", "client");
    GAUDI_TRY(each_round(
        "sendrecv", [&](unsigned round) { return send_there_and_back(round, sends); }, &bar));
    GAUDI_TRY(each_round(
        "write", [&](unsigned round) { return be_written(round); }, &bar));
    GAUDI_TRY(each_round(
        "read", [&](unsigned round) { return pull(round, reads); }, &bar));
    atomics.skipped = no_atomics(link_, work_.size, peer_.value("path", ""));
    if (atomics.skipped.empty())
        GAUDI_TRY(each_round(
            "atomics", [&](unsigned round) { return count_up(round, atomics); }, &bar));
    for (const auto& [test, result] :
         {std::pair{"sendrecv", &sends}, {"read", &reads}, {"atomics", &atomics}})
        if (work_.has(test))
            results.push_back(*result);
    return exchange_results();
}

outcome<void> session::run_as_server() {
    auto sends = blank("send back", "server"), writes = blank("write", "server");
    GAUDI_TRY(each_round("sendrecv", [&](unsigned round) { return receive_and_answer(round, sends); }));
    GAUDI_TRY(each_round("write", [&](unsigned round) { return push(round, writes); }));
    GAUDI_TRY(each_round("read", [&](unsigned round) { return be_read(round); }));
    if (no_atomics(link_, work_.size, gaudi::name_of(memory_.region().path())).empty())
        GAUDI_TRY(each_round("atomics", [&](unsigned round) { return be_counted(round); }));
    for (const auto& [test, result] : {std::pair{"sendrecv", &sends}, {"write", &writes}})
        if (work_.has(test))
            results.push_back(*result);
    return exchange_results();
}

outcome<void> session::exchange_results() {
    auto own = json::array();
    for (const auto& result : results)
        own.push_back(result.to_json());
    GAUDI_TRY(send_note({{"results", own}}));
    const auto peer_results = receive_note();
    if (!peer_results)
        return tl::unexpected(peer_results.error());
    if (const auto list = peer_results->find("results"); list != peer_results->end() && list->is_array())
        for (const auto& result : *list)
            results.push_back(operation_result::from_json(result));
    return {};
}

} // namespace tools::rdma
