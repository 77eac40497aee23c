// SPDX-License-Identifier: BSD-3-Clause
// Libraries and the settings of the programs that use them.
#include "tools/doctor/checks.hpp"
#include "tools/doctor/child_output.hpp"

#include <gaudi/gaudi.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fmt/format.h>
#include <sstream>
#include <unistd.h>

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

bool older(const std::string& version, unsigned major, unsigned minor, unsigned patch = 0) {
    unsigned own[3] = {};
    return std::sscanf(version.c_str(), "%u.%u.%u", &own[0], &own[1], &own[2]) >= 2 &&
           std::tuple(own[0], own[1], own[2]) < std::tuple(major, minor, patch);
}

struct ucx_answer {
    std::string version; // empty: no UCX, or it cannot be loaded
    std::string log;
    bool has_plugin = false;
};

// Loads UCX in another process, because it hooks memory functions where it is loaded, and asks which
// components it has found. It opens no device for that.
ucx_answer ask_ucx() {
    const auto library = find_library("libucp.so.0"), transports = find_library("libuct.so.0");
    if (library.empty())
        return {};
    const auto said = child_output(
        [&] {
            ::unsetenv("UCX_LOG_FILE"); // to stdout
            ::setenv("UCX_LOG_LEVEL", "warn", 1);
            void *const ucp = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL), *const uct = ::dlopen(
                                                                                     transports.c_str(),
                                                                                     RTLD_NOW | RTLD_GLOBAL);
            if (ucp == nullptr || uct == nullptr)
                return;
            const auto version = reinterpret_cast<const char* (*)()>(::dlsym(ucp, "ucp_get_version_string"));
            const auto list =
                reinterpret_cast<int (*)(void***, unsigned*)>(::dlsym(uct, "uct_query_components"));
            const auto query = reinterpret_cast<int (*)(void*, void*)>(::dlsym(uct, "uct_component_query"));
            if (version == nullptr || list == nullptr || query == nullptr)
                return;
            fmt::print("\nversion {}\n", version());
            void** components = nullptr;
            unsigned count = 0;
            if (list(&components, &count) != 0)
                return;
            for (unsigned i = 0; i < count; ++i) {
                struct { // uct_component_attr_t of uct/api/uct.h, of which only the name is asked for
                    std::uint64_t fields = 1;
                    char name[16] = "";
                    std::uint64_t rest[32] = {};
                } attributes;
                if (query(components[i], &attributes) == 0)
                    fmt::print("\ncomponent {}\n", attributes.name);
            }
        },
        std::chrono::seconds(10));
    ucx_answer answer;
    for (const auto& line : split(said.value_or(""), '\n'))
        if (line.starts_with("version "))
            answer.version = line.substr(8);
        else if (line == "component gaudi_copy")
            answer.has_plugin = true;
        else if (!line.starts_with("component ") && answer.log.empty())
            answer.log = line.substr(
                line.find_first_not_of(' ', line.find("WARN") == line.npos ? 0 : line.find("WARN") + 4));
    return answer;
}

// UCX in this environment. It is loaded in another process: it hooks memory functions where it is loaded.
void check_ucx(report& into) {
    const auto ucx = find_library("libucp.so.0");
    const auto [version, log, has_plugin] = ask_ucx();
    if (ucx.empty())
        into.unknown("ucx.version", "", "no libucp.so.0 where the loader looks",
                     "a Python environment has its own (python.packages); else set LD_LIBRARY_PATH");
    else if (version.empty())
        into.warning("ucx.version", "", ucx + " cannot be loaded", "ldd " + ucx + " shows what it lacks");
    else if (older(version, 1, 21))
        into.broken("ucx.version", "", fmt::format("UCX {} of {} does not know Gaudi memory", version, ucx),
                    "use UCX 1.22 or newer; peers before 1.21 must not be sent keys of Gaudi memory either");
    else if (older(version, 1, 22))
        into.warning("ucx.version", "", fmt::format("UCX {} of {} has no UCX_PLUGIN_PATH", version, ucx),
                     "use UCX 1.22 or newer");
    else
        into.good("ucx.version", "", fmt::format("UCX {} of {}", version, ucx));
    if (!version.empty() && has_plugin)
        into.good("ucx.loads_plugin", "", "UCX has the memory domain gaudi_copy");
    else if (!version.empty())
        into.warning("ucx.loads_plugin", "",
                     fmt::format("UCX has no memory domain gaudi_copy{}{}", log.empty() ? "" : ": ", log),
                     "see ucx.plugin; UCX_LOG_LEVEL=debug shows which modules UCX tries");
}

