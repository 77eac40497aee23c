// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tools/rdma/endpoint.hpp"

#include <atomic>
#include <string>
#include <vector>

namespace tools::rdma {

// Set by Ctrl-C: every wait ends soon after.
extern std::atomic<bool> stop_requested;
// Handles the first Ctrl-C, and SIGTERM.
void stop_on_signals();

// One kind of operation, measured by the side that initiated it and checked by the side that received.
struct operation_result {
    std::string name;
    std::string by; // client or server
    unsigned count = 0;
    std::uint64_t bytes = 0;
    double seconds = 0, best = 0;
    std::string path;
    std::string skipped; // why it was not run

    void add(std::uint64_t moved, double took);
    [[nodiscard]] json to_json() const;
    static operation_result from_json(const json& text);
};

// A progress bar on the terminal for what takes longer than a second.
class progress_bar {
public:
    progress_bar(bool wanted, unsigned steps);
    ~progress_bar();
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;
    void step(std::string_view doing);

private:
    bool wanted_, shown_ = false;
    unsigned steps_, done_ = 0;
    stopwatch since_;
};

// The exchange between the two programs: every test, every iteration, with its own data, which the receiver
// checks in full.
class session {
public:
    session(gaudi::connection& link, buffer& memory, const job& work, const options& options, json peer);

    outcome<void> run_as_client(progress_bar& bar);
    outcome<void> run_as_server();
    // The results of both sides, after the run.
    std::vector<operation_result> results;
    double first_byte_seconds = 0;

private:
    outcome<gaudi::completion> await(gaudi::result<gaudi::transfer> begun);
    // Starts an operation, waits for it, and records its bytes and time.
    template <typename Begin>
    outcome<gaudi::completion> timed(operation_result& into, Begin&& begin);
    std::optional<failure> peer_failure();
    failure why_failed(const gaudi::error& seen, int otherwise);
    outcome<void> send_note(const json& words);
    outcome<json> receive_note();
    outcome<gaudi::remote_region> receive_offer();
    outcome<void> offer(const gaudi::local_region& region, gaudi::remote_access rights);
    outcome<void> exchange_results();
    operation_result blank(const char* name, const char* by) const;
    template <typename Step>
    outcome<void> each_round(std::string_view test, Step&& step, progress_bar* bar = nullptr);

    outcome<void> send_there_and_back(unsigned round, operation_result& sends);
    outcome<void> receive_and_answer(unsigned round, operation_result& sends);
    outcome<void> be_written(unsigned round);
    outcome<void> push(unsigned round, operation_result& writes);
    outcome<void> pull(unsigned round, operation_result& reads);
    outcome<void> be_read(unsigned round);
    outcome<void> count_up(unsigned round, operation_result& atomics);
    outcome<void> be_counted(unsigned round);

    gaudi::connection& link_;
    buffer& memory_;
    const job& work_;
    const options& options_;
    json peer_;
};

// Messages between the two programs, as JSON notes over the connection. A peer that failed sends "failed".
outcome<void> send_note(gaudi::connection& link, const json& words);
outcome<json> receive_note(gaudi::connection& link, unsigned limit_seconds);
// Sends the peer a failure that it cannot detect itself.
void send_failure(gaudi::connection& link, const failure& why);

} // namespace tools::rdma
