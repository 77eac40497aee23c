// SPDX-License-Identifier: BSD-3-Clause
#include "tools/commands.hpp"
#include "tools/self.hpp"

#include "lab/faults/script.hpp"
#include "lab/hca/segment.hpp"
#include "lab/world/folder.hpp"
#include "lab/world/ports.hpp"
#include "lab/world/text.hpp"

#include <gaudi/version.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tools {
namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

int complain(const lab::problem& what, int status = usage) {
    fmt::print(stderr, "gaudi-direct lab: {}\n", what.text);
    return status;
}

// What the options describe; nothing where they leave the lab as it is.
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
    put_in_front("LD_LIBRARY_PATH", lab_folder()); // programs linked to libhl-thunk.so by name
    ::setenv("GAUDI_DIRECT_HLTHUNK", lab_hlthunk().c_str(), 1);
    // The virtual NIC: under programs linked to libibverbs by preload, for our own library by its path.
    put_in_front("LD_PRELOAD", lab_folder() / "libvhca-node.so");
    put_in_front("LD_PRELOAD", lab_folder() / "libvhca.so");
    ::setenv("GAUDI_DIRECT_VERBS", (lab_folder() / "libvhca.so").c_str(), 1);
    ::setenv("GAUDI_LAB", options.name.c_str(), 1);
    if (!options.faults.empty())
        ::setenv("GAUDI_LAB_FAULTS", ("@" + fs::absolute(options.faults).string()).c_str(), 1);
}

