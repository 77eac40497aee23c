// SPDX-License-Identifier: BSD-3-Clause
// UCX with the plugin: device memory compared with host memory, same run, same transport. Run in a lab with
// --ucx.
#include "bench/staging.hpp"
#include "bench/table.hpp"
#include "bench/uct.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using bench::table;

// One run of ucx_perftest as two processes; returns a column of its last line, or 0.
double perftest(const std::string& transports, const std::string& arguments, int column) {
    static int port = 24000 + ::getpid() % 4000;
    const auto command = fmt::format("UCX_NET_DEVICES=lo,vhca0:1 UCX_TLS={},gaudi_cpy ucx_perftest -p {} {}",
                                     transports, ++port, arguments);
    const auto server = ::fork();
    if (server == 0) {
        ::execl("/bin/sh", "sh", "-c", (command + " >/dev/null 2>&1").c_str(), nullptr);
        ::_exit(127);
    }
    ::usleep(300000); // it does not report when it listens
    double figure = 0;
    if (std::FILE* output = ::popen((command + " localhost 2>/dev/null").c_str(), "r"); output != nullptr) {
        char line[512];
        while (std::fgets(line, sizeof(line), output) != nullptr) {
            double values[8] = {};
            if (std::sscanf(line, "Final: %lf %lf %lf %lf %lf %lf %lf %lf", &values[0], &values[1],
                            &values[2], &values[3], &values[4], &values[5], &values[6], &values[7]) == 8)
                figure = values[column];
        }
        ::pclose(output);
    }
    int status = 0;
    ::waitpid(server, &status, 0);
    return figure;
}

constexpr int average_latency = 2, overall_bandwidth = 5;

// The first figure is that of device memory.
bench::side_by_side compare(const std::string& transports, const std::string& arguments, int column,
                            int rounds = 5) {
    bench::side_by_side found;
    for (int round = 0; round < rounds; ++round) {
        const auto host = perftest(transports, arguments + " -m host", column),
                   gaudi = perftest(transports, arguments + " -m gaudi", column);
        if (host <= 0 || gaudi <= 0) {
            std::fprintf(stderr, "ucx_perftest over %s failed: %s\n", transports.c_str(), arguments.c_str());
            std::exit(1);
        }
        found.add(gaudi, host);
    }
    return found;
}

constexpr std::uint64_t mebibyte = 1 << 20;

struct messages {
    std::uint64_t size;
    std::uint64_t bytes; // total
    unsigned outstanding = 32;
};

bench::side_by_side bandwidth(const std::string& transports, const std::string& test, const messages& sent) {
    const int rounds = transports == "tcp" ? 11 : 5; // the kernel's loopback differs most from run to run
    return compare(
        transports,
        fmt::format("-t {} -s {} -n {} -O {}", test, sent.size, sent.bytes / sent.size, sent.outstanding),
        overall_bandwidth, rounds);
}

std::string ratio_to_host(const bench::side_by_side& found, std::optional<double> goal) {
    return fmt::format("-m host: {:.2f} GB/s; ratio {:.2f}{}", found.second() / 1000, found.ratio(),
                       goal ? fmt::format(", goal {:.2f}", *goal) : "");
}

void bandwidth(table& results, const std::string& name, const std::string& transports,
               const std::string& test, const messages& sent, double goal) {
    const auto found = bandwidth(transports, test, sent);
    results.row(fmt::format("{}, {} of {} MiB", name, test, sent.size / mebibyte),
                fmt::format("{:.2f} GB/s", found.first() / 1000), ratio_to_host(found, goal),
                found.ratio() >= goal);
}

// Staged between two processes. UCX stages through as many fragments as the messages in flight need, and
// first allocates them from the kernel: in long runs that cost is small. Without a goal: for comparison only.
void staged(table& results, const std::string& name, const std::string& transports, const messages& sent,
            std::optional<double> goal = std::nullopt) {
    const auto found = bandwidth(transports, "tag_bw", sent);
    const auto limit = bench::staging(sent.size, sent.outstanding).best();
    results.row(fmt::format("{} (staged), tag_bw of {} MiB, {} outstanding", name, sent.size / mebibyte,
                            sent.outstanding),
                fmt::format("{:.2f} GB/s", found.first() / 1000), ratio_to_host(found, goal),
                goal ? std::optional(found.ratio() >= *goal) : std::nullopt);
    results.row("  two processes that only copy", fmt::format("{:.2f} GB/s", limit),
                fmt::format("{:.2f} of -m host; staged is {:.2f} of it", limit / (found.second() / 1000),
                            found.first() / 1000 / limit));
}

} // namespace

int main(int argc, char** argv) {
    if (argc > 1 && argv[1] == std::string_view("--load")) {
        bench::load_ucx();
        return 0;
    }
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "reloc", 0);
    table results("UCX 1.23 with libuct_gaudi, two processes on one host, a Gaudi each");
    bench::uct_rows(results);
    for (const auto* test : {"tag_bw", "ucp_put_bw", "ucp_get"})
        for (const auto size : {mebibyte, 16 * mebibyte})
            bandwidth(results, "rc_verbs (zero-copy)", "rc_v", test, {size, 4096 * mebibyte}, 0.95);
    for (const auto size : {mebibyte, 16 * mebibyte}) {
        bandwidth(results, "gaudi_ipc, cma for host memory", "posix,cma,gaudi_ipc", "tag_bw",
                  {size, 4096 * mebibyte}, 1.3);
        bandwidth(results, "tcp (staged)", "tcp", "tag_bw", {size, 3072 * mebibyte}, 0.8);
        staged(results, "shared memory", "sm", {size, 24576 * mebibyte}, 0.8);
        staged(results, "posix alone", "posix", {size, 24576 * mebibyte});
    }
    // perftest's 32 messages of 16 MiB are 512 MiB of fragments: more than any cache.
    staged(results, "shared memory", "sm", {16 * mebibyte, 24576 * mebibyte, 8}, 0.8);
    staged(results, "posix alone", "posix", {16 * mebibyte, 24576 * mebibyte, 8});
    const auto latency = compare("rc_v", "-t tag_lat -s 8 -w 500 -n 20000", average_latency, 15);
    results.row("rc_verbs, tag latency of 8 B", fmt::format("{:.2f} us", latency.first()),
                fmt::format("-m host: {:.2f} us; ratio {:.2f}, goal 1.50", latency.second(), latency.ratio()),
                latency.ratio() <= 1.5);
    results.print();
}
