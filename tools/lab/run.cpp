// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

#include "lab/faults/script.hpp"
#include "lab/world/text.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tools {
namespace {

namespace fs = std::filesystem;

// The description that the options ask for; empty if they leave the lab as it is.
lab::result<std::optional<lab::description>> wanted_by(const lab_run_options& options) {
    if (!options.config.empty()) {
        if (options.gaudis || options.hcas || options.generation)
            return tl::unexpected(lab::problem{
                "--config describes the whole lab; leave out --gaudis, --hcas and --generation"});
        auto read = lab::read_description(options.config);
        if (!read)
            return tl::unexpected(read.error());
        return std::optional(*read);
    }
    if (!options.gaudis && !options.hcas && !options.generation)
        return std::optional<lab::description>{};
    if (options.gaudis.value_or(0) > lab::max_gaudis)
        return tl::unexpected(
            lab::problem{fmt::format("--gaudis {}: a lab has at most {}", *options.gaudis, lab::max_gaudis)});
    if (options.hcas.value_or(0) > lab::max_hcas)
        return tl::unexpected(
            lab::problem{fmt::format("--hcas {}: a lab has at most {}", *options.hcas, lab::max_hcas)});
    const auto kind = lab::parse_generation(options.generation.value_or("gaudi2"));
    if (!kind)
        return tl::unexpected(kind.error());
    return std::optional(lab::make_description(options.gaudis.value_or(2), *kind, options.hcas.value_or(1)));
}

lab::result<void> check_faults(const std::string& path) {
    if (path.empty())
        return {};
    const auto text = lab::read_text_file(path);
    if (!text)
        return tl::unexpected(text.error());
    if (const auto rules = lab::parse_faults(*text, path); !rules)
        return tl::unexpected(rules.error());
    return {};
}

void put_in_front(const char* variable, const fs::path& entry) {
    const char* rest = std::getenv(variable);
    const auto value =
        rest != nullptr && *rest != '\0' ? fmt::format("{}:{}", entry.string(), rest) : entry.string();
    ::setenv(variable, value.c_str(), 1);
}

lab::result<void> check_ucx(const std::string& prefix) {
    if (prefix.empty() || fs::exists(fs::path(prefix) / "lib" / "libucs.so.0"))
        return {};
    return tl::unexpected(lab::problem{
        fmt::format("--ucx {}: there is no lib/libucs.so.0 under it; `make ucx` lays out two", prefix)});
}

void set_environment(const lab_run_options& options) {
    if (!options.ucx.empty()) {
        const auto prefix = fs::absolute(options.ucx);
        put_in_front("PATH", prefix / "bin");
        put_in_front("LD_LIBRARY_PATH", prefix / "lib");
        ::setenv("GAUDI_LAB_HCA_QUIRKS", "ucx-fence", 0);
        if (const auto plugin = lab_folder().parent_path().parent_path() / "ucx"; fs::exists(plugin))
            ::setenv("UCX_PLUGIN_PATH", plugin.c_str(), 0);
    }
    if (options.synapse)
        put_in_front("LD_LIBRARY_PATH", lab_folder() / "synapse");
    put_in_front("LD_LIBRARY_PATH", lab_folder()); // for programs linked to libhl-thunk.so by name
    ::setenv("GAUDI_DIRECT_HLTHUNK", lab_hlthunk().c_str(), 1);
    // The virtual nic: preloaded for programs linked to libibverbs; by its path for our own library.
    put_in_front("LD_PRELOAD", lab_folder() / "libvhca-node.so");
    put_in_front("LD_PRELOAD", lab_folder() / "libvhca.so");
    ::setenv("GAUDI_DIRECT_VERBS", (lab_folder() / "libvhca.so").c_str(), 1);
    ::setenv("GAUDI_LAB", options.name.c_str(), 1);
    if (!options.faults.empty())
        ::setenv("GAUDI_LAB_FAULTS", ("@" + fs::absolute(options.faults).string()).c_str(), 1);
}

bool has_several_nodes(const lab::description& machine) {
    const auto elsewhere = [](const auto& device) { return device.numa_node != 0; };
    return std::any_of(machine.gaudis.begin(), machine.gaudis.end(), elsewhere) ||
           std::any_of(machine.hcas.begin(), machine.hcas.end(), elsewhere);
}

pid_t running_child = 0;

void pass_on(int signal) {
    if (running_child > 0)
        ::kill(running_child, signal);
}

int run_child(const std::vector<std::string>& command) {
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const auto& word : command)
        arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    struct sigaction forward {};
    forward.sa_handler = pass_on;
    for (const int signal : {SIGTERM, SIGHUP})
        ::sigaction(signal, &forward, nullptr);
    // Ctrl-C already reaches the whole foreground process group; this process outlives it only to report how
    // the child ended.
    ::signal(SIGINT, SIG_IGN);
    const auto parent = ::getpid();
    running_child = ::fork();
    if (running_child == 0) {
        for (const int signal : {SIGINT, SIGTERM, SIGHUP})
            ::signal(signal, SIG_DFL);
        ::prctl(PR_SET_PDEATHSIG, SIGTERM); // when this process ends, the program gets SIGTERM
        if (::getppid() != parent)
            ::_exit(failed);
        ::execvp(arguments[0], arguments.data());
        const int reason = errno;
        fmt::print(stderr, "gaudi-direct lab: cannot run {}: {}\n", command[0], std::strerror(reason));
        ::_exit(reason == ENOENT ? not_found : not_executable);
    }
    if (running_child < 0)
        return complain({fmt::format("fork: {}", std::strerror(errno))}, failed);
    int status = 0;
    while (::waitpid(running_child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace

int lab_run(const lab_run_options& options) {
    if (auto valid = lab::check_name(options.name); !valid)
        return complain(valid.error());
    auto wanted = wanted_by(options);
    if (!wanted)
        return complain(wanted.error());
    if (auto checked = check_faults(options.faults); !checked)
        return complain(checked.error());
    if (auto checked = check_ucx(options.ucx); !checked)
        return complain(checked.error());
    auto entered = lab::folder::enter(options.name, *wanted);
    if (!entered)
        return complain(entered.error(), failed);
    set_environment(options);
    ::setenv("GAUDI_DIRECT_FSROOT", entered->path().c_str(), 1);
    // Only where it makes a difference: with one nic and one NUMA node, programs continue to see the
    // processors of the real machine.
    if (entered->contents().hcas.size() > 1 || has_several_nodes(entered->contents()))
        ::setenv("HWLOC_XMLFILE", (entered->path() / "topology.xml").c_str(), 1);
    const int status = run_child(options.command);
    reclaim_memory(*entered, options.name);
    return status;
}

} // namespace tools
