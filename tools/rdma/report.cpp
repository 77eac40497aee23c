// SPDX-License-Identifier: BSD-3-Clause
#include "tools/rdma/report.hpp"

#include "tools/self.hpp"

#include <fmt/format.h>

namespace tools::rdma {
namespace {

std::string duration(double seconds) {
    if (seconds <= 0)
        return "-";
    if (seconds < 1e-3)
        return fmt::format("{:.1f} us", seconds * 1e6);
    if (seconds < 1)
        return fmt::format("{:.2f} ms", seconds * 1e3);
    return fmt::format("{:.2f} s", seconds);
}

// Short operations are reported by their rate: bytes per second say little about them.
std::string speed(const operation_result& of) {
    constexpr std::uint64_t short_operation = 4096;
    if (of.seconds <= 0 || of.count == 0)
        return "-";
    const auto rate = of.count / of.seconds;
    if (of.bytes / of.count > short_operation)
        return fmt::format("{:.2f} GB/s", static_cast<double>(of.bytes) / of.seconds / 1e9);
    return rate >= 1e6 ? fmt::format("{:.2f} M/s", rate / 1e6) : fmt::format("{:.1f} k/s", rate / 1e3);
}

} // namespace

json setup_costs::to_json() const {
    return {{"open", open},
            {"allocate", allocate},
            {"export", export_dmabuf},
            {"register", registration},
            {"connect", connect},
            {"first_byte", first_byte}};
}

void print_head(const char* program, const endpoint& home, const char* lab_reason) {
    fmt::print("{} {}, {}\n", program, gaudi::version(),
               home.is_virtual ? lab_reason != nullptr
                                     ? fmt::format("VIRTUAL devices, because {}", lab_reason)
                                     : "virtual devices"
                               : "real devices");
    fmt::print("  Gaudi    {}\n", home.device_text());
    fmt::print("  NIC      {}\n", home.nic_text());
}

void print_results(const std::vector<operation_result>& results, const setup_costs& costs) {
    fmt::print("\n{:<10} {:<7} {:<8} {:>6} {:>12} {:>12} {:>12}  {}\n", "operation", "by", "data", "count",
               "bytes", "speed", "fastest", "path");
    for (const auto& result : results) {
        if (!result.skipped.empty()) {
            fmt::print("{:<10} {:<7} skipped: {}\n", result.name, result.by, result.skipped);
            continue;
        }
        fmt::print("{:<10} {:<7} {:<8} {:>6} {:>12} {:>12} {:>12}  {}\n", result.name, result.by, "right",
                   result.count, human_bytes(result.bytes), speed(result), duration(result.best),
                   result.path);
    }
    fmt::print("\nset-up     open {}, allocate {}, export {}, register {}, connect {}, first transfer {}\n",
               duration(costs.open), duration(costs.allocate), duration(costs.export_dmabuf),
               duration(costs.registration), duration(costs.connect), duration(costs.first_byte));
}

json results_json(const std::vector<operation_result>& results) {
    auto list = json::array();
    for (const auto& result : results)
        list.push_back(result.to_json());
    return list;
}

} // namespace tools::rdma
