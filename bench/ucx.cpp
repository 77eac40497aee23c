// SPDX-License-Identifier: BSD-3-Clause
// UCX with the plugin: Gaudi memory beside host memory, same run, same transport; and what UCX asks the
// memory domain, in nanoseconds. Run in a lab with --ucx.
#include "bench/staging.hpp"
#include "bench/table.hpp"
#include "tests/ucx/uct_fixture.hpp"

#include <gaudi/device.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

using bench::table;

// One run of ucx_perftest as two processes; the figure of a column of its last line, or 0.
double perftest(const std::string& transports, const std::string& arguments, int column) {
    static int port = 24000 + ::getpid() % 4000;
    const auto command = fmt::format("UCX_NET_DEVICES=lo,vhca0:1 UCX_TLS={},gaudi_cpy ucx_perftest -p {} {}",
                                     transports, ++port, arguments);
    const auto server = ::fork();
    if (server == 0) {
        ::execl("/bin/sh", "sh", "-c", (command + " >/dev/null 2>&1").c_str(), nullptr);
        ::_exit(127);
    }
    ::usleep(300000); // it does not say when it listens
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

// Gaudi memory first.
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
    std::uint64_t bytes; // altogether
    unsigned under_way = 32;
};

bench::side_by_side bandwidth(const std::string& transports, const std::string& test, const messages& sent) {
    return compare(
        transports,
        fmt::format("-t {} -s {} -n {} -O {}", test, sent.size, sent.bytes / sent.size, sent.under_way),
        overall_bandwidth);
}

std::string beside_host(const bench::side_by_side& found, std::optional<double> goal) {
    return fmt::format("-m host: {:.2f} GB/s; ratio {:.2f}{}", found.second() / 1000, found.ratio(),
                       goal ? fmt::format(", goal {:.2f}", *goal) : "");
}

void bandwidth(table& results, const std::string& name, const std::string& transports,
               const std::string& test, const messages& sent, double goal) {
    const auto found = bandwidth(transports, test, sent);
    results.row(fmt::format("{}, {} of {} MiB", name, test, sent.size / mebibyte),
                fmt::format("{:.2f} GB/s", found.first() / 1000), beside_host(found, goal),
                found.ratio() >= goal);
}

// Staged between two processes. UCX stages through as many fragments as the messages under way have, and
// first has to get them from the kernel: in long runs that counts for little. Without a goal: for comparison.
void staged(table& results, const std::string& name, const std::string& transports, const messages& sent,
            std::optional<double> goal = std::nullopt) {
    const auto found = bandwidth(transports, "tag_bw", sent);
    const auto limit = bench::staging(sent.size, sent.under_way).best();
    results.row(fmt::format("{} (staged), tag_bw of {} MiB, {} under way", name, sent.size / mebibyte,
                            sent.under_way),
                fmt::format("{:.2f} GB/s", found.first() / 1000), beside_host(found, goal),
                goal ? std::optional(found.ratio() >= *goal) : std::nullopt);
    results.row("  two processes that only copy", fmt::format("{:.2f} GB/s", limit),
                fmt::format("{:.2f} of -m host; staged is {:.2f} of it", limit / (found.second() / 1000),
                            found.first() / 1000 / limit));
}

