// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tools {

int lab_list(bool as_json) {
    const auto names = lab::list();
    if (!names)
        return complain(names.error(), failed);
    auto all = nlohmann::ordered_json::array();
    for (const auto& name : *names)
        all.push_back(lab_json(name));
    if (as_json) {
        fmt::print("{}\n", all.dump(2));
        return ok;
    }
    if (all.empty())
        fmt::print("no labs; `gaudi-direct lab run -- COMMAND` makes one\n");
    for (const auto& entry : all)
        fmt::print("{:<20} {:<7} {} Gaudi, {} NIC, {} on tmpfs\n", entry["name"].get<std::string>(),
                   entry["in_use"].get<bool>() ? "in use" : "idle", entry["gaudis"].size(),
                   entry["hcas"].size(), human_bytes(entry["stored_bytes"]));
    return ok;
}

} // namespace tools
