// SPDX-License-Identifier: BSD-3-Clause
#include "tools/commands.hpp"
#include "tools/doctor/checks.hpp"
#include "tools/self.hpp"
#include "tools/topo.hpp"

#include <gaudi/gaudi.hpp>

#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tools {
namespace {

using json = nlohmann::ordered_json;

struct export_answer {
    std::string text;
    bool asked = false;
    bool works = false;
};

// Opens the device for a short time and asks the driver to export a page.
export_answer ask_export(const gaudi::device_info& info) {
    auto opened = gaudi::open_device(gaudi::by_index{info.index});
    if (!opened)
        return {fmt::format("not checked: {}", opened.error().observed()), false, false};
    auto buffer = (*opened)->heap().allocate(4096);
    if (!buffer)
        return {fmt::format("not checked: {}", buffer.error().message()), false, false};
    const auto window = buffer->dmabuf();
    if (!window)
        return {fmt::format("refused: {}", window.error().message()), true, false};
    return {fmt::format("yes, iova {:#x}", window->iova.value()), true, true};
}

json holders_json(const gaudi::device_info& info) {
    auto list = json::array();
    for (const auto& holder : gaudi::holders_of(info))
        list.push_back({{"process", holder.process}, {"command", holder.command}});
    return list;
}

json device_json(const gaudi::device_info& info, bool probe) {
    json entry = {{"index", info.index},
                  {"generation", info.generation ? json(gaudi::name_of(*info.generation)) : json(nullptr)},
                  {"product", info.product},
                  {"bus_id", info.bus_id},
                  {"module_id", info.module_id},
                  {"numa_node", info.numa_node ? json(*info.numa_node) : json(nullptr)},
                  {"memory_total", info.memory_total},
                  {"memory_free", info.memory_free},
                  {"allocation_page", info.allocation_page},
                  {"status", info.status},
                  {"holders", holders_json(info)}};
    if (probe && entry["holders"].empty()) {
        const auto answer = ask_export(info);
        entry["dmabuf_export"] = answer.asked ? json(answer.works) : json(nullptr);
        entry["dmabuf_export_detail"] = answer.text;
    } else {
        entry["dmabuf_export"] = nullptr;
        entry["dmabuf_export_detail"] = probe ? "not checked: the device is busy" : "not checked: --no-probe";
    }
    return entry;
}

void print_device(const json& entry) {
    fmt::print("\ngaudi {}: {} {}\n", entry["index"].get<int>(),
               entry["generation"].is_null() ? "generation unknown" : entry["generation"].get<std::string>(),
               entry["product"].get<std::string>());
    fmt::print("  bus id           {}\n", entry["bus_id"].get<std::string>());
    fmt::print("  module id        {}\n", entry["module_id"].get<int>());
    fmt::print("  NUMA node        {}\n",
               entry["numa_node"].is_null() ? "unknown" : entry["numa_node"].dump());
    fmt::print("  HBM              {} total, {} free, allocated in pages of {}\n",
               human_bytes(entry["memory_total"]), human_bytes(entry["memory_free"]),
               human_bytes(entry["allocation_page"]));
    fmt::print("  status           {}\n", entry["status"].get<std::string>());
    for (const auto& holder : entry["holders"])
        fmt::print("  held by          process {} ({})\n", holder["process"].get<int>(),
                   holder["command"].get<std::string>());
    fmt::print("  DMA-BUF export   {}\n", entry["dmabuf_export_detail"].get<std::string>());
}

} // namespace

int info(const info_options& options) {
    const auto driver = gaudi::loaded_driver();
    const bool in_lab = driver && is_virtual(driver->path);
    if (in_lab)
        believe_in_the_lab();
    const auto devices = gaudi::list_devices();
    const std::string trouble =
        !driver    ? driver.error().message()
        : !devices ? devices.error().message()
        : devices->empty()
            ? gaudi::error(gaudi::errc::no_device,
                           fmt::format("{} finds none that this process may use", driver->path))
                  .message()
            : "";
    const char* lab_reason = lab_reason_of_environment();
    if (!trouble.empty() && !options.no_lab && lab_reason == nullptr &&
        std::getenv("GAUDI_DIRECT_HLTHUNK") == nullptr && std::filesystem::exists(lab_hlthunk()))
        enter_lab(trouble);
    const auto say_where = [&] {
        const char* const kind = !driver ? "no" : in_lab ? "virtual" : "real";
        const auto count = devices ? devices->size() : 0;
        fmt::print("gaudi-direct {}: {} hardware, {} device{}\n", gaudi::version(), kind, count,
                   count == 1 ? "" : "s");
        if (lab_reason != nullptr)
            fmt::print("this is the lab, because there is no hardware: {}\n", lab_reason);
    };
    if (!options.places.empty()) {
        if (!options.as_json)
            say_where();
        return paths(options);
    }
    json report = {
        {"version", gaudi::version()},
        {"kind", !driver  ? "none"
                 : in_lab ? "virtual"
                          : "real"},
        {"lab_reason", lab_reason != nullptr ? json(lab_reason) : json(nullptr)},
        {"hlthunk",
         driver ? json{{"path", driver->path}, {"version", driver->version}, {"missing", driver->missing}}
                : json(nullptr)},
        {"problem", trouble.empty() ? json(nullptr) : json(trouble)},
        {"devices", json::array()}};
    if (devices)
        for (const auto& info : *devices)
            report["devices"].push_back(device_json(info, !options.no_probe));
    const auto nics = gaudi::list_nics();
    report["nics"] = nics ? nics_json(*nics) : json::array();
    const auto pool_source = doctor::synapse_pool_source();
    report["synapse_pool_source"] = pool_source.empty() ? json(nullptr) : json(pool_source);
    report["topology"] = devices && nics ? topology_json(*devices, *nics) : json::array();
    const int status = trouble.empty() ? ok : failed;
    if (options.as_json) {
        fmt::print("{}\n", report.dump(2));
        return status;
    }
    say_where();
    if (driver)
        fmt::print("hl-thunk {} from {}\n", driver->version, driver->path);
    if (!pool_source.empty())
        fmt::print("SynapseAI's memory: {} is asked where its pool is\n", pool_source);
    if (driver && !driver->missing.empty())
        fmt::print("it lacks {}: what needs them is refused\n", fmt::join(driver->missing, ", "));
    if (!trouble.empty())
        fmt::print("no device: {}\n", trouble);
    for (const auto& entry : report["devices"])
        print_device(entry);
    fmt::print("\n");
    print_nics(report["nics"]);
    if (report["nics"].empty())
        fmt::print("no NIC: {}\n", nics ? "there is none" : nics.error().message());
    return status;
}

} // namespace tools
