// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/doctor.hpp"
#include "tools/commands.hpp"
#include "tools/doctor/checks.hpp"
#include "tools/doctor/child_output.hpp"
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

// What the checks work on.
struct hardware {
    std::vector<gaudi::device_info> devices;
    std::vector<gaudi::nic_info> nics;
    std::size_t moved = 0; // devices whose memory went over a NIC without a copy

    // The NICs, those nearest to a device first.
    [[nodiscard]] std::vector<gaudi::nic_info> near(const gaudi::device_info& info) const {
        auto sorted = nics;
        gaudi::sort_nics(sorted, info);
        return sorted;
    }
};

// What a run found.
struct outcome {
    report findings;
    std::string kind = "none"; // of hardware: "none", "virtual" or "real"
    std::size_t devices = 0, moved = 0;
    std::string environment; // lines for a shell
    bool whole_environment = false;
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
    std::fflush(stdout);
}

void print_kind(const std::string& kind) {
    fmt::print("gaudi-direct {}: {} hardware\n", gaudi::version(), kind == "none" ? "no" : kind);
    if (kind == "virtual")
        fmt::print("this is the lab: everything below is about virtual devices, nothing real was touched\n");
    std::fflush(stdout);
}

// Those that no process holds, with engines to compare bytes by.
std::vector<gaudi::device_info> free_devices(std::vector<gaudi::device_info> devices) {
    std::erase_if(devices, [](const auto& info) { return !gaudi::holders_of(info).empty(); });
    return devices;
}

// In the order in which they depend on each other. The probes come last: they need all of it.
hardware run_checks(report& findings, const doctor_options& options) {
    hardware result;
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
    if (!options.no_probe && !options.as_environment)
        for (const auto& info : result.devices)
            if (probe(findings, info, result.near(info)))
                ++result.moved;
    if (!options.peer.empty())
        check_peer(findings, options.peer, free_devices(result.devices));
    return result;
}