// Calls of the memory domain.
void questions(table& results) {
    using namespace testing_ucx;
    memory_domain domain("gaudi_copy", "gaudi_copy");
    copier copies(domain);
    const allocated memory(domain, 1 << 20);
    const auto at = [&](std::size_t i) { return reinterpret_cast<void*>(memory.number() + i % 1000 * 1000); };

    uct_md_mem_attr_v2_t attr{};
    attr.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV |
                      UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS | UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH;
    const auto query =
        bench::nanoseconds_per([&](std::size_t i) { uct_md_mem_query_v2(domain.md, at(i), 64, &attr); });
    results.row("mem_query", fmt::format("{:.0f} ns", query), "goal 200 ns", query <= 200);

    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    const auto ours = bench::nanoseconds_per(
        [&](std::size_t i) { uct_md_detect_memory_type(domain.md, at(i), 64, &type); });
    results.row("detection of Gaudi memory", fmt::format("{:.0f} ns", ours), "goal 50 ns", ours <= 50);
    const auto theirs =
        bench::nanoseconds_per([&](std::size_t) { uct_md_detect_memory_type(domain.md, &type, 4, &type); });
    results.row("detection of host memory", fmt::format("{:.0f} ns", theirs), "goal 50 ns", theirs <= 50);

    uct_md_mem_reg_params_t params{};
    params.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS;
    params.flags = UCT_MD_MEM_ACCESS_ALL;
    const auto registration = bench::nanoseconds_per([&](std::size_t i) {
        uct_mem_h memh = nullptr;
        uct_md_mem_reg_v2(domain.md, at(i), 64, &params, &memh);
        uct_md_mem_dereg(domain.md, memh);
    });
    results.row("registration of a known buffer", fmt::format("{:.0f} ns", registration), "goal 1000 ns",
                registration <= 1000);

    std::uint64_t word = 1;
    const auto put = bench::nanoseconds_per(
        [&](std::size_t) { uct_ep_put_short(copies.ep, &word, 8, memory.number(), UCT_INVALID_RKEY); });
    auto engine = gaudi::expect(gaudi::expect(gaudi::open_device())->copies());
    const auto bytes = std::as_bytes(std::span(&word, 1));
    const auto own = bench::nanoseconds_per([&](std::size_t) {
        gaudi::expect(gaudi::expect(engine.write(gaudi::device_address(memory.number()), bytes)).wait());
    });
    results.row("put_short of 8 B", fmt::format("{:.1f} us", put / 1000),
                fmt::format("copy engine: {:.1f} us; ratio {:.2f}, goal 2", own / 1000, put / own),
                put / own <= 2);
    std::vector<std::byte> large(16 << 20);
    const allocated big(domain, large.size());
    for (const bool down : {true, false}) {
        const auto once = bench::nanoseconds_per([&](std::size_t) {
            if (down)
                uct_ep_put_short(copies.ep, large.data(), static_cast<unsigned>(large.size()), big.number(),
                                 UCT_INVALID_RKEY);
            else
                uct_ep_get_short(copies.ep, large.data(), static_cast<unsigned>(large.size()), big.number(),
                                 UCT_INVALID_RKEY);
        });
        results.row(down ? "copy of 16 MiB to a device" : "copy of 16 MiB from a device",
                    fmt::format("{:.2f} GB/s", static_cast<double>(large.size()) / once),
                    "for UCX_GAUDI_COPY_BW_*");
    }
}

} // namespace

// Sleeps until everything has ended: a processor that spins is one less for the virtual device.
void sleep_until_idle(testing_ucx::copier& with) {
    int event = -1;
    testing_ucx::check(uct_iface_event_fd_get(with.iface, &event), "uct_iface_event_fd_get");
    while (uct_iface_flush(with.iface, 0, nullptr) == UCS_INPROGRESS) {
        if (uct_iface_event_arm(with.iface, UCT_EVENT_SEND_COMP) == UCS_OK) {
            pollfd waiting{event, POLLIN, 0};
            ::poll(&waiting, 1, 1000);
        }
        with.progress();
    }
}

double own_nanoseconds() {
    timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) * 1e9 + static_cast<double>(used.tv_nsec);
}

