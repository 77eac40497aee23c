// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

#include <gaudi/version.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tools {

int lab_show(const std::string& name, bool as_json) {
    if (auto valid = lab::check_name(name); !valid)
        return complain(valid.error());
    const auto names = lab::list();
    if (!names)
        return complain(names.error(), failed);
    if (std::find(names->begin(), names->end(), name) == names->end())
        return complain(no_such_lab(name), failed);
    const auto entry = lab_json(name);
    if (as_json) {
        fmt::print("{}\n", entry.dump(2));
        return ok;
    }
    fmt::print("gaudi-direct {}: lab '{}', {}\n", gaudi::version(), name,
               entry["in_use"].get<bool>() ? "in use" : "idle");
    for (const auto& gaudi : entry["gaudis"]) {
        std::string holders;
        for (const auto& process : gaudi["holders"])
            holders += fmt::format(" {}", process.get<int>());
        fmt::print("gaudi {}  {}  {}  module {}  {}  {} stored\n", gaudi["index"].get<int>(),
                   gaudi["generation"].get<std::string>(), gaudi["bus_id"].get<std::string>(),
                   gaudi["module_id"].get<int>(), holders.empty() ? "free" : "held by process" + holders,
                   human_bytes(gaudi["stored_bytes"]));
    }
    for (const auto& hca : entry["hcas"]) {
        std::string down;
        for (const auto& port : hca["ports_down"])
            down += fmt::format("  port {} down", port.get<int>());
        fmt::print("{}  {}, {} Gbit/s  {}  DMA-BUF {}{}{}\n", hca["name"].get<std::string>(),
                   hca["link_layer"].get<std::string>(), hca["speed_gbps"].get<int>(),
                   hca["bus_id"].get<std::string>(), hca["dmabuf"].get<bool>() ? "yes" : "no",
                   hca["address"].is_null() ? "" : "  " + hca["address"].get<std::string>(), down);
    }
    for (const auto& user : entry["hca_users"]) {
        std::uint64_t messages = 0, bytes = 0;
        for (const auto* list : {"gone_queue_pairs", "queue_pairs"})
            for (const auto& each : user[list]) {
                messages += each["messages"].get<std::uint64_t>();
                bytes += each["bytes"].get<std::uint64_t>();
            }
        fmt::print("NICs used by process {}: queue pairs {}, requests {}, {} moved by them\n",
                   user["process"].get<int>(), user["queue_pairs"].size(), messages, human_bytes(bytes));
    }
    return ok;
}

} // namespace tools
