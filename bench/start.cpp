// SPDX-License-Identifier: BSD-3-Clause
// Start-up of UCX: what the plugin costs a process that has no device.
#include "bench/uct.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <uct/api/uct.h>
#include <unistd.h>
#include <vector>

namespace {

using bench::table;

// How long UCX takes to load its transports and to query their devices, in a process of its own.
double microseconds_to_load(const std::string& before) {
    std::vector<double> all;
    for (int round = 0; round < 21; ++round)
        if (std::FILE* output =
                ::popen(fmt::format("{} /proc/{}/exe --load", before, ::getpid()).c_str(), "r");
            output != nullptr) {
            double figure = 0;
            if (std::fscanf(output, "%lf", &figure) == 1)
                all.push_back(figure);
            ::pclose(output);
        }
    if (all.empty()) {
        std::fprintf(stderr, "no figure from: %s\n", before.c_str());
        std::exit(1);
    }
    return bench::median(all);
}

// What the plugin costs a process on a machine without a device.
void start_row(table& results, const std::string& name, const std::string& before) {
    const auto bare = microseconds_to_load("env UCX_PLUGIN_PATH= " + before),
               with_plugin = microseconds_to_load(before);
    results.row(fmt::format("no {}: UCX's start with the plugin", name),
                fmt::format("{:.0f} us", with_plugin),
                fmt::format("without it: {:.0f} us; {:.0f} us more, goal 1000 us", bare, with_plugin - bare),
                with_plugin - bare <= 1000);
}

} // namespace

void bench::load_ucx() {
    uct_component_h* components = nullptr;
    unsigned count = 0;
    const auto begin = bench::clock::now();
    uct_query_components(&components, &count);
    for (unsigned i = 0; i < count; ++i) { // as ucp_init does: each component searches for its devices
        uct_component_attr_t attr{};
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
        uct_component_query(components[i], &attr);
    }
    fmt::print("{}\n", std::chrono::duration<double, std::micro>(bench::clock::now() - begin).count());
}

void bench::without_a_gaudi(table& results) {
    // As on a machine without hl-thunk.
    std::string libraries = std::getenv("LD_LIBRARY_PATH");
    const auto end = libraries.find("/gaudi-direct/lab") + std::strlen("/gaudi-direct/lab");
    start_row(results, "hl-thunk",
              "env -u GAUDI_DIRECT_HLTHUNK LD_LIBRARY_PATH=" +
                  libraries.substr(libraries.find(':', end - 1) + 1));
    // With an hl-thunk that finds no device.
    const auto tool =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gaudi-direct").string();
    const auto empty = fmt::format("none{}", ::getpid());
    start_row(results, "Gaudi", fmt::format("{} lab run --lab {} --gaudis 0 --hcas 0 --", tool, empty));
    (void)!std::system(fmt::format("{} lab clean {} >/dev/null", tool, empty).c_str());
}