// gaudi_dma beside the engine below it.
void dma(table& results) {
    using namespace testing_ucx;
    memory_domain domain("gaudi_copy", "gaudi_copy");
    constexpr std::size_t whole = 256 << 20;
    const allocated memory(domain, whole);
    std::vector<std::byte> host(whole, std::byte{1});
    uct_md_mem_reg_params_t params{};
    uct_mem_h memh = nullptr;
    check(uct_md_mem_reg_v2(domain.md, host.data(), whole, &params, &memh), "uct_md_mem_reg_v2");
    auto engine = gaudi::expect(gaudi::expect(gaudi::open_device())->copies());
    const auto all = [&](copier& with, std::size_t size) {
        std::vector<finished> done(whole / size);
        for (std::size_t i = 0; i < done.size(); ++i) {
            uct_iov_t iov{host.data() + i * size, size, memh, 0, 1};
            while (uct_ep_put_zcopy(with.ep, &iov, 1, memory.number() + i * size, UCT_INVALID_RKEY,
                                    &done[i].comp) == UCS_ERR_NO_RESOURCE)
                with.progress();
        }
        sleep_until_idle(with);
    };
    copier usual(domain, "gaudi_dma", "gaudi_dma");
    ::setenv("UCX_GAUDI_DMA_QUEUES", "1", 1);
    copier one(domain, "gaudi_dma", "gaudi_dma");
    ::setenv("UCX_GAUDI_DMA_QUEUES", "4", 1);
    copier four(domain, "gaudi_dma", "gaudi_dma");
    ::unsetenv("UCX_GAUDI_DMA_QUEUES");
    auto pinned = gaudi::expect(engine.pin(host));
    constexpr std::size_t kib = 1024, mib = 1024 * kib;
    for (const std::size_t size : {4 * kib, 64 * kib, mib, 16 * mib, 64 * mib}) {
        const auto by_engine_alone = [&] {
            std::deque<gaudi::copy_ticket> tickets;
            for (std::size_t i = 0; i < whole / size; ++i) {
                if (tickets.size() == 256) { // as many as gaudi_dma has under way
                    gaudi::expect(tickets.front().wait());
                    tickets.pop_front();
                }
                tickets.push_back(
                    gaudi::expect(engine.write(gaudi::device_address(memory.number() + i * size),
                                               std::span(host).subspan(i * size, size))));
            }
            for (auto& each : tickets)
                gaudi::expect(each.wait());
        };
        const auto by = [&](copier& with) {
            return bench::gigabytes_per_second([&] { all(with, size); }, whole);
        };
        bench::side_by_side beside_engine, beside_one;
        for (int round = 0; round < 21; ++round) {
            const auto by_engine = bench::gigabytes_per_second(by_engine_alone, whole);
            beside_engine.add(by(usual), by_engine);
            const auto by_four = by(four);
            beside_one.add(by_four, by(one));
        }
        const auto four_ratio = beside_one.ratio(), ratio = beside_engine.ratio();
        const auto name = size < mib ? fmt::format("{} KiB", size / kib) : fmt::format("{} MiB", size / mib);
        results.row(
            fmt::format("gaudi_dma, put of {}", name), fmt::format("{:.1f} GB/s", beside_engine.first()),
            fmt::format("copy engine: {:.1f} GB/s; ratio {:.2f}, goal 0.95", beside_engine.second(), ratio),
            ratio >= 0.95);
        results.row(fmt::format("  four queues beside one, {}", name),
                    fmt::format("{:.2f} times", four_ratio), "goal 1, within 3 %", four_ratio >= 0.97);
    }
    const auto begin_200 = [&] {
        std::vector<finished> done(200);
        const auto before = own_nanoseconds();
        for (std::size_t i = 0; i < done.size(); ++i) {
            uct_iov_t iov{host.data() + (i << 20), 1 << 20, memh, 0, 1};
            uct_ep_put_zcopy(usual.ep, &iov, 1, memory.number() + (i << 20), UCT_INVALID_RKEY, &done[i].comp);
        }
        const auto each = (own_nanoseconds() - before) / static_cast<double>(done.size());
        sleep_until_idle(usual);
        return each;
    };
    (void)begin_200(); // the virtual device starts a thread for a queue that was idle
    std::vector<double> posts(21);
    std::generate(posts.begin(), posts.end(), begin_200);
    const auto post = bench::median(posts);
    results.row("gaudi_dma, posting a copy among 200", fmt::format("{:.0f} ns of CPU time", post),
                "goal 1000 ns", post <= 1000);
    std::vector<double> lone(201);
    for (auto& taken : lone) {
        finished done;
        uct_iov_t iov{host.data(), mib, memh, 0, 1};
        const auto before = own_nanoseconds();
        uct_ep_put_zcopy(usual.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp);
        taken = own_nanoseconds() - before;
        sleep_until_idle(usual);
    }
    results.row("gaudi_dma, posting a lone copy",
                fmt::format("{:.1f} us of CPU time", bench::median(lone) / 1000),
                fmt::format("goes to the driver, which wakes a thread: {:.1f} us",
                            bench::wakeup_nanoseconds() / 1000));
    const auto idle = bench::nanoseconds_per([&](std::size_t) { uct_iface_progress(usual.iface); });
    results.row("gaudi_dma, progress with nothing to do", fmt::format("{:.1f} ns", idle), "goal 20 ns",
                idle <= 20);
    // The same computation alone and while the device copies 1 GiB.
    const auto compute = [] {
        std::uint64_t state = 1;
        for (int i = 0; i < 20000000; ++i)
            state = state * 6364136223846793005 + 1442695040888963407;
        return state;
    };
    const allocated gibibyte(domain, 1 << 30);
    std::vector<std::byte> source(1 << 30, std::byte{1});
    uct_mem_h large = nullptr;
    check(uct_md_mem_reg_v2(domain.md, source.data(), source.size(), &params, &large), "uct_md_mem_reg_v2");
    finished first; // memory is pinned at its first use, which belongs to its registration
    uct_iov_t begins{source.data(), 1 << 20, large, 0, 1};
    uct_ep_put_zcopy(one.ep, &begins, 1, gibibyte.number(), UCT_INVALID_RKEY, &first.comp);
    while (first.times == 0)
        one.progress();
    volatile std::uint64_t sink = compute();
    auto begin = bench::clock::now();
    sink = compute();
    const std::chrono::duration<double, std::milli> alone = bench::clock::now() - begin;
    finished over;
    uct_iov_t iov{source.data(), source.size(), large, 0, 1};
    begin = bench::clock::now();
    uct_ep_put_zcopy(one.ep, &iov, 1, gibibyte.number(), UCT_INVALID_RKEY, &over.comp);
    const std::chrono::duration<double, std::micro> posted = bench::clock::now() - begin;
    begin = bench::clock::now();
    sink = compute();
    const std::chrono::duration<double, std::milli> beside = bench::clock::now() - begin;
    const bool overlapped = over.times == 0;
    while (over.times == 0)
        one.progress();
    (void)sink;
    results.row("computation while 1 GiB is copied",
                fmt::format("{:.1f} ms, posted in {:.0f} us", beside.count(), posted.count()),
                fmt::format("alone: {:.1f} ms; ratio {:.2f}, goal 1.1, posted in 1000 us{}", alone.count(),
                            beside / alone, overlapped ? "" : "; the copy was over first"),
                overlapped && beside <= 1.1 * alone && posted.count() <= 1000);
    uct_md_mem_dereg(domain.md, large);
    uct_md_mem_dereg(domain.md, memh);
}

