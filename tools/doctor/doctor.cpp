// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/doctor.hpp"
#include "tools/commands.hpp"
#include "tools/doctor/checks.hpp"
#include "tools/doctor/peer.hpp"
#include "tools/self.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace tools {
namespace {

using json = nlohmann::ordered_json;
using namespace doctor;

struct outcome {
    report findings;
    std::size_t moved = 0; // devices whose memory went over a NIC without a copy
    std::vector<gaudi::device_info> devices;
    std::vector<gaudi::nic_info> nics;

    // The NICs, those nearest to a device first.
    [[nodiscard]] std::vector<gaudi::nic_info> near(const gaudi::device_info& info) const {
        auto sorted = nics;
        gaudi::sort_nics(sorted, info);
        return sorted;
    }
};

void print(const finding& entry) {
    constexpr const char* marks[] = {"  ok   ", "  ?    ", "  warn ", "  FAIL "};
    constexpr const char* colours[] = {"\033[32m", "\033[36m", "\033[33m", "\033[31m"};
    const auto at = static_cast<int>(entry.result);
    const bool colour = ::isatty(STDOUT_FILENO) != 0;
    fmt::print("{}{}{}{:<24} {}{}{}\n", colour ? colours[at] : "", marks[at], colour ? "\033[0m" : "",
               entry.check, entry.subject, entry.subject.empty() ? "" : ": ", entry.observed);
    if (!entry.remedy.empty())
        fmt::print("{:31} -> {}\n", "", entry.remedy);
}

// Those that no process holds, with engines to compare bytes by.
std::vector<gaudi::device_info> free_devices(std::vector<gaudi::device_info> devices) {
    std::erase_if(devices, [](const auto& info) { return !gaudi::holders_of(info).empty(); });
    return devices;
}

// In the order in which they depend on each other. The probes come last: they need all of it.
outcome run_checks(bool probes, const std::string& peer = {}) {
    outcome result;
    auto& findings = result.findings;
    const auto driver = gaudi::find_kernel_driver();
    check_kernel(findings, driver);
    auto devices = gaudi::list_devices();
    check_driver(findings, driver, devices && !devices->empty());
    check_libraries(findings);
    if (!devices)
        findings.broken("device.list", "", devices.error().observed(), std::string(devices.error().remedy()));
    else if (devices->empty())
        findings.broken("device.list", "", "there is no Gaudi that this process may use",
                        "check the driver, the container's devices and HABANA_VISIBLE_DEVICES");
    else
        result.devices = std::move(*devices);
    for (const auto& info : result.devices)
        check_device(findings, info, driver);
    if (auto nics = gaudi::list_nics(); !nics)
        findings.broken("nic.list", "", nics.error().observed(), std::string(nics.error().remedy()));
    else if (nics->empty())
        findings.broken("nic.list", "", "there is no RDMA NIC",
                        "load its driver, and pass /dev/infiniband into the container");
    else
        result.nics = std::move(*nics);
    for (const auto& nic : result.nics)
        check_nic(findings, nic);
    if (!result.nics.empty())
        for (const auto& info : result.devices)
            check_distance(findings, info, result.near(info));
    check_limits(findings);
    check_environment(findings, std::ranges::any_of(result.nics, &gaudi::nic_info::of_gaudi));
    if (probes)
        for (const auto& info : result.devices)
            if (probe(findings, info, result.near(info)))
                ++result.moved;
    if (!peer.empty())
        check_peer(findings, peer, free_devices(result.devices));
    return result;
}

// The last line: the answer to the question that doctor is asked.
std::string conclusion(const outcome& result, bool probes) {
    // The settings of other programs decide nothing here.
    const auto* const why = result.findings.first_broken("ucx.");
    const auto reason =
        why == nullptr ? ""
                       : fmt::format("{}{}{}", why->subject, why->subject.empty() ? "" : ": ", why->observed);
    if (result.moved != 0 && result.moved == result.devices.size())
        return "yes: bytes went from HBM over a NIC into HBM, and every one was right";
    if (result.moved != 0)
        return fmt::format("yes for {} of {} Gaudis{}{}", result.moved, result.devices.size(),
                           why == nullptr ? ": the others were not free" : "; not for all, because ", reason);
    if (why != nullptr)
        return "no, because " + reason;
    return probes ? "not known: no device was free to try it" : "not known: nothing was tried (--no-probe)";
}

std::string answer_about_peer(const report& findings, const std::string& peer) {
    const auto& all = findings.findings();
    const auto of_peer = [](const finding& each) { return each.check.starts_with("peer."); };
    if (const auto wrong = std::ranges::find_if(
            all, [&](const finding& each) { return of_peer(each) && each.result == verdict::broken; });
        wrong != all.end())
        return fmt::format("; not with {}, because {}", peer, wrong->observed);
    const bool moved = std::ranges::any_of(all, [](const finding& each) {
        return each.check == "peer.gaudi_transfer" && each.result == verdict::good;
    });
    return fmt::format("; with {}: {}", peer, moved ? "yes" : "not tried, host memory only");
}

// The environment for UCX and what runs on it, as lines for a shell.
// False: some of it is missing.
bool print_environment(const outcome& result) {
    std::string names;
    for (const auto& nic : result.nics)
        if (!nic.of_gaudi && nic.active)
            names += fmt::format("{}{}:{}", names.empty() ? "" : ",", nic.name, nic.port);
    const auto plugin = lab_folder().parent_path().parent_path() / "ucx";
    const bool installed = std::filesystem::exists(plugin / "libuct_gaudi.so");
    if (installed)
        fmt::print("export UCX_PLUGIN_PATH={}\n", plugin.string());
    else
        fmt::print("# there is no libuct_gaudi.so in {}\n", plugin.string());
    if (!names.empty())
        fmt::print("export UCX_NET_DEVICES={}\n", names);
    else
        fmt::print("# no NIC has an active port\n");
    for (const auto& info : result.devices) {
        const auto near = result.near(info);
        if (const auto best = std::ranges::find_if(near, &gaudi::nic_info::moves_device_memory);
            best != near.end())
            fmt::print("# the worker of module {} ({}): UCX_NET_DEVICES={}:{}\n", info.module_id, info.bus_id,
                       best->name, best->port);
    }
    return installed && !names.empty();
}

// The kind of hardware: "none", "virtual" or "real". In the lab, the lab's machine is examined.
const char* enter_machine() {
    const auto driver = gaudi::loaded_driver();
    if (driver && is_virtual(driver->path))
        believe_in_the_lab();
    return !driver ? "none" : is_virtual(driver->path) ? "virtual" : "real";
}

json as_json(const outcome& result, std::string_view kind, const std::string& answer) {
    json all = {{"version", gaudi::version()}, {"kind", kind}, {"findings", json::array()}};
    for (const auto& entry : result.findings.findings())
        all["findings"].push_back({{"check", entry.check},
                                   {"subject", entry.subject},
                                   {"verdict", name_of(entry.result)},
                                   {"observed", entry.observed},
                                   {"remedy", entry.remedy}});
    all["zero_copy"] = {{"possible", result.moved != 0}, {"answer", answer}};
    all["worst"] = name_of(result.findings.worst());
    return all;
}

} // namespace