// The last line: the answer to the question that doctor is asked.
std::string conclusion(const outcome& result, bool probes) {
    const auto* const why = result.findings.first_broken_here();
    const auto reason =
        why == nullptr ? ""
                       : fmt::format("{}{}{}", why->subject, why->subject.empty() ? "" : ": ", why->observed);
    if (result.moved != 0 && result.moved == result.devices)
        return "yes: bytes went from HBM over a NIC into HBM, and every one was right";
    if (result.moved != 0)
        return fmt::format("yes for {} of {} Gaudis{}{}", result.moved, result.devices,
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

// The environment for UCX and what runs on it, as lines for a shell. `whole`: nothing of it is missing.
std::string environment_for(const hardware& found, bool& whole) {
    std::string names, lines;
    for (const auto& nic : found.nics)
        if (!nic.of_gaudi && nic.active)
            names += fmt::format("{}{}:{}", names.empty() ? "" : ",", nic.name, nic.port);
    const auto plugin = lab_folder().parent_path().parent_path() / "ucx";
    const bool installed = std::filesystem::exists(plugin / "libuct_gaudi.so");
    lines += installed ? fmt::format("export UCX_PLUGIN_PATH={}\n", plugin.string())
                       : fmt::format("# there is no libuct_gaudi.so in {}\n", plugin.string());
    lines += !names.empty() ? fmt::format("export UCX_NET_DEVICES={}\n", names)
                            : std::string("# no NIC has an active port\n");
    std::string mapping; // as vLLM takes it: it sets the variable in the worker of each device
    for (const auto& info : found.devices) {
        const auto near = found.near(info);
        const auto best = std::ranges::find_if(near, &gaudi::nic_info::moves_device_memory);
        if (best == near.end())
            continue;
        lines += fmt::format("# the worker of module {} ({}): UCX_NET_DEVICES={}:{}\n", info.module_id,
                             info.bus_id, best->name, best->port);
        if (!best->bus_id.empty())
            mapping += fmt::format("{}{}={}", mapping.empty() ? "" : ",", info.bus_id, best->bus_id);
    }
    if (!mapping.empty())
        lines += fmt::format("# vLLM gives each worker its NIC by these two\n"
                             "export VLLM_GPU_NIC_PCIE_MAPPING={}\n"
                             "export VLLM_NIC_SELECTION_VARS=UCX_NET_DEVICES:1\n",
                             mapping);
    whole = installed && !names.empty();
    return lines;
}

json as_json(const finding& entry) {
    return {{"check", entry.check},
            {"subject", entry.subject},
            {"verdict", name_of(entry.result)},
            {"observed", entry.observed},
            {"remedy", entry.remedy}};
}

json as_json(const outcome& result, const std::string& answer) {
    json all = {{"version", gaudi::version()}, {"kind", result.kind}, {"findings", json::array()}};
    for (const auto& entry : result.findings.findings())
        all["findings"].push_back(as_json(entry));
    all["zero_copy"] = {{"possible", result.moved != 0}, {"answer", answer}};
    all["worst"] = name_of(result.findings.worst());
    return all;
}

// In the lab, the lab's machine is examined.
const char* enter_machine() {
    const auto driver = gaudi::loaded_driver();
    if (driver && is_virtual(driver->path))
        believe_in_the_lab();
    return !driver ? "none" : is_virtual(driver->path) ? "virtual" : "real";
}

// All checks, in a process of their own, which says what it finds as it goes: a line of JSON a finding.
void examine(const doctor_options& options) {
    const auto say = [](const json& line) {
        fmt::print("{}\n", line.dump());
        std::fflush(stdout);
    };
    say({{"kind", enter_machine()}});
    report findings;
    findings.announce([&](const finding& entry) { say({{"finding", as_json(entry)}}); });
    const auto found = run_checks(findings, options);
    bool whole = false;
    const auto environment = environment_for(found, whole);
    say({{"end",
          {{"devices", found.devices.size()},
           {"moved", found.moved},
           {"environment", environment},
           {"whole_environment", whole}}}});
}

verdict verdict_of(const std::string& name) {
    for (const auto each : {verdict::good, verdict::unknown, verdict::warning})
        if (name == name_of(each))
            return each;
    return verdict::broken;
}

// A driver that hangs or ends its caller is a finding too.
outcome examine_apart(const doctor_options& options) {
    outcome result;
    if (!options.as_json && !options.as_environment && !options.quiet)
        result.findings.announce([&](const finding& entry) {
            if (options.verbose || entry.result != verdict::good)
                print(entry);
        });
    const auto end =
        run_child([&] { examine(options); }, std::chrono::seconds(options.seconds),
                  [&](std::string_view text) {
                      const auto line = json::parse(text, nullptr, false);
                      if (line.contains("finding")) {
                          const auto& entry = line["finding"];
                          result.findings.add({entry["check"], entry["subject"], verdict_of(entry["verdict"]),
                                               entry["observed"], entry["remedy"]});
                      } else if (line.contains("kind")) {
                          result.kind = line["kind"];
                          if (!options.as_json && !options.as_environment && !options.quiet)
                              print_kind(result.kind);
                      } else if (line.contains("end")) {
                          const auto& all = line["end"];
                          result.devices = all["devices"];
                          result.moved = all["moved"];
                          result.environment = all["environment"];
                          result.whole_environment = all["whole_environment"];
                      }
                  });
    const auto& found = result.findings.findings();
    const auto after = found.empty() ? "it began" : found.back().check;
    if (!end.in_time)
        result.findings.broken(
            "doctor.time", "", fmt::format("no answer for {} s after {}", options.seconds, after),
            "the driver or the NIC hangs: look at dmesg and hl-smi; --timeout waits longer");
    else if (end.signal != 0)
        result.findings.broken("doctor.process", "",
                               fmt::format("signal {} ended the checks after {}", end.signal, after),
                               "a library of the driver crashed: report this, with the output of doctor -v");
    return result;
}

} // namespace

nlohmann::ordered_json doctor::examine_without_probes() {
    doctor_options options;
    options.no_probe = options.quiet = true;
    const auto result = examine_apart(options);
    return as_json(result, conclusion(result, false));
}

int run_doctor(const doctor_options& options) {
    if (options.serves) {
        (void)enter_machine();
        const auto devices = gaudi::list_devices();
        return serve_peer(options.port, devices ? free_devices(*devices) : std::vector<gaudi::device_info>{})
                   ? ok
                   : failed;
    }
    const auto result = examine_apart(options);
    auto answer = conclusion(result, !options.no_probe);
    if (!options.peer.empty())
        answer += answer_about_peer(result.findings, options.peer);
    const auto worst = result.findings.worst();
    const int status = worst == verdict::broken ? failed : worst == verdict::warning ? warned : ok;
    if (options.as_environment) {
        fmt::print("{}", result.environment);
        return result.whole_environment ? ok : failed;
    }
    if (options.as_json) {
        fmt::print("{}\n", as_json(result, answer).dump(2));
        return status;
    }
    const auto good = std::ranges::count(result.findings.findings(), verdict::good, &finding::result);
    fmt::print("{} of {} checks are good{}\n", good, result.findings.findings().size(),
               options.verbose || good == 0 ? "" : " (-v shows them)");
    fmt::print("zero-copy: {}\n", answer);
    if (result.kind == "none" && std::filesystem::exists(lab_hlthunk()))
        fmt::print("without hardware, try: gaudi-direct lab run -- gaudi-direct doctor\n");
    return status;
}

} // namespace tools