// Progress of gaudi_ipc with nothing to do.
void idle_ipc(table& results) {
    using namespace testing_ucx;
    memory_domain domain("gaudi_ipc", "gaudi_ipc");
    worker own;
    auto* iface = open_interface(domain, own, "gaudi_ipc", "gaudi_ipc");
    const auto idle = bench::nanoseconds_per([&](std::size_t) { uct_iface_progress(iface); });
    uct_iface_close(iface);
    results.row("gaudi_ipc, progress with nothing to do", fmt::format("{:.1f} ns", idle), "goal 20 ns",
                idle <= 20);
}

// What a transport tells UCX of itself, beside what it does. UCX ranks the two by these.
void estimates(table& results, const char* transport, const char* device) {
    using namespace testing_ucx;
    ::setenv("UCX_GAUDI_COPY_NIC_MAX", "0", 1); // which takes over small copies
    memory_domain domain("gaudi_copy", "gaudi_copy");
    ::unsetenv("UCX_GAUDI_COPY_NIC_MAX");
    copier with(domain, transport, device);
    uct_iface_attr_t attr{};
    check(uct_iface_query(with.iface, &attr), "uct_iface_query");
    constexpr std::size_t size = 64 << 20;
    const allocated memory(domain, size);
    std::vector<std::byte> host(size, std::byte{1});
    uct_md_mem_reg_params_t params{};
    uct_mem_h memh = nullptr;
    check(uct_md_mem_reg_v2(domain.md, host.data(), size, &params, &memh), "uct_md_mem_reg_v2");
    const auto once = [&](bool put, std::size_t length) {
        finished done;
        uct_iov_t iov{host.data(), length, memh, 0, 1};
        const auto begun =
            put ? uct_ep_put_zcopy(with.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp)
                : uct_ep_get_zcopy(with.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp);
        while (begun == UCS_INPROGRESS && done.times == 0)
            with.progress();
    };
    double down = 0, up = 0;
    for (int round = 0; round < 7; ++round) {
        down = std::max(down, bench::gigabytes_per_second([&] { once(true, size); }, size));
        up = std::max(up, bench::gigabytes_per_second([&] { once(false, size); }, size));
    }
    const auto brief = bench::nanoseconds_per([&](std::size_t) { once(true, 4096); }) / 1000;
    std::vector<finished> done(50);
    const auto before = own_nanoseconds();
    for (std::size_t i = 0; i < done.size(); ++i) {
        uct_iov_t iov{host.data() + (i << 20), 1 << 20, memh, 0, 1};
        uct_ep_put_zcopy(with.ep, &iov, 1, memory.number() + (i << 20), UCT_INVALID_RKEY, &done[i].comp);
    }
    const auto post = (own_nanoseconds() - before) / static_cast<double>(done.size()) / 1000;
    sleep_until_idle(with);
    const auto claimed = attr.bandwidth.shared / 1e9, latency = attr.latency.c * 1e6;
    results.row(fmt::format("{}, 64 MiB down and up", transport),
                fmt::format("{:.1f}, {:.1f} GB/s", down, up), fmt::format("tells UCX {:.1f} GB/s", claimed),
                down > claimed / 2 && down < claimed * 2);
    results.row(fmt::format("{}, a copy of 4 KiB", transport), fmt::format("{:.1f} us", brief),
                fmt::format("tells UCX {:.1f} us", latency), brief > latency / 2 && brief < latency * 2);
    results.row(fmt::format("{}, posting a copy", transport), fmt::format("{:.1f} us of CPU time", post),
                fmt::format("tells UCX {:.1f} us", attr.overhead * 1e6),
                post > attr.overhead * 1e6 / 2 && post < attr.overhead * 1e6 * 2);
    uct_md_mem_dereg(domain.md, memh);
}

