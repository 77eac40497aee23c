// SPDX-License-Identifier: BSD-3-Clause
// The virtual nic: each figure with what the machine itself reaches in the same run.
#include "bench/hca_peers.hpp"

#include <set>
#include <string_view>
#include <sys/uio.h>

namespace {

using namespace bench;

double gbps(std::size_t bytes, double nanoseconds) {
    return static_cast<double>(bytes) / nanoseconds;
}

std::string size_of(std::size_t bytes) {
    return bytes >= mib ? fmt::format("{} MiB", bytes / mib) : fmt::format("{} KiB", bytes / kib);
}

void wait_for_stop(exchange& where) {
    while (!where.stop)
        ::usleep(1000);
}

// The passive side: the measuring process accesses this device's memory until it sets `stop`.
void serve_device_memory(exchange& where, std::size_t bytes) {
    gaudi_memory gaudi("0000:1a:00.0");
    end_point here;
    here.use_dmabuf(gaudi.dmabuf, gaudi.address, bytes);
    here.connect_to_peer(where, 1);
    wait_for_stop(where);
}

void print_ratio(table& out, const std::string& what, const char* limit, std::uint64_t bytes,
                 const bench::times& seen, double goal) {
    out.row(what, fmt::format("{:.1f} GB/s", gbps(bytes, seen.measured)),
            fmt::format("{}: {:.1f} GB/s; ratio {:.2f}, goal {:.2f}", limit, gbps(bytes, seen.limit),
                        seen.ratio(), goal),
            seen.ratio() >= goal);
}

void device_bandwidth(table& out) {
    auto& where = new_exchange();
    with_peer(
        where, [&] { serve_device_memory(where, 128 * mib); },
        [&] {
            auto* source = static_cast<unsigned char*>(std::aligned_alloc(4096, 64 * mib));
            auto* target = static_cast<unsigned char*>(
                ::mmap(nullptr, 64 * mib, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
            std::memset(source, 1, 64 * mib);
            std::memset(target, 2, 64 * mib);
            end_point here;
            here.use(source, 64 * mib);
            here.connect_to_peer(where, 0);
            for (const auto bytes : {64 * kib, 256 * kib, mib, 4 * mib, 64 * mib}) {
                // Each copy goes to the next place: whether a single place shares a cache with its source
                // depends on which pages it got.
                const auto places = std::min<std::uint64_t>(64 * mib / bytes, 16);
                const auto seen = bench::in_turn(
                    [&](std::size_t i) {
                        std::memcpy(target + i % places * bytes, source, bytes);
                        asm volatile("" ::: "memory");
                    },
                    [&](std::size_t i) {
                        here.write(here.at, here.remote.memory + i % places * bytes,
                                   static_cast<std::uint32_t>(bytes));
                        here.wait(1);
                    });
                print_ratio(out, fmt::format("write into a DMA-BUF region, {}", size_of(bytes)), "memcpy",
                            bytes, seen, bytes >= mib ? 0.95 : 0.75);
            }
        });
}

void anonymous_bandwidth(table& out) {
    auto& where = new_exchange();
    with_peer(
        where,
        [&] {
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 3, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.connect_to_peer(where, 1);
            where.line = static_cast<std::uint32_t>(::getpid());
            wait_for_stop(where);
        },
        [&] {
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 4, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.connect_to_peer(where, 0);
            while (where.line == 0)
                ::usleep(100);
            for (const auto bytes : {64 * kib, mib, 4 * mib, 64 * mib}) {
                const iovec local{memory, bytes}, remote{reinterpret_cast<void*>(here.remote.memory), bytes};
                const auto size = static_cast<std::uint32_t>(bytes);
                const auto owner = static_cast<pid_t>(where.line);
                const auto compare = [&](const char* what, const char* call, auto&& limit, auto&& post) {
                    const auto seen = bench::in_turn(
                        [&](std::size_t) {
                            if (limit(owner, &local, 1UL, &remote, 1UL, 0UL) < 0)
                                fail(call);
                        },
                        [&](std::size_t) {
                            post();
                            here.wait(1);
                        });
                    print_ratio(out, fmt::format("{} anonymous memory, {}", what, size_of(bytes)), call,
                                bytes, seen, 0.85);
                };
                compare("write into", "process_vm_writev", ::process_vm_writev,
                        [&] { here.write(here.at, here.remote.memory, size); });
                compare("read from", "process_vm_readv", ::process_vm_readv,
                        [&] { here.read(here.at, here.remote.memory, size); });
            }
        });
}

constexpr std::uint32_t turns = 200000;

// One-way time in nanoseconds: `post` passes a number to the other side, `seen` returns whether its number
// has arrived.
template <typename Post, typename Seen>
double one_way(int me, Post&& post, Seen&& seen) {
    const auto begin = clock::now();
    for (std::uint32_t number = 1; number <= turns; ++number) {
        if (me == 0)
            post(number);
        while (!seen(number)) {
        }
        if (me == 1)
            post(number);
    }
    return std::chrono::duration<double, std::nano>(clock::now() - begin).count() / turns / 2;
}

struct one_way_times {
    double one_line = 1e18;  // two processes that write the same cache line alternately
    double two_lines = 1e18; // each writes into a line that the other one polls, as with a NIC
    double write = 1e18;     // the same by RDMA: two bytes into the memory of the peer's device
};

// Alternating, so that all three are measured under the same conditions: virtual processors move.
one_way_times write_ping_pong() {
    auto& where = new_exchange();
    const auto play = [&](const char* bus_id, int me) {
        gaudi_memory gaudi(bus_id);
        end_point here;
        here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
        std::atomic_ref mine(*reinterpret_cast<std::uint16_t*>(gaudi.seen));
        mine = 0;
        here.connect_to_peer(where, me);
        one_way_times best;
        for (int round = 0; round < 7; ++round) {
            const auto shorter = [](double& of, double taken) { of = std::min(of, taken); };
            auto &to = where.lines[1 - me].line, &from = where.lines[me].line;
            shorter(best.two_lines, one_way(
                                        me, [&](std::uint32_t number) { to.store(number); },
                                        [&](std::uint32_t number) { return from.load() == number; }));
            const auto other = 1U - static_cast<unsigned>(me);
            shorter(
                best.one_line,
                one_way(
                    me,
                    [&](std::uint32_t number) { where.line.store(2 * number + static_cast<unsigned>(me)); },
                    [&](std::uint32_t number) { return where.line.load() == 2 * number + other; }));
            shorter(best.write,
                    one_way(
                        me,
                        [&](std::uint32_t number) {
                            const auto bytes = static_cast<std::uint16_t>(number);
                            here.write(reinterpret_cast<std::uint64_t>(&bytes), here.remote.memory,
                                       sizeof(bytes), IBV_SEND_SIGNALED | IBV_SEND_INLINE);
                            here.wait(1);
                        },
                        [&](std::uint32_t number) {
                            return mine.load(std::memory_order_acquire) == static_cast<std::uint16_t>(number);
                        }));
        }
        where.arrived[me] = 3;
        while (where.arrived[1 - me] < 3)
            ::usleep(100);
        return best;
    };
    one_way_times best;
    with_peer(
        where, [&] { (void)play("0000:1a:00.0", 1); }, [&] { best = play("0000:19:00.0", 0); });
    return best;
}

double send_ping_pong() {
    auto& where = new_exchange();
    const auto play = [&](const char* bus_id, int me) {
        gaudi_memory gaudi(bus_id);
        end_point here;
        here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
        here.connect_to_peer(where, me);
        for (int i = 0; i < 64; ++i)
            here.receive(64);
        double best = 1e18;
        for (int round = 0; round < 5; ++round) {
            const auto begin = clock::now();
            for (std::uint32_t i = 0; i < turns / 4; ++i) {
                if (me == 0)
                    here.send(2);
                here.wait(me == 0 ? 2 : 1); // its own send, and the receive
                here.receive(64);
                if (me == 1) {
                    here.send(2);
                    here.wait(1);
                }
            }
            const std::chrono::duration<double, std::nano> taken = clock::now() - begin;
            best = std::min(best, taken.count() / (turns / 4) / 2);
        }
        where.arrived[me] = 3;
        while (where.arrived[1 - me] < 3)
            ::usleep(100);
        return best;
    };
    double best = 0;
    with_peer(
        where, [&] { (void)play("0000:1a:00.0", 1); }, [&] { best = play("0000:19:00.0", 0); });
    return best;
}

void latencies(table& out) {
    const auto seen = write_ping_pong();
    out.row("2 B write, one way, device memory", fmt::format("{:.0f} ns", seen.write),
            fmt::format("raw, a line each way: {:.0f} ns; ratio {:.2f}, goal 1.5", seen.two_lines,
                        seen.write / seen.two_lines),
            seen.write <= 1.5 * seen.two_lines);
    out.row("  compared with one line that goes to and fro", "",
            fmt::format("{:.0f} ns; ratio {:.2f}", seen.one_line, seen.write / seen.one_line));
    const auto sent = send_ping_pong();
    out.row("2 B send, one way, device memory", fmt::format("{:.0f} ns", sent), "goal 600 ns", sent <= 600);
}

void message_rate(table& out) {
    auto& where = new_exchange();
    with_peer(
        where, [&] { serve_device_memory(where, mib); },
        [&] {
            gaudi_memory gaudi("0000:19:00.0");
            end_point here;
            here.use_dmabuf(gaudi.dmabuf, gaudi.address, mib);
            here.connect_to_peer(where, 0);
            constexpr std::size_t list = 64;
            ibv_sge entry{gaudi.address, 8, here.mr->lkey};
            std::array<ibv_send_wr, list> all{};
            for (std::size_t i = 0; i < list; ++i) {
                all[i].opcode = IBV_WR_RDMA_WRITE;
                all[i].sg_list = &entry;
                all[i].num_sge = 1;
                all[i].wr.rdma = {here.remote.memory + 8 * i, here.remote.key};
                all[i].next = i + 1 < list ? &all[i + 1] : nullptr;
            }
            all[list - 1].send_flags = IBV_SEND_SIGNALED;
            const auto batched = bench::nanoseconds_per([&](std::size_t) {
                                     ibv_send_wr* bad = nullptr;
                                     if (ibv_post_send(here.qp, all.data(), &bad) != 0)
                                         fail("ibv_post_send");
                                     here.wait(1);
                                 }) /
                                 list;
            out.row("8 B writes, device memory, in lists of 64", fmt::format("{:.1f} M/s", 1000 / batched),
                    "goal 10 M/s", batched <= 100);
            const auto alone = bench::nanoseconds_per([&](std::size_t) {
                here.write(gaudi.address, here.remote.memory, 8);
                here.wait(1);
            });
            out.row("8 B write, posted and polled one by one", fmt::format("{:.1f} M/s", 1000 / alone), "");
        });
}

void registration(table& out) {
    end_point here;
    constexpr std::size_t bytes = 1024 * mib;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(memory, 1, bytes);
    const auto registered = bench::nanoseconds_per([&](std::size_t) {
        auto* mr = checked(ibv_reg_mr(here.pd, memory, bytes, all_access), "ibv_reg_mr");
        ibv_dereg_mr(mr);
    });
    ::munmap(memory, bytes);
    out.row("register and deregister 1 GiB", fmt::format("{:.1f} us", registered / 1000), "goal 50 us",
            registered <= 50000);
}

// The other host is a second lab that uses the next address of the loopback network.
void tcp(table& out) {
    double limit = 0;
    if (auto* pipe = ::popen("(iperf3 -s -1 -B 127.0.0.1 -p 46999 >/dev/null 2>&1 &) ; sleep 0.5; "
                             "LD_PRELOAD= iperf3 -c 127.0.0.1 -p 46999 -l 1M -t 2 -f m 2>/dev/null | awk "
                             "'/receiver/ {print $7}'",
                             "r")) {
        double mbit = 0;
        if (std::fscanf(pipe, "%lf", &mbit) == 1)
            limit = mbit / 8 / 1000;
        ::pclose(pipe);
    }
    auto& where = new_exchange();
    const auto enter = [](const char* name, const char* address) {
        ::setenv("GAUDI_LAB", name, 1);
        const auto file = fmt::format("/tmp/{}-{}.lab", name, ::getpid());
        if (auto* out_file = std::fopen(file.c_str(), "w"); out_file != nullptr) {
            std::fprintf(out_file, "gaudis = 0\nhcas = 1\nlink_layer = ethernet\naddress = %s\n", address);
            std::fclose(out_file);
        }
        const auto status = std::system(fmt::format("LD_PRELOAD= '{}' lab run --lab {} --config {} -- true",
                                                    std::getenv("GAUDI_DIRECT_TOOL"), name, file)
                                            .c_str());
        ::unlink(file.c_str());
        if (status != 0)
            fail("lab run");
    };
    with_peer(
        where,
        [&] {
            enter("bench-remote", "127.0.0.2");
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 3, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.connect_to_peer(where, 1);
            wait_for_stop(where);
        },
        [&] {
            const std::string before = std::getenv("GAUDI_LAB") != nullptr ? std::getenv("GAUDI_LAB") : "";
            enter("bench-local", "127.0.0.1");
            auto* memory = std::aligned_alloc(4096, 64 * mib);
            std::memset(memory, 4, 64 * mib);
            end_point here;
            here.use(memory, 64 * mib);
            here.connect_to_peer(where, 0);
            constexpr int window = 16;
            const auto per_write = bench::nanoseconds_per([&](std::size_t) {
                                       for (std::size_t i = 0; i < window; ++i)
                                           here.write(here.at + i * mib, here.remote.memory + i * mib, mib);
                                       here.wait(window);
                                   }) /
                                   window;
            out.row("write over TCP, 1 MiB, 16 in flight", fmt::format("{:.2f} GB/s", gbps(mib, per_write)),
                    limit == 0 ? std::string("iperf3 is not there: no limit")
                               : fmt::format("iperf3 -l 1M: {:.2f} GB/s; ratio {:.2f}, goal 0.75", limit,
                                             gbps(mib, per_write) / limit),
                    limit == 0 ? std::nullopt : std::optional(gbps(mib, per_write) >= 0.75 * limit));
            const auto small = bench::nanoseconds_per([&](std::size_t) {
                here.write(here.at, here.remote.memory, 8);
                here.wait(1);
            });
            out.row("8 B write over TCP and back", fmt::format("{:.1f} us", small / 1000), "");
            ::setenv("GAUDI_LAB", before.c_str(), 1);
        });
}

} // namespace

// Runs all measurements, or those that are named.
int main(int argc, char** argv) {
    const std::set<std::string_view> wanted(argv + 1, argv + argc);
    const std::pair<std::string_view, void (*)(table&)> parts[] = {
        {"registration", registration}, {"device", device_bandwidth}, {"anonymous", anonymous_bandwidth},
        {"latency", latencies},         {"rate", message_rate},       {"tcp", tcp}};
    table out("gaudi-direct: the virtual HCA");
    for (const auto& [name, measure] : parts)
        if (wanted.empty() || wanted.contains(name))
            measure(out);
    out.print();
    return 0;
}
