// SPDX-License-Identifier: BSD-3-Clause
// Measures a device's copies on this machine and prints the results as UCX settings.
#include "tools/commands.hpp"
#include "tools/self.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <time.h>

namespace tools {
namespace {

using seconds = std::chrono::duration<double>;

constexpr std::size_t large = 64 << 20, small = 4096, medium = 1 << 20;
constexpr int rounds = 7, small_copies = 201, rounds_of_copies = 11, copies_in_flight = 50;

struct directions {
    double to = 0, from = 0, within = 0; // bytes per second
};
struct figures {
    directions few, many;             // queues
    double small_copy = 0, begin = 0; // seconds
    std::optional<double> by_nic;     // seconds for 8 bytes, if a NIC can access the device's memory
};

double cpu_seconds() {
    timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

class measurement {
public:
    explicit measurement(gaudi::device& device)
        : engine_(gaudi::expect(device.copies())), first_(gaudi::expect(device.heap().allocate(large))),
          second_(gaudi::expect(device.heap().allocate(large))), host_(large, std::byte{1}),
          pinned_(gaudi::expect(engine_.pin(host_))) {}

    figures all() {
        figures measured;
        // Alternating, the best of each: other load on the machine affects both.
        for (int round = 0; round < rounds; ++round) {
            improve(measured.few, {.queues = 2});
            improve(measured.many, {.queues = 4});
        }
        measured.small_copy = time_of_small_copies();
        measured.begin = time_to_begin();
        measured.by_nic = time_through_nic();
        return measured;
    }

private:
    template <typename Begin>
    double seconds_of(Begin&& begin) {
        const auto start = std::chrono::steady_clock::now();
        gaudi::expect(gaudi::expect(begin()).wait());
        return seconds(std::chrono::steady_clock::now() - start).count();
    }
    template <typename Begin>
    void improve(double& best, Begin&& begin) {
        best = std::max(best, static_cast<double>(large) / seconds_of(begin));
    }
    void improve(directions& best, const gaudi::copy_hints& hints) {
        improve(best.to, [&] { return engine_.write(first_.address(), host_, hints); });
        improve(best.from, [&] { return engine_.read(host_, first_.address(), hints); });
        improve(best.within, [&] { return engine_.copy(second_.address(), first_.address(), large, hints); });
    }
    static double median(std::vector<double> all) {
        std::nth_element(all.begin(), all.begin() + static_cast<long>(all.size() / 2), all.end());
        return all[all.size() / 2];
    }
    double time_of_small_copies() {
        std::vector<double> times(small_copies);
        for (auto& time : times)
            time = seconds_of([&] { return engine_.write(first_.address(), std::span(host_).first(small)); });
        return median(times);
    }
    // One of several, as UCX posts them: a single one also includes waking the driver.
    double time_to_begin() {
        std::vector<double> times(rounds_of_copies);
        for (auto& time : times) {
            std::vector<gaudi::copy_ticket> tickets(copies_in_flight);
            const auto start = cpu_seconds();
            for (auto& ticket : tickets)
                ticket = gaudi::expect(engine_.write(first_.address(), std::span(host_).first(medium)));
            time = (cpu_seconds() - start) / copies_in_flight;
            for (auto& ticket : tickets)
                gaudi::expect(ticket.wait());
        }
        return median(times);
    }

    // In the same way as the plugin makes small copies.
    std::optional<double> time_through_nic() {
        constexpr std::size_t few = 8;
        gaudi::copier copies({.nic_max = few});
        const auto copy = [&] {
            return gaudi::expect(
                copies.copy(gaudi::place(first_.address(), few), std::span(host_).first(few)));
        };
        if (copy().path() != gaudi::copy_path::nic_loopback)
            return std::nullopt;
        std::vector<double> times(small_copies);
        for (auto& time : times) {
            const auto start = std::chrono::steady_clock::now();
            (void)copy(); // complete when it returns
            time = seconds(std::chrono::steady_clock::now() - start).count();
        }
        return median(times);
    }

    gaudi::copy_engine engine_;
    gaudi::device_buffer first_, second_;
    std::vector<std::byte> host_;
    gaudi::pinned_memory pinned_;
};

struct setting {
    std::string name, value;
};

// UCX's M is 2^20.
std::vector<setting> settings_of(const figures& measured) {
    const auto slower = [](const directions& of) { return std::min(of.to, of.from); };
    const bool four = slower(measured.many) > slower(measured.few);
    const auto speed = [](double bytes) { return fmt::format("{:.0f}MBs", bytes / (1 << 20)); };
    const auto time = [](double taken) { return fmt::format("{:.0f}ns", taken * 1e9); };
    std::vector<setting> all{{"UCX_GAUDI_COPY_BW_TO_DEVICE", speed(measured.few.to)},
                             {"UCX_GAUDI_COPY_BW_FROM_DEVICE", speed(measured.few.from)},
                             {"UCX_GAUDI_COPY_BW_WITHIN", speed(measured.few.within)},
                             {"UCX_GAUDI_COPY_LATENCY", time(measured.small_copy)},
                             {"UCX_GAUDI_COPY_OVERHEAD", time(measured.begin)},
                             {"UCX_GAUDI_DMA_QUEUES", four ? "4" : "2"},
                             {"UCX_GAUDI_DMA_BW", speed(slower(four ? measured.many : measured.few))},
                             {"UCX_GAUDI_DMA_LATENCY", time(measured.small_copy)},
                             {"UCX_GAUDI_DMA_OVERHEAD", time(measured.begin)}};
    if (measured.by_nic)
        all.push_back({"UCX_GAUDI_COPY_NIC_LATENCY", time(*measured.by_nic)});
    return all;
}

// Figures of the lab are not those of a real device.
bool of_the_lab() {
    const auto driver = gaudi::loaded_driver();
    return driver && is_virtual(driver->path);
}

bool known_to_ucx(const gaudi::device_info& device) {
    return device.generation != gaudi::generation::gaudi;
}

void print_table(const gaudi::device_info& device, const figures& measured) {
    fmt::print("gaudi-direct {}: {} hardware\n", gaudi::version(), of_the_lab() ? "virtual" : "real");
    fmt::print("gaudi {}, {} {}: copies of 64 MiB, the best of {}\n\n", device.index,
               device.generation ? gaudi::name_of(*device.generation) : "generation unknown", device.bus_id,
               rounds);
    fmt::print("{:<24}  {:>10}  {:>10}\n", "", "2 queues", "4 queues");
    const auto row = [](const char* what, double few, double many) {
        fmt::print("{:<24}  {:>5.1f} GB/s  {:>5.1f} GB/s\n", what, few / 1e9, many / 1e9);
    };
    row("to the device", measured.few.to, measured.many.to);
    row("from the device", measured.few.from, measured.many.from);
    row("within the device", measured.few.within, measured.many.within);
    fmt::print("{:<24}  {:>7.1f} us\n", "a copy of 4 KiB", measured.small_copy * 1e6);
    fmt::print("{:<24}  {:>7.1f} us of CPU time\n", "beginning a copy", measured.begin * 1e6);
    if (measured.by_nic)
        fmt::print("{:<24}  {:>7.2f} us\n", "8 bytes through a NIC", *measured.by_nic * 1e6);
    if (known_to_ucx(device))
        fmt::print("\nUCX reckons with this after: eval \"$(gaudi-direct measure --env)\"\n");
}

} // namespace

int measure(const measure_options& options) {
    const auto choice = gaudi::parse_device_choice(options.device);
    if (!choice) {
        fmt::print(
            stderr,
            "gaudi-direct: --device {}: give an index (0), a PCI bus id (0000:19:00.0) or module:<id>\n",
            options.device);
        return usage;
    }
    const auto device = gaudi::open_device(*choice);
    if (!device) {
        fmt::print(stderr, "gaudi-direct: {}\n", device.error().message());
        return failed;
    }
    const bool for_ucx = known_to_ucx((*device)->info());
    if (options.as_environment && !for_ucx) {
        fmt::print(
            stderr,
            "gaudi-direct: --env: gaudi {} is of the first generation, and UCX knows Gaudi2 and later; "
            "measure shows its figures without it\n",
            (*device)->info().index);
        return failed;
    }
    const auto measured = measurement(**device).all();
    const auto settings = for_ucx ? settings_of(measured) : std::vector<setting>{};
    if (options.as_json) {
        nlohmann::ordered_json report = {{"kind", of_the_lab() ? "virtual" : "real"},
                                         {"device", (*device)->info().bus_id}};
        for (const auto& [name, value] : settings)
            report["settings"][name] = value;
        fmt::print("{}\n", report.dump(2));
    } else if (options.as_environment)
        for (const auto& [name, value] : settings)
            fmt::print("export {}={}\n", name, value);
    else
        print_table((*device)->info(), measured);
    return ok;
}

} // namespace tools