// How long UCX takes to load its transports and to ask them for devices, in a process of its own.
double microseconds_to_load(const std::string& environment) {
    std::vector<double> all;
    for (int round = 0; round < 21; ++round)
        if (std::FILE* output =
                ::popen(fmt::format("env {} /proc/{}/exe --load", environment, ::getpid()).c_str(), "r");
            output != nullptr) {
            double figure = 0;
            if (std::fscanf(output, "%lf", &figure) == 1)
                all.push_back(figure);
            ::pclose(output);
        }
    return all.empty() ? 0 : bench::median(all);
}

void load() {
    uct_component_h* components = nullptr;
    unsigned count = 0;
    const auto begin = bench::clock::now();
    uct_query_components(&components, &count);
    for (unsigned i = 0; i < count; ++i) { // as ucp_init does: each looks for its devices
        uct_component_attr_t attr{};
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
        uct_component_query(components[i], &attr);
    }
    fmt::print("{}\n", std::chrono::duration<double, std::micro>(bench::clock::now() - begin).count());
}

// What the plugin costs a process where there is no Gaudi.
void without_a_gaudi(table& results) {
    // As on a machine where hl-thunk is nowhere.
    std::string libraries = std::getenv("LD_LIBRARY_PATH");
    const auto end = libraries.find("/gaudi-direct/lab") + std::strlen("/gaudi-direct/lab");
    const auto nowhere =
        "-u GAUDI_DIRECT_HLTHUNK LD_LIBRARY_PATH=" + libraries.substr(libraries.find(':', end - 1) + 1);
    const auto bare = microseconds_to_load(nowhere + " UCX_PLUGIN_PATH="),
               ours = microseconds_to_load(nowhere);
    results.row("no Gaudi: UCX's start with the plugin", fmt::format("{:.0f} us", ours),
                fmt::format("without it: {:.0f} us; {:.0f} us more, goal 1000 us", bare, ours - bare),
                ours - bare <= 1000);
}

int main(int argc, char** argv) {
    if (argc > 1 && argv[1] == std::string_view("--load")) {
        load();
        return 0;
    }
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "reloc", 0);
    table results("UCX 1.23 with libuct_gaudi, two processes on one host, a Gaudi each");
    questions(results);
    without_a_gaudi(results);
    dma(results);
    idle_ipc(results);
    estimates(results, "gaudi_cpy", "gaudi_copy");
    estimates(results, "gaudi_dma", "gaudi_dma");
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
