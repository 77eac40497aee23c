// SPDX-License-Identifier: BSD-3-Clause
// Connections: each figure with that of perftest on the same virtual nic in the same run.
#include "bench/table.hpp"

#include <gaudi/gaudi.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using bench::table;
using gaudi::expect;
using gaudi::memory_path;

constexpr std::size_t kib = 1024, mib = 1024 * kib;
constexpr std::size_t buffer_bytes = 64 * mib, page = 4096;
constexpr auto long_time = std::chrono::seconds(60);
constexpr int rounds = 5;

// A command for the peer: receive so many messages of a size, into memory of a kind.
struct command {
    std::uint64_t messages = 0; // 0: end
    std::uint64_t bytes = 0;
    memory_path path = memory_path::host;
};

// Memory of every kind on one side.
struct memory {
    std::shared_ptr<gaudi::device> device;
    std::shared_ptr<gaudi::nic> nic;
    std::vector<std::byte> room; // page-aligned, as perftest allocates it
    std::span<std::byte> host;
    gaudi::device_buffer buffer;
    gaudi::local_region regions[3];

    explicit memory(unsigned index)
        : device(expect(gaudi::open_device(gaudi::by_index{index}))), nic(expect(gaudi::open_nic())),
          room(buffer_bytes + page), buffer(expect(device->heap().allocate(buffer_bytes))) {
        const auto misfit = reinterpret_cast<std::uintptr_t>(room.data()) % page;
        host = std::span(room).subspan(misfit == 0 ? 0 : page - misfit, buffer_bytes);
        regions[0] = expect(nic->region(host));
        regions[1] = expect(nic->region(*device, buffer, gaudi::path_policy::require_zero_copy));
        regions[2] = expect(nic->region(*device, buffer, gaudi::path_policy::staged_only));
    }
    [[nodiscard]] gaudi::local_region part(memory_path path, std::uint64_t bytes) const {
        return expect(regions[static_cast<std::size_t>(path)].part(0, bytes));
    }
};

// Keeps a window of operations in flight.
template <typename Begin>
void stream_of(std::uint64_t count, std::size_t window, Begin&& begin) {
    std::deque<gaudi::transfer> outstanding;
    for (std::uint64_t i = 0; i < count; ++i) {
        if (outstanding.size() == window) {
            expect(outstanding.front().wait(long_time));
            outstanding.pop_front();
        }
        outstanding.push_back(expect(begin()));
    }
    for (auto& each : outstanding)
        expect(each.wait(long_time));
}

gaudi::connection_options with_flush(bool flush) {
    gaudi::connection_options options;
    options.flush_device = flush;
    return options;
}

void serve(int port_pipe, bool flush) {
    memory own(1);
    const auto door = expect(gaudi::listener::open(0, "127.0.0.1"));
    const auto port = door.port();
    if (::write(port_pipe, &port, sizeof(port)) != sizeof(port))
        return;
    auto link = expect(door.accept(own.nic, long_time, with_flush(flush)));
    for (const auto path : {memory_path::host, memory_path::zero_copy})
        expect(link.offer(own.regions[static_cast<std::size_t>(path)], gaudi::remote_access::all));
    for (;;) {
        command wanted;
        const auto note = expect(link.receive_note(std::chrono::hours(1)));
        std::memcpy(&wanted, note.data(), sizeof(wanted));
        if (wanted.messages == 0)
            return;
        const auto into = own.part(wanted.path, wanted.bytes);
        stream_of(wanted.messages, wanted.bytes >= mib ? 16 : 256, [&] { return link.receive(into); });
        expect(link.send_note({}));
    }
}

class pair {
public:
    // `flush`: before it reports a message, the receiver pushes what the NIC wrote into device memory.
    // perftest does not.
    explicit pair(bool flush) {
        int ends[2];
        if (::pipe(ends) != 0)
            std::abort();
        child_ = ::fork();
        if (child_ == 0) {
            try {
                serve(ends[1], flush);
            } catch (const std::exception& why) {
                std::fprintf(stderr, "peer: %s\n", why.what());
                ::_exit(1);
            }
            ::_exit(0);
        }
        std::uint16_t port = 0;
        if (::read(ends[0], &port, sizeof(port)) != sizeof(port))
            std::abort();
        ::close(ends[0]);
        ::close(ends[1]);
        own.emplace(0);
        link.emplace(expect(gaudi::connect(own->nic, fmt::format("127.0.0.1:{}", port), with_flush(flush))));
        for (auto& each : remote)
            each = expect(link->take_offer(long_time));
    }
    ~pair() {
        send_command({});
        ::waitpid(child_, nullptr, 0);
    }
    pair(const pair&) = delete;
    pair& operator=(const pair&) = delete;