// Packages of the Python that a shell finds, among them those that bring a UCX of their own.
void check_python(report& into) {
    constexpr const char* program = R"(
import sys
sys.path.pop(0)
import importlib.metadata as m
found = []
for name in "nixl nixl-cu12 torch habana-torch-plugin habana-torch-dataloader vllm vllm-gaudi openmpi mpich".split():
    try:
        d = m.distribution(name)
        ucx = sorted({str(f.locate().parent) for f in d.files or [] if "libucp" in f.name})
        found.append(f"{name} {d.version}" + (f" with a UCX in {ucx[0]}" if ucx else ""))
    except m.PackageNotFoundError:
        pass
print("; ".join(found), end="")
)";
    const auto found =
        child_output([&] { ::execlp("python3", "python3", "-c", program, static_cast<char*>(nullptr)); },
                     std::chrono::seconds(10));
    const auto text = found.value_or("");
    if (text.empty())
        into.unknown("python.packages", "", "python3 has none of NIXL, PyTorch, vLLM and MPI",
                     "activate their environment, and run doctor in it");
    else if (const auto at = text.find("nixl-cu12 "); at != text.npos && older(text.substr(at + 10), 1, 4, 1))
        into.warning("python.packages", "", text,
                     "use nixl-cu12 1.4.1 or newer: the UCX of older ones has no UCX_PLUGIN_PATH");
    else
        into.good("python.packages", "", text);
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

std::string ucx_version() {
    return ask_ucx().version;
}

std::string synapse_pool_source() {
    const auto synapse = find_library("libSynapse.so"), scal = find_library("libscal.so");
    if (synapse.empty() || scal.empty())
        return {};
    const auto answer = child_output(
        [&] {
            if (void* const loaded = ::dlopen(scal.c_str(), RTLD_LAZY); loaded != nullptr)
                fmt::print("{}", ::dlsym(loaded, "scal_get_handle_from_fd") != nullptr &&
                                         ::dlsym(loaded, "scal_get_pool_handle_by_name") != nullptr &&
                                         ::dlsym(loaded, "scal_pool_get_infoV2") != nullptr
                                     ? "yes"
                                     : "no");
        },
        std::chrono::seconds(10));
    return answer.value_or("").starts_with("yes") ? scal : std::string();
}

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
    if (const auto by = synapse_pool_source(); !by.empty())
        into.good("library.synapse", "", fmt::format("{}; {} is asked where its pool is", synapse, by));
    else if (synapse.empty())
        into.unknown("library.synapse", "", "SynapseAI is not found here",
                     "PyTorch and vLLM bring it; for them doctor should run in their container");
    else if (scal.empty())
        into.warning("library.synapse", "", synapse + ", but no libscal.so",
                     "SynapseAI's memory is found through libscal.so: put it into LD_LIBRARY_PATH");
    else
        into.warning("library.synapse", "", fmt::format("{} has none of SCAL's functions", scal),
                     "install SynapseAI whole: without them its memory is not found");
}

void check_environment(report& into, bool gaudi_ports) {
    check_ucx(into);
    check_python(into);
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
    const auto cache = variable("UCX_MEMTYPE_CACHE");
    into.good("ucx.memtype_cache", "",
              cache.empty()
                  ? "UCX_MEMTYPE_CACHE is not set: UCX keeps what it knows of memory; the plugin works with "
                    "and without"
                  : "UCX_MEMTYPE_CACHE=" + cache);
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