bool has_several_nodes(const lab::description& machine) {
    const auto elsewhere = [](const auto& card) { return card.numa_node != 0; };
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
    // Ctrl-C reaches the whole foreground group already; we only outlive it to tell how the child ended.
    ::signal(SIGINT, SIG_IGN);
    const auto parent = ::getpid();
    running_child = ::fork();
    if (running_child == 0) {
        for (const int signal : {SIGINT, SIGTERM, SIGHUP})
            ::signal(signal, SIG_DFL);
        ::prctl(PR_SET_PDEATHSIG, SIGTERM); // whatever ends us ends the program
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

// Programs that ended without closing their devices leave memory behind, which whoever enters the lab gives
// back.
void give_back_memory(const lab::folder& where, const std::string& name) {
    ::unsetenv("GAUDI_LAB_FAULTS"); // not part of an experiment
    ::unsetenv("GAUDI_LAB_TRACE");
    lab::hca::sweep_segments(where.path() / "hca");
    void* library = ::dlopen(lab_hlthunk().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        return;
    ::setenv("GAUDI_LAB", name.c_str(), 1);
    const auto leave = reinterpret_cast<void (*)()>(::dlsym(library, "gaudi_lab_leave"));
    const auto count = reinterpret_cast<int (*)(int)>(::dlsym(library, "hlthunk_get_device_count"));
    leave();
    (void)count(0);
    leave();
}

// The same for a lab that is only looked at.
void give_back_memory_of(const std::string& name, const fs::path& path) {
    if (!fs::exists(path / "description")) // entering would make it
        return;
    if (const auto entered = lab::folder::enter(name, std::nullopt))
        give_back_memory(*entered, name);
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
    // Where it matters; with one NIC and one node programs go on seeing the processors of the real machine.
    if (entered->contents().hcas.size() > 1 || has_several_nodes(entered->contents()))
        ::setenv("HWLOC_XMLFILE", (entered->path() / "topology.xml").c_str(), 1);
    const int status = run_child(options.command);
    give_back_memory(*entered, options.name);
    return status;
}

namespace {

lab::problem no_such_lab(const std::string& name) {
    return {fmt::format("there is no lab '{}'; `gaudi-direct lab list` names those there are", name)};
}

json counters_json(const lab::hca::way_counters& from) {
    json shown;
    for (const auto& each : lab::hca::way_counters::all())
        shown[each.name] = (from.*each.counter).load();
    return shown;
}

// What the processes that use the NICs of a lab have open and moved.
json nic_users_json(const fs::path& folder, unsigned devices) {
    constexpr std::string_view types[] = {"?", "?", "RC", "UC", "UD"};
    constexpr std::string_view states[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    auto all = json::array();
    lab::hca::for_each_user(folder, [&](const lab::hca::segment& memory) {
        json user = {{"process", memory->head.process},
                     {"gone_queue_pairs", json::array()},
                     {"queue_pairs", json::array()}};
        for (unsigned i = 0; i < devices; ++i) {
            auto sum = counters_json(memory->head.counted[i]);
            sum["device"] = fmt::format("vhca{}", i);
            user["gone_queue_pairs"].push_back(sum);
        }
        for (std::uint32_t i = 0; i < memory->head.qps_used.load(); ++i) // to read further would store pages
            if (const auto& qp = memory->qps[i]; qp.in_use.load() != 0) {
                json pair = {{"number", qp.number},
                             {"device", fmt::format("vhca{}", qp.device)},
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
        const auto& card = contents.hcas[i];
        auto down = json::array();
        for (unsigned port = 1; port <= card.ports; ++port)
            if (links ? !links->is_up(i, port) : !card.port_up)
                down.push_back(port);
        all.push_back({{"name", fmt::format("vhca{}", i)},
                       {"link_layer", lab::name_of(card.link)},
                       {"bus_id", card.bus_id},
                       {"address", card.address.empty() ? json(nullptr) : json(card.address)},
                       {"ports", card.ports},
                       {"port_up", down.empty()},
                       {"ports_down", down},
                       {"speed_gbps", card.speed_gbps},
                       {"dmabuf", card.dmabuf}});
    }
    return all;
}

std::uint64_t stored_bytes(const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

// The entries of a folder that may vanish meanwhile, as those of a process that ends.
std::vector<fs::path> entries_of(const fs::path& folder) {
    std::vector<fs::path> all;
    std::error_code failure;
    for (fs::directory_iterator each(folder, failure), end; !failure && each != end; each.increment(failure))
        all.push_back(each->path());
    return all;
}

json lab_json(const std::string& name) {
    const auto top = lab::root();
    const auto path = *top / name;
    give_back_memory_of(name, path);
    json entry = {{"name", name}, {"in_use", lab::in_use(path)}, {"gaudis", json::array()}};
    const auto contents = lab::read_description(path / "description");
    std::uint64_t total = 0;
    if (contents) {
        entry["hcas"] = hcas_json(path, *contents);
        entry["hca_users"] = nic_users_json(path / "hca", static_cast<unsigned>(contents->hcas.size()));
    }
    if (contents)
        for (unsigned i = 0; i < contents->gaudis.size(); ++i) {
            const auto& card = contents->gaudis[i];
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
                                       {"generation", lab::name_of(card.generation)},
                                       {"bus_id", card.bus_id},
                                       {"module_id", card.module_id},
                                       {"holders", holders},
                                       {"dmabuf_files", exports},
                                       {"stored_bytes", stored}});
        }
    entry["stored_bytes"] = total;
    return entry;
}

} // namespace

int lab_list(bool as_json) {
    const auto names = lab::list();
    if (!names)
        return complain(names.error(), failed);
    auto all = json::array();
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
    for (const auto& card : entry["gaudis"]) {
        std::string holders;
        for (const auto& process : card["holders"])
            holders += fmt::format(" {}", process.get<int>());
        fmt::print("gaudi {}  {}  {}  module {}  {}  {} stored\n", card["index"].get<int>(),
                   card["generation"].get<std::string>(), card["bus_id"].get<std::string>(),
                   card["module_id"].get<int>(), holders.empty() ? "free" : "held by process" + holders,
                   human_bytes(card["stored_bytes"]));
    }
    for (const auto& card : entry["hcas"]) {
        std::string down;
        for (const auto& port : card["ports_down"])
            down += fmt::format("  port {} down", port.get<int>());
        fmt::print("{}  {}, {} Gbit/s  {}  DMA-BUF {}{}{}\n", card["name"].get<std::string>(),
                   card["link_layer"].get<std::string>(), card["speed_gbps"].get<int>(),
                   card["bus_id"].get<std::string>(), card["dmabuf"].get<bool>() ? "yes" : "no",
                   card["address"].is_null() ? "" : "  " + card["address"].get<std::string>(), down);
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

int lab_port(const std::string& name, const std::string& port, bool up) {
    if (auto valid = lab::check_name(name); !valid)
        return complain(valid.error());
    const auto top = lab::root();
    if (!top)
        return complain(top.error(), failed);
    if (!fs::exists(*top / name / "description"))
        return complain(no_such_lab(name), failed);
    const auto entered = lab::folder::enter(name, std::nullopt);
    if (!entered)
        return complain(entered.error(), failed);
    const auto links = lab::port_states::open(entered->path());
    if (!links)
        return complain(links.error(), failed);
    std::string known;
    bool found = false;
    const auto& cards = entered->contents().hcas;
    for (unsigned i = 0; i < cards.size(); ++i)
        for (unsigned each = 1; each <= cards[i].ports; ++each) {
            const auto card = fmt::format("vhca{}", i), one = fmt::format("{}/{}", card, each);
            known += (known.empty() ? "" : ", ") + one;
            if (port != card && port != one)
                continue;
            links->set(i, each, up);
            found = true;
        }
    if (!found)
        return complain(
            {fmt::format("lab '{}' has no port '{}'; it has {}; a NIC's name alone is all of its ports", name,
                         port, known.empty() ? "no NIC" : known)});
    lab::hca::ring_all(entered->path() / "hca");
    return ok;
}

int lab_clean(const std::string& name) {
    const auto cleaned = lab::clean(name);
    return cleaned ? static_cast<int>(ok) : complain(cleaned.error(), failed);
}

std::string default_lab() {
    return lab::selected_name();
}

} // namespace tools