nlohmann::ordered_json doctor::examine_without_probes() {
    const char* const kind = enter_machine();
    const auto result = run_checks(false);
    return as_json(result, kind, conclusion(result, false));
}

int run_doctor(const doctor_options& options) {
    const std::string_view kind = enter_machine();
    const bool in_lab = kind == "virtual";
    if (options.serves) {
        const auto devices = gaudi::list_devices();
        return serve_peer(options.port, devices ? free_devices(*devices) : std::vector<gaudi::device_info>{})
                   ? ok
                   : failed;
    }
    const auto result = run_checks(!options.no_probe && !options.as_environment, options.peer);
    auto answer = conclusion(result, !options.no_probe);
    if (!options.peer.empty())
        answer += answer_about_peer(result.findings, options.peer);
    const auto worst = result.findings.worst();
    const int status = worst == verdict::broken ? failed : worst == verdict::warning ? warned : ok;
    if (options.as_environment)
        return print_environment(result) ? ok : failed;
    if (options.as_json) {
        fmt::print("{}\n", as_json(result, kind, answer).dump(2));
        return status;
    }
    const bool none = kind == "none";
    fmt::print("gaudi-direct {}: {} hardware\n", gaudi::version(), none ? "no" : kind);
    if (in_lab)
        fmt::print("this is the lab: everything below is about virtual devices, nothing real was touched\n");
    for (const auto& entry : result.findings.findings())
        if (options.verbose || entry.result != verdict::good)
            print(entry);
    const auto good = std::ranges::count(result.findings.findings(), verdict::good, &finding::result);
    fmt::print("{} of {} checks are good{}\n", good, result.findings.findings().size(),
               options.verbose || good == 0 ? "" : " (-v shows them)");
    fmt::print("zero-copy: {}\n", answer);
    if (none && std::filesystem::exists(lab_hlthunk()))
        fmt::print("without hardware, try: gaudi-direct lab run -- gaudi-direct doctor\n");
    return status;
}

} // namespace tools