    // GB/s
    double write(memory_path from, memory_path to, std::uint64_t bytes, std::uint64_t total,
                 bool reading = false) {
        const auto local = own->part(from, bytes);
        const auto there = expect(remote[static_cast<std::size_t>(to)].part(0, bytes));
        return bench::gigabytes_per_second(
            [&] {
                stream_of(total / bytes, bytes >= mib ? 16 : 128,
                          [&] { return reading ? link->read(local, there) : link->write(local, there); });
            },
            total / bytes * bytes);
    }
    double send(memory_path from, memory_path to, std::uint64_t bytes, std::uint64_t total) {
        const auto local = own->part(from, bytes);
        send_command({total / bytes, bytes, to});
        const auto figure = bench::gigabytes_per_second(
            [&] {
                stream_of(total / bytes, bytes >= mib ? 16 : 256, [&] { return link->send(local); });
                expect(link->receive_note(long_time));
            },
            total / bytes * bytes);
        return figure;
    }

    std::optional<memory> own;
    std::optional<gaudi::connection> link;
    gaudi::remote_region remote[2];

private:
    void send_command(const command& wanted) {
        expect(link->send_note(std::as_bytes(std::span(&wanted, 1))));
    }
    pid_t child_ = 0;
};

struct perftest_result {
    double gigabytes_per_second = 0, million_messages = 0;
};

perftest_result perftest(const char* program, std::uint64_t bytes, unsigned iterations) {
    perftest_result found;
    // As our own queue pairs: without scatter to CQE, which spares the virtual NIC a system call for few
    // bytes.
    const auto command = fmt::format(
        "export MLX5_SCATTER_TO_CQE=0; {0} -F -s {1} -n {2} -p 18599 >/dev/null 2>&1 & sleep 0.4; "
        "{0} -F -s {1} -n {2} -p 18599 localhost 2>/dev/null; wait",
        program, bytes, iterations);
    if (auto* pipe = ::popen(command.c_str(), "r")) {
        char line[512];
        while (std::fgets(line, sizeof(line), pipe) != nullptr) {
            unsigned long size = 0, count = 0;
            double peak = 0, average = 0, rate = 0;
            if (std::sscanf(line, "%lu %lu %lf %lf %lf", &size, &count, &peak, &average, &rate) == 5 &&
                size == bytes)
                found = {average * static_cast<double>(mib) / 1e9, rate};
        }
        ::pclose(pipe);
    }
    return found;
}

// Runs an operation and perftest alternately and prints both as one row.
template <typename Measure, typename MeasurePerftest>
void compare_with_perftest(table& out, const std::string& what, const char* program, const char* unit,
                           double goal, Measure&& measure, MeasurePerftest&& measure_perftest) {
    bench::side_by_side found;
    for (int i = 0; i < rounds; ++i) {
        const auto own = measure(), other = measure_perftest();
        if (other <= 0)
            return out.row(what, "", fmt::format("{} is not there, or failed", program));
        found.add(own, other);
    }
    out.row(what, fmt::format("{:.2f} {}", found.first(), unit),
            fmt::format("{}: {:.2f} {}; ratio {:.2f}, goal {:.2f}", program, found.second(), unit,
                        found.ratio(), goal),
            found.ratio() >= goal);
}

void against_perftest(table& out, pair& both) {
    const auto compare = [&](const char* name, const char* program, std::uint64_t bytes, auto&& measure) {
        const auto total = bytes >= mib ? 2048 * mib : 1024 * mib;
        compare_with_perftest(
            out, fmt::format("{} {} KiB, host memory", name, bytes / kib), program, "GB/s", 0.95,
            [&] { return measure(bytes, total); },
            [&] {
                return perftest(program, bytes, static_cast<unsigned>(total / bytes)).gigabytes_per_second;
            });
    };
    for (const std::uint64_t bytes : {64 * kib, mib, 4 * mib}) {
        compare("write", "ib_write_bw", bytes, [&](auto each, auto total) {
            return both.write(memory_path::host, memory_path::host, each, total);
        });
        compare("read", "ib_read_bw", bytes, [&](auto each, auto total) {
            return both.write(memory_path::host, memory_path::host, each, total, true);
        });
        compare("send", "ib_send_bw", bytes, [&](auto each, auto total) {
            return both.send(memory_path::host, memory_path::host, each, total);
        });
    }
}

void message_rate(table& out, pair& both) {
    const auto compare = [&](const char* name, const char* program, auto&& measure) {
        compare_with_perftest(
            out, fmt::format("{} 8 B, host memory", name), program, "M/s", 0.8,
            [&] { return measure() * 1e9 / 8 / 1e6; },
            [&] { return perftest(program, 8, 500000).million_messages; });
    };
    compare("write", "ib_write_bw",
            [&] { return both.write(memory_path::host, memory_path::host, 8, 8 * 500000); });
    compare("send", "ib_send_bw",
            [&] { return both.send(memory_path::host, memory_path::host, 8, 8 * 500000); });
    out.row(
        "write 8 B, Gaudi memory",
        fmt::format("{:.2f} M/s", both.write(memory_path::zero_copy, memory_path::zero_copy, 8, 8 * 2000000) *
                                      1e9 / 8 / 1e6),
        "zero-copy");
}

