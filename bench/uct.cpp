// SPDX-License-Identifier: BSD-3-Clause
// The cost of UCX's calls to the memory domain, in nanoseconds; the transports compared with the engine below
// them; and what they report to UCX about themselves compared with what they reach.
#include "bench/uct.hpp"

#include "tests/ucx/in_process/uct_fixture.hpp"

#include <gaudi/device.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <poll.h>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

extern "C" ucs_status_t uct_iface_estimate_perf(uct_iface_h iface, uct_perf_attr_t* attr);

namespace {

using bench::table;

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

    uct_md_mem_attr_v2_t with_dmabuf{};
    with_dmabuf.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD | UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET;
    const auto exported = bench::nanoseconds_per([&](std::size_t i) {
        uct_md_mem_query_v2(domain.md, at(i), 64, &with_dmabuf);
        ::close(with_dmabuf.dmabuf_fd);
    });
    const auto dup = bench::nanoseconds_per([&](std::size_t) { ::close(::dup(0)); });
    results.row("mem_query with a DMA-BUF of the caller's own", fmt::format("{:.0f} ns", exported),
                fmt::format("dup and close: {:.0f} ns", dup));

    ucs_memory_type_t type = UCS_MEMORY_TYPE_LAST;
    const auto gaudi = bench::nanoseconds_per(
        [&](std::size_t i) { uct_md_detect_memory_type(domain.md, at(i), 64, &type); });
    results.row("detection of Gaudi memory", fmt::format("{:.0f} ns", gaudi), "goal 50 ns", gaudi <= 50);
    const auto host =
        bench::nanoseconds_per([&](std::size_t) { uct_md_detect_memory_type(domain.md, &type, 4, &type); });
    results.row("detection of host memory", fmt::format("{:.0f} ns", host), "goal 50 ns", host <= 50);

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
    {
        ::setenv("UCX_GAUDI_COPY_NIC_MAX", "0", 1);
        memory_domain by_engine("gaudi_copy", "gaudi_copy");
        ::unsetenv("UCX_GAUDI_COPY_NIC_MAX");
        copier without(by_engine);
        const auto slow = bench::nanoseconds_per(
            [&](std::size_t) { uct_ep_put_short(without.ep, &word, 8, memory.number(), UCT_INVALID_RKEY); });
        results.row("put_short of 8 B without a NIC", fmt::format("{:.1f} us", slow / 1000),
                    fmt::format("copy engine: {:.1f} us; ratio {:.2f}, goal 2", own / 1000, slow / own),
                    slow / own <= 2);
    }
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

// Sleeps until all copies have completed: spinning would take a processor from the virtual device.
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

// gaudi_dma compared with the engine below it.
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
                if (tickets.size() == 256) { // as many as gaudi_dma keeps in flight
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
        bench::side_by_side with_engine, with_one;
        for (int round = 0; round < 21; ++round) {
            const auto by_engine = bench::gigabytes_per_second(by_engine_alone, whole);
            with_engine.add(by(usual), by_engine);
            const auto by_four = by(four);
            with_one.add(by_four, by(one));
        }
        const auto four_ratio = with_one.ratio(), ratio = with_engine.ratio();
        const auto name = size < mib ? fmt::format("{} KiB", size / kib) : fmt::format("{} MiB", size / mib);
        results.row(
            fmt::format("gaudi_dma, put of {}", name), fmt::format("{:.1f} GB/s", with_engine.first()),
            fmt::format("copy engine: {:.1f} GB/s; ratio {:.2f}, goal 0.95", with_engine.second(), ratio),
            ratio >= 0.95);
        results.row(fmt::format("  four queues and one, {}", name), fmt::format("{:.2f} times", four_ratio),
                    "goal 1, within 3 %", four_ratio >= 0.97);
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
    std::vector<double> single(201);
    for (auto& taken : single) {
        finished done;
        uct_iov_t iov{host.data(), mib, memh, 0, 1};
        const auto before = own_nanoseconds();
        uct_ep_put_zcopy(usual.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp);
        taken = own_nanoseconds() - before;
        sleep_until_idle(usual);
    }
    results.row("gaudi_dma, posting a single copy",
                fmt::format("{:.1f} us of CPU time", bench::median(single) / 1000),
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
    finished first; // memory is pinned at its first use; this counts as registration
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
    const std::chrono::duration<double, std::milli> together = bench::clock::now() - begin;
    const bool overlapped = over.times == 0;
    while (over.times == 0)
        one.progress();
    (void)sink;
    results.row("computation while 1 GiB is copied",
                fmt::format("{:.1f} ms, posted in {:.0f} us", together.count(), posted.count()),
                fmt::format("alone: {:.1f} ms; ratio {:.2f}, goal 1.1, posted in 1000 us{}", alone.count(),
                            together / alone, overlapped ? "" : "; the copy was over first"),
                overlapped && together <= 1.1 * alone && posted.count() <= 1000);
    uct_md_mem_dereg(domain.md, large);
    uct_md_mem_dereg(domain.md, memh);
}

void idle(table& results, const char* transport, const char* device, const char* domain_name) {
    using namespace testing_ucx;
    memory_domain domain(domain_name, domain_name);
    worker own;
    auto* iface = open_interface(domain, own, transport, device);
    const auto taken = bench::nanoseconds_per([&](std::size_t) { uct_iface_progress(iface); });
    uct_iface_close(iface);
    results.row(fmt::format("{}, progress with nothing to do", transport), fmt::format("{:.1f} ns", taken),
                "goal 20 ns", taken <= 20);
}

// What a transport reports to UCX about itself, compared with what it reaches. UCX ranks transports by these
// figures.
void estimates(table& results, const char* transport, const char* device) {
    using namespace testing_ucx;
    ::setenv("UCX_GAUDI_COPY_NIC_MAX", "0", 1); // the NIC path would take over small copies
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
    const auto begin = [&](bool put, std::size_t length, finished& done) {
        uct_iov_t iov{host.data(), length, memh, 0, 1};
        return put ? uct_ep_put_zcopy(with.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp)
                   : uct_ep_get_zcopy(with.ep, &iov, 1, memory.number(), UCT_INVALID_RKEY, &done.comp);
    };
    const auto whole = [&](bool put) {
        return bench::gigabytes_per_second(
            [&] {
                finished done;
                begin(put, size, done);
                sleep_until_idle(with);
            },
            size);
    };
    double down = 0, up = 0;
    for (int round = 0; round < 7; ++round) {
        down = std::max(down, whole(true));
        up = std::max(up, whole(false));
    }
    const auto brief = bench::nanoseconds_per([&](std::size_t) {
                           finished done;
                           const auto begun = begin(true, 4096, done);
                           while (begun == UCS_INPROGRESS && done.times == 0)
                               with.progress();
                       }) /
                       1000;
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
                fmt::format("{:.1f}, {:.1f} GB/s", down, up), fmt::format("estimate {:.1f} GB/s", claimed),
                std::min(down, up) > claimed / 2 && std::max(down, up) < claimed * 2);
    results.row(fmt::format("{}, a copy of 4 KiB", transport), fmt::format("{:.1f} us", brief),
                fmt::format("estimate {:.1f} us", latency), brief > latency / 2 && brief < latency * 2);
    results.row(fmt::format("{}, posting a copy", transport), fmt::format("{:.1f} us of CPU time", post),
                fmt::format("estimate {:.1f} us", attr.overhead * 1e6),
                post > attr.overhead * 1e6 / 2 && post < attr.overhead * 1e6 * 2);
    uct_md_mem_dereg(domain.md, memh);
}

// What gaudi_cpy reports for small copies and for copies within the device.
void estimates_of_small_and_inner(table& results) {
    using namespace testing_ucx;
    memory_domain domain("gaudi_copy", "gaudi_copy");
    copier with(domain);
    const auto estimate = [&](uct_ep_operation_t operation, ucs_memory_type_t local) {
        uct_perf_attr_t attr{};
        attr.field_mask = UCT_PERF_ATTR_FIELD_OPERATION | UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE |
                          UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE | UCT_PERF_ATTR_FIELD_BANDWIDTH |
                          UCT_PERF_ATTR_FIELD_LATENCY;
        attr.operation = operation;
        attr.local_memory_type = local;
        attr.remote_memory_type = UCS_MEMORY_TYPE_GAUDI;
        check(uct_iface_estimate_perf(with.iface, &attr), "uct_iface_estimate_perf");
        return attr;
    };
    constexpr std::size_t size = 64 << 20;
    const allocated one(domain, size), two(domain, size);
    double within = 0;
    for (int round = 0; round < 7; ++round)
        within =
            std::max(within, bench::gigabytes_per_second(
                                 [&] {
                                     finished done;
                                     uct_iov_t iov{one.memory.address, size, nullptr, 0, 1};
                                     if (uct_ep_put_zcopy(with.ep, &iov, 1, two.number(), UCT_INVALID_RKEY,
                                                          &done.comp) == UCS_INPROGRESS)
                                         while (done.times == 0)
                                             with.progress();
                                 },
                                 size));
    const auto claimed = estimate(UCT_EP_OP_PUT_ZCOPY, UCS_MEMORY_TYPE_GAUDI).bandwidth.shared / 1e9;
    results.row("gaudi_cpy, 64 MiB within a device", fmt::format("{:.1f} GB/s", within),
                fmt::format("estimate {:.1f} GB/s", claimed), within > claimed / 2 && within < claimed * 2);
    std::uint64_t word = 1;
    const auto brief = bench::nanoseconds_per([&](std::size_t) {
                           uct_ep_put_short(with.ep, &word, 8, one.number(), UCT_INVALID_RKEY);
                       }) /
                       1000;
    const auto latency = estimate(UCT_EP_OP_PUT_SHORT, UCS_MEMORY_TYPE_HOST).latency.c * 1e6;
    results.row("gaudi_cpy, 8 B through a NIC in loopback", fmt::format("{:.2f} us", brief),
                fmt::format("estimate {:.2f} us, what real NICs take", latency));
}

} // namespace

void bench::uct_rows(table& results) {
    questions(results);
    bench::without_a_gaudi(results);
    dma(results);
    idle(results, "gaudi_cpy", "gaudi_copy", "gaudi_copy");
    idle(results, "gaudi_ipc", "gaudi_ipc", "gaudi_ipc");
    estimates(results, "gaudi_cpy", "gaudi_copy");
    estimates(results, "gaudi_dma", "gaudi_dma");
    estimates_of_small_and_inner(results);
}
