// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

#include "lab/hca/segment.hpp"
#include "lab/world/ports.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

namespace tools {
namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

json counters_json(const lab::hca::traffic_counters& from) {
    json shown;
    for (const auto& entry : lab::hca::traffic_counters::all())
        shown[entry.name] = (from.*entry.counter).load();
    return shown;
}

// The objects and the traffic of the processes that use the nics of a lab.
json nic_users_json(const fs::path& folder, const lab::description& contents) {
    constexpr std::string_view types[] = {"?", "?", "RC", "UC", "UD"};
    constexpr std::string_view states[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    auto all = json::array();
    lab::hca::for_each_user(folder, [&](const lab::hca::segment& memory) {
        json user = {{"process", memory->head.process},
                     {"gone_queue_pairs", json::array()},
                     {"queue_pairs", json::array()}};
        for (unsigned i = 0; i < contents.hcas.size(); ++i) {
            auto sum = counters_json(memory->head.counted[i]);
            sum["device"] = contents.name_of_hca(i);
            user["gone_queue_pairs"].push_back(sum);
        }
        for (std::uint32_t i = 0; i < memory->head.qps_used.load(); ++i) // further reads would allocate pages
            if (const auto& qp = memory->qps[i]; qp.in_use.load() != 0) {
                json pair = {{"number", qp.number},
                             {"device", contents.name_of_hca(qp.device)},
                             {"type", types[std::min<std::size_t>(qp.type, 4)]},
                             {"state", states[std::min<std::size_t>(qp.state.load(), 6)]}};
                pair.update(counters_json(qp.counted));
                user["queue_pairs"].push_back(pair);
            }
        all.push_back(user);
    });
    return all;
}

json hcas_json(const fs::path& path, const lab::description& contents) {
    auto all = json::array();
    const auto links = lab::port_states::open(path);
    for (unsigned i = 0; i < contents.hcas.size(); ++i) {
        const auto& hca = contents.hcas[i];
        auto down = json::array();
        for (unsigned port = 1; port <= hca.ports; ++port)
            if (links ? !links->is_up(i, port) : !hca.port_up)
                down.push_back(port);
        all.push_back({{"name", contents.name_of_hca(i)},
                       {"link_layer", lab::name_of(hca.link)},
                       {"bus_id", hca.bus_id},
                       {"address", hca.address.empty() ? json(nullptr) : json(hca.address)},
                       {"ports", hca.ports},
                       {"port_up", down.empty()},
                       {"ports_down", down},
                       {"speed_gbps", hca.speed_gbps},
                       {"dmabuf", hca.dmabuf}});
    }
    return all;
}

std::uint64_t stored_bytes(const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

// The entries of a folder; they may vanish meanwhile, as those of a process that ends.
std::vector<fs::path> entries_of(const fs::path& folder) {
    std::vector<fs::path> all;
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure))
        all.push_back(entry->path());
    return all;
}

void reclaim_memory_of(const std::string& name, const fs::path& path) {
    if (!fs::exists(path / "description")) // entering would make it
        return;
    if (const auto entered = lab::folder::enter(name, std::nullopt))
        reclaim_memory(*entered, name);
}

} // namespace

nlohmann::ordered_json lab_json(const std::string& name) {
    const auto top = lab::root();
    const auto path = *top / name;
    reclaim_memory_of(name, path);
    json entry = {{"name", name}, {"in_use", lab::in_use(path)}, {"gaudis", json::array()}};
    const auto contents = lab::read_description(path / "description");
    std::uint64_t total = 0;
    if (contents) {
        entry["hcas"] = hcas_json(path, *contents);
        entry["hca_users"] = nic_users_json(path / "hca", *contents);
    }
    if (contents)
        for (unsigned i = 0; i < contents->gaudis.size(); ++i) {
            const auto& gaudi = contents->gaudis[i];
            const auto device = path / fmt::format("gaudi{}", i);
            const auto stored = stored_bytes(device / "hbm") + stored_bytes(device / "sram") +
                                stored_bytes(device / "context");
            total += stored;
            const auto node = (path / "accel" / fmt::format("accel{}", i)).string();
            auto holders = json::array();
            std::error_code failure;
            for (const auto& process : entries_of("/proc"))
                for (const auto& fd : entries_of(process / "fd"))
                    if (fs::read_symlink(fd, failure) == node) {
                        holders.push_back(std::atoi(process.filename().c_str()));
                        break;
                    }
            unsigned exports = 0;
            for (const auto& file : entries_of(device / "exports"))
                if (file.extension() == ".ranges")
                    ++exports;
            entry["gaudis"].push_back({{"index", i},
                                       {"generation", lab::name_of(gaudi.generation)},
                                       {"bus_id", gaudi.bus_id},
                                       {"module_id", gaudi.module_id},
                                       {"holders", holders},
                                       {"dmabuf_files", exports},
                                       {"stored_bytes", stored}});
        }
    entry["stored_bytes"] = total;
    return entry;
}

} // namespace tools