// GB/s of messages into Gaudi memory, by size.
constexpr std::pair<std::uint64_t, std::uint64_t> flushed_sizes[] = {
    {8, 8 * 500000}, {64 * kib, 512 * mib}, {4 * mib, 1024 * mib}};
std::vector<double> rates_into_gaudi(pair& both) {
    std::vector<double> best(std::size(flushed_sizes));
    for (int round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < best.size(); ++i)
            best[i] = std::max(best[i], both.send(memory_path::zero_copy, memory_path::zero_copy,
                                                  flushed_sizes[i].first, flushed_sizes[i].second));
    return best;
}

void cost_of_flush(table& out, const std::vector<double>& with, const std::vector<double>& without) {
    for (std::size_t i = 0; i < with.size(); ++i)
        out.row(fmt::format("send {} B into Gaudi memory, flushed", flushed_sizes[i].first),
                fmt::format("{:.3f} GB/s", with[i]),
                fmt::format("without the flush {:.3f} GB/s; ratio {:.2f}", without[i], with[i] / without[i]));
}

void zero_copy_and_staged(table& out, pair& both) {
    double direct = 0, staged = 0, mixed = 0, network = 0, engine = 0;
    auto copies = expect(both.own->device->copies());
    const auto pinned = expect(copies.pin(both.own->host));
    // Each round takes a few tens of milliseconds; other load on the machine spoils a few of them.
    constexpr int short_rounds = 12;
    for (int i = 0; i < short_rounds; ++i) {
        direct =
            std::max(direct, both.send(memory_path::zero_copy, memory_path::zero_copy, 4 * mib, 1024 * mib));
        staged = std::max(staged, both.send(memory_path::staged, memory_path::staged, 4 * mib, 512 * mib));
        mixed = std::max(mixed, both.write(memory_path::staged, memory_path::zero_copy, 4 * mib, 512 * mib));
        network =
            std::max(network, both.write(memory_path::host, memory_path::zero_copy, 4 * mib, 1024 * mib));
        engine = std::max(
            engine,
            bench::gigabytes_per_second(
                [&] {
                    for (int n = 0; n < 16; ++n)
                        expect(expect(copies.read(both.own->host, both.own->buffer.address())).wait());
                },
                16 * buffer_bytes));
    }
    out.row("send 4 MiB, zero-copy to zero-copy", fmt::format("{:.2f} GB/s", direct),
            fmt::format("staged to staged: {:.2f} GB/s; ratio {:.2f}, goal 2", staged, direct / staged),
            direct / staged >= 2);
    const auto slower = std::min(network, engine);
    out.row("write 4 MiB, staged to zero-copy", fmt::format("{:.2f} GB/s", mixed),
            fmt::format("copy engine {:.2f}, network {:.2f} GB/s; ratio {:.2f}, goal 0.80", engine, network,
                        mixed / slower),
            mixed / slower >= 0.8);
}

void registration(table& out, pair& both) {
    auto& own = *both.own;
    const auto time =
        bench::nanoseconds_per([&](std::size_t) { (void)own.nic->region(*own.device, own.buffer); });
    out.row("region of a buffer in a warm heap", fmt::format("{:.0f} ns", time), "goal 100 ns", time <= 100);
    // A key for a peer: the first one registers the range with the nic, later ones reuse the registration.
    const auto region = expect(own.nic->region(*own.device, own.buffer));
    const auto part = expect(region.part(0, 4096));
    const auto first =
        bench::nanoseconds_per([&](std::size_t) { (void)expect(part.expose(gaudi::remote_access::read)); });
    const auto held = expect(part.expose(gaudi::remote_access::read));
    const auto again =
        bench::nanoseconds_per([&](std::size_t) { (void)expect(part.expose(gaudi::remote_access::read)); });
    out.row("key for a peer, first (registered and ended)", fmt::format("{:.2f} us", first / 1000), "no goal",
            true);
    out.row("key for a peer, while one lives", fmt::format("{:.0f} ns", again),
            fmt::format("ratio {:.3f} of the first, goal 0.2", again / first), again <= first * 0.2);
}

} // namespace

int main() {
    table out("gaudi-direct: connections");
    try {
        std::optional<pair> plain;
        plain.emplace(false);
        auto& both = *plain;
        registration(out, both);
        against_perftest(out, both);
        message_rate(out, both);
        const auto without = rates_into_gaudi(both);
        plain.reset(); // its peer has the second device open
        pair flushed(true);
        cost_of_flush(out, rates_into_gaudi(flushed), without);
        zero_copy_and_staged(out, flushed);
    } catch (const std::exception& why) {
        std::fprintf(stderr, "%s\n", why.what());
        return 1;
    }
    out.print();
    return 0;
}
