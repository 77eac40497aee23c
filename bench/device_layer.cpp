// SPDX-License-Identifier: BSD-3-Clause
// The device layer compared with its limits, each measured in the same run. Ratios count, not absolute
// figures.
#include <gaudi/gaudi.hpp>

#include "bench/table.hpp"
#include "src/memory/editable_address_map.hpp"

#include <algorithm>
#include <benchmark/benchmark.h>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/statvfs.h>
#include <vector>

namespace {

using namespace bench;
using namespace gaudi;

constexpr std::uint64_t mib = 1ULL << 20;

void lookup(table& out) {
    constexpr std::uint64_t base = 0x1001500000000000, step = 65536;
    const auto measure = [&](std::size_t allocations, std::size_t asked) {
        editable_address_map map;
        (void)map.add_window(device_address(base), 128ULL << 30, 0);
        for (std::size_t i = 0; i < allocations; ++i)
            (void)map.insert(device_address(base + i * step), step, i);
        std::mt19937_64 random(1);
        std::vector<device_address> addresses;
        for (std::size_t i = 0; i < 4096; ++i)
            addresses.push_back(
                device_address(base + random() % asked * (allocations / asked) * step + random() % step));
        return nanoseconds_per(
            [&](std::size_t i) { benchmark::DoNotOptimize(map.find(addresses[i % addresses.size()])); });
    };
    const auto few = measure(10, 10), many = measure(100000, 10), scattered = measure(100000, 100000);
    out.row("address lookup, 10 allocations", fmt::format("{:.1f} ns", few), "<= 20 ns", few <= 20);
    out.row("address lookup, 100 000 allocations, same 10 asked",
            fmt::format("{:.1f} ns ({:.2f} x)", many, many / few), "<= 1.2 x",
            many <= 1.2 * few && many <= 20);
    out.row("address lookup, 100 000 allocations, all asked at random",
            fmt::format("{:.1f} ns ({:.2f} x)", scattered, scattered / few),
            "cache misses of the machine included");
}

void heap(table& out, device& device) {
    {
        auto warm = device.heap().allocate(65536);
        (void)warm->dmabuf();
        const auto cost = nanoseconds_per([&](std::size_t) {
            auto buffer = device.heap().allocate(65536);
            benchmark::DoNotOptimize(buffer->dmabuf());
        });
        out.row("allocate + export information + free, 64 KiB", fmt::format("{:.0f} ns", cost), "<= 1000 ns",
                cost <= 1000);
    }
    void* kept = nullptr;
    const auto malloc_cost = nanoseconds_per([&](std::size_t) {
        kept = std::malloc(65536);
        benchmark::DoNotOptimize(kept);
        std::free(kept);
    });
    out.row("  malloc + free of host memory, same run", fmt::format("{:.0f} ns", malloc_cost), "");
}

// Several copies of `size` in flight at a time, as in a pipeline, each with its own memory; the limit is
// memcpy of the same pieces of the same memory.
void bandwidth(table& out, device& device, copy_engine& engine) {
    for (const auto size : {mib, 16 * mib, 256 * mib}) {
        const auto count = std::max<std::uint64_t>(2, std::min<std::uint64_t>(64, 512 * mib / size));
        auto buffer = *device.heap().allocate(size * count);
        std::vector<std::byte> host(size * count, std::byte{1}), other(size * count, std::byte{2});
        auto pinned = *engine.pin(host);
        const auto copy_all = [&](bool down) {
            std::vector<copy_ticket> tickets;
            for (std::uint64_t i = 0; i < count; ++i) {
                const auto piece = std::span(host).subspan(i * size, size);
                tickets.push_back(down ? *engine.write(buffer.address() + i * size, piece)
                                       : *engine.read(piece, buffer.address() + i * size));
            }
            for (auto& ticket : tickets)
                (void)ticket.wait();
        };
        const auto memcpy_all = [&] {
            for (std::uint64_t i = 0; i < count; ++i) {
                std::memcpy(other.data() + i * size, host.data() + i * size, size);
                benchmark::ClobberMemory();
            }
        };
        // Alternating, best of several: the machine is shared and its speed varies.
        double limit = 0, down = 0, up = 0;
        for (int round = 0; round < 7; ++round) {
            limit = std::max(limit, gigabytes_per_second(memcpy_all, size * count));
            down = std::max(down, gigabytes_per_second([&] { copy_all(true); }, size * count));
            up = std::max(up, gigabytes_per_second([&] { copy_all(false); }, size * count));
        }
        out.row(fmt::format("host -> device, {} x {} MiB", count, size / mib),
                fmt::format("{:.1f} GB/s ({:.2f} of memcpy)", down, down / limit),
                fmt::format(">= 0.9 of memcpy ({:.1f} GB/s)", limit), down >= 0.9 * limit);
        out.row(fmt::format("device -> host, {} x {} MiB", count, size / mib),
                fmt::format("{:.1f} GB/s ({:.2f} of memcpy)", up, up / limit),
                fmt::format(">= 0.9 of memcpy ({:.1f} GB/s)", limit), up >= 0.9 * limit);
    }
}

void small_copies(table& out, device& device, copy_engine& engine) {
    auto buffer = *device.heap().allocate(64);
    std::array<std::byte, 8> word{}, back{};
    const auto round_trip = nanoseconds_per([&](std::size_t) {
        (void)engine.write(buffer.address(), word)->wait();
        (void)engine.read(back, buffer.address())->wait();
    });
    out.row("8 B round trip, host -> device -> host", fmt::format("{:.1f} us", round_trip / 1000),
            fmt::format("{:.1f} us: four wake-ups of a thread", 4 * wakeup_nanoseconds() / 1000));

    constexpr std::size_t count = 10000, size = 4096;
    auto target = *device.heap().allocate(count * size);
    std::vector<std::byte> host(count * size), other(count * size);
    auto pinned = *engine.pin(host);
    const auto before = engine.statistics().submissions;
    double batched = 0, limit = 0;
    unsigned rounds = 0;
    for (; rounds < 5; ++rounds) {
        batched = std::max(batched, gigabytes_per_second(
                                        [&] {
                                            std::vector<copy_ticket> tickets;
                                            tickets.reserve(count);
                                            for (std::size_t i = 0; i < count; ++i)
                                                tickets.push_back(
                                                    *engine.write(target.address() + i * size,
                                                                  std::span(host).subspan(i * size, size)));
                                            for (auto& ticket : tickets)
                                                (void)ticket.wait();
                                        },
                                        count * size));
        limit =
            std::max(limit, gigabytes_per_second(
                                [&] {
                                    for (std::size_t i = 0; i < count; ++i) {
                                        std::memcpy(other.data() + i * size, host.data() + i * size, size);
                                        benchmark::ClobberMemory();
                                    }
                                },
                                count * size));
    }
    out.row("10 000 x 4 KiB, batched",
            fmt::format("{:.1f} GB/s in {} submissions", batched,
                        (engine.statistics().submissions - before) / rounds),
            fmt::format("memcpy of each: {:.1f} GB/s", limit));
}

struct footprint {
    std::size_t descriptors = 0, mappings = 0;
    std::uint64_t shared_bytes = 0;
};

footprint measure_footprint() {
    footprint seen;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
        ++seen.descriptors;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        ++seen.mappings;
    struct statvfs system {};
    if (::statvfs("/dev/shm", &system) == 0)
        seen.shared_bytes = (system.f_blocks - system.f_bfree) * system.f_frsize;
    return seen;
}

// Open, allocate, map, export, copy, close: what remains allocated must not grow with the number of cycles.
void cycles(table& out) {
    constexpr unsigned count = 10000;
    const auto cycle = [] {
        const auto device = expect(open_device());
        auto buffer = expect(device->heap().allocate(65536));
        (void)expect(buffer.dmabuf());
        auto engine = expect(device->copies());
        std::array<std::byte, 4096> data{};
        expect(expect(engine.write(buffer.address(), data)).wait());
    };
    for (int i = 0; i < 20; ++i) // allocate what is kept for the life of the process
        cycle();
    const auto before = measure_footprint();
    const auto begin = clock::now();
    for (unsigned i = 0; i < count; ++i)
        cycle();
    const std::chrono::duration<double, std::milli> taken = clock::now() - begin;
    const auto after = measure_footprint();
    out.row(fmt::format("{} cycles of open, allocate, export, copy, close", count),
            fmt::format("{:+} descriptors, {:+} mappings, {:+} bytes ({:.1f} ms each)",
                        static_cast<long>(after.descriptors - before.descriptors),
                        static_cast<long>(after.mappings - before.mappings),
                        static_cast<long>(after.shared_bytes - before.shared_bytes), taken.count() / count),
            "nothing more at the end",
            after.descriptors <= before.descriptors && after.mappings <= before.mappings &&
                after.shared_bytes <= before.shared_bytes);
}

} // namespace

int main() {
    table out("gaudi-direct: the device layer, in the lab");
    lookup(out);
    auto opened = open_device();
    if (!opened) {
        fmt::print(stderr, "{}\n", opened.error().message());
        return 1;
    }
    auto& device = **opened;
    heap(out, device);
    {
        auto engine = *device.copies();
        bandwidth(out, device, engine);
        small_copies(out, device, engine);
    }
    opened = tl::unexpected(error(errc::no_device, "closed"));
    cycles(out);
    out.print();
    return 0;
}
