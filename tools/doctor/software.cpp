// SPDX-License-Identifier: BSD-3-Clause
// Libraries and the settings of the programs that use them.
#include "tools/doctor/checks.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <sstream>

namespace tools::doctor {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, by);)
        if (!part.empty())
            parts.push_back(part);
    return parts;
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

// Where the loader would find a library: LD_LIBRARY_PATH, the vendor's folder, the system's.
std::string find_library(const std::string& name) {
    auto folders = split(variable("LD_LIBRARY_PATH"), ':');
    for (const auto* folder : {"/usr/lib/habanalabs", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"})
        folders.push_back(machine_path(folder));
    for (const auto& folder : folders)
        if (std::error_code absent; fs::exists(fs::path(folder) / name, absent))
            return fs::path(folder) / name;
    return {};
}

// What UCX's setting of transports leaves of this plugin.
void check_transports(report& into) {
    const auto setting = variable("UCX_TLS");
    const bool negated = setting.starts_with("^");
    const auto words = split(negated ? setting.substr(1) : setting, ',');
    const auto names = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
    // One of the two brings the memory domain, without which UCX does not know Gaudi memory.
    const bool both = names("gaudi_cpy") && names("gaudi_dma"),
               one = names("gaudi_cpy") || names("gaudi_dma");
    if (words.empty() || (negated ? !both : one || names("all")))
        into.good("ucx.transports", "", words.empty() ? "UCX_TLS is not set" : "UCX_TLS=" + setting);
    else
        into.warning("ucx.transports", "", fmt::format("UCX_TLS={} leaves Gaudi memory out", setting),
                     negated ? "leave gaudi_cpy out of it"
                             : fmt::format("UCX_TLS={},gaudi_cpy,gaudi_dma,gaudi_ipc", setting));
}

void check_plugin(report& into) {
    const auto ucx = find_library("libucp.so.0");
    const auto folders = split(variable("UCX_PLUGIN_PATH"), ':');
    const auto holds = [](const std::string& folder) {
        std::error_code absent;
        return fs::exists(fs::path(folder) / "libuct_gaudi.so", absent);
    };
    const auto with = std::ranges::find_if(folders, holds);
    if (with != folders.end())
        into.good("ucx.plugin", "", "UCX_PLUGIN_PATH=" + *with);
    else if (!folders.empty())
        into.warning("ucx.plugin", "",
                     fmt::format("UCX_PLUGIN_PATH={} has no libuct_gaudi.so", variable("UCX_PLUGIN_PATH")),
                     "name the folder that has it: doctor --env prints it");
    else if (!ucx.empty() && holds(fs::path(ucx).parent_path() / "ucx"))
        into.good("ucx.plugin", "", "a libuct_gaudi.so among the modules of " + ucx);
    else
        into.warning("ucx.plugin", "", "UCX_PLUGIN_PATH is not set: UCX does not know Gaudi memory",
                     "doctor --env prints the line to set it");
}

} // namespace

void check_libraries(report& into) {
    if (const auto driver = gaudi::loaded_driver(); !driver)
        into.broken("library.hlthunk", "", driver.error().observed(), std::string(driver.error().remedy()));
    else if (!driver->missing.empty())
        into.warning(
            "library.hlthunk", "",
            fmt::format("{} {} lacks {}", driver->path, driver->version, fmt::join(driver->missing, ", ")),
            "install the hl-thunk of the driver's release");
    else
        into.good("library.hlthunk", "", fmt::format("{} {}", driver->path, driver->version));
    if (const auto verbs = gaudi::loaded_verbs(); !verbs)
        into.broken("library.verbs", "", verbs.error().observed(), std::string(verbs.error().remedy()));
    else
        into.good("library.verbs", "", *verbs);
    const auto synapse = find_library("libSynapse.so"), scal = find_library("libscal.so");
    if (synapse.empty())
        into.unknown("library.synapse", "", "SynapseAI is not found here",
                     "PyTorch and vLLM bring it; for them doctor should run in their container");
    else if (scal.empty())
        into.warning("library.synapse", "", synapse + ", but no libscal.so",
                     "SynapseAI's memory is found through libscal.so: put it into LD_LIBRARY_PATH");
    else
        into.good("library.synapse", "", fmt::format("{}; its pool is found through {}", synapse, scal));
}

void check_environment(report& into, bool gaudi_ports) {
    check_plugin(into);
    check_transports(into);
    const auto devices = variable("UCX_NET_DEVICES");
    const bool negated = devices.starts_with("^"), names_ports = devices.find("hbl_") != std::string::npos;
    if (names_ports && !negated)
        into.broken("ucx.net_devices", "", "UCX_NET_DEVICES=" + devices,
                    "leave out the hbl devices: they are HCCL's");
    else if (gaudi_ports && (devices.empty() || devices == "all" || (negated && !names_ports)))
        into.warning(
            "ucx.net_devices", "",
            fmt::format("UCX_NET_DEVICES {}, and a Gaudi's own ports are verbs devices",
                        devices.empty() ? "is not set" : "= " + devices),
            "set it to the other NICs (doctor --env), and start HCCL first: UCX opens the ports as it "
            "starts, and keeps their only context where it may use them");
    else
        into.good("ucx.net_devices", "", devices.empty() ? "not set" : "UCX_NET_DEVICES=" + devices);
    const auto scatter = variable("MLX5_SCATTER_TO_CQE");
    into.good("mlx5.scatter_to_cqe", "",
              scatter.empty()
                  ? "not set: this library forbids it for its own queue pairs; other programs that receive "
                    "into Gaudi memory set MLX5_SCATTER_TO_CQE=0"
                  : "MLX5_SCATTER_TO_CQE=" + scatter);
    if (variable("PT_ENABLE_MEMORY_DEFRAGMENTATION") == "0" || variable("PT_HPU_POOL_STRATEGY") == "0")
        into.good("pytorch.defragmentation", "", "PyTorch does not move device memory");
    else
        into.unknown("pytorch.defragmentation", "",
                     "PyTorch may move device memory that is registered with a NIC",
                     "get addresses by habana_frameworks.torch.utils.experimental._data_ptr(tensor), which "
                     "fixes them");
    const auto visible = variable("HABANA_VISIBLE_DEVICES");
    into.good("synapse.visible", "", visible.empty() ? "all devices" : "HABANA_VISIBLE_DEVICES=" + visible);
}

} // namespace tools::doctor
