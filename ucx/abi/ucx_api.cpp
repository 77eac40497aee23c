// SPDX-License-Identifier: BSD-3-Clause
// Finds the UCX that has loaded this module, among those that the process may contain, and checks that its
// private structures are the ones this plugin was built for. Nothing of UCX is linked.
#include "ucx/abi/ucx_api.hpp"

#include "ucx/abi/exports.hpp"
#include "ucx/abi/ucx_version.hpp"

#include <cstring>
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <memory>
#include <vector>

namespace gaudi_ucx {
namespace {

struct closer {
    void operator()(void* library) const { ::dlclose(library); }
};
using library = std::unique_ptr<void, closer>;

library loaded(const char* path) {
    // RTLD_NOLOAD: a UCX that is not in use must not be brought into the process.
    return library(::dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_LOCAL));
}

// Paths of all loaded libraries, in the order of loading.
std::vector<std::string> loaded_paths() {
    std::vector<std::string> paths;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* into) {
            if (info->dlpi_name != nullptr && *info->dlpi_name != 0)
                static_cast<std::vector<std::string>*>(into)->emplace_back(info->dlpi_name);
            return 0;
        },
        &paths);
    return paths;
}

// A loaded library that defines `symbol` itself and whose libucs is the one that contains `anchor`.
library bound_to(const void* anchor, const char* symbol) {
    for (const auto& path : loaded_paths()) {
        auto candidate = loaded(path.c_str());
        if (!candidate || ::dlsym(candidate.get(), "ucs_log_dispatch") != anchor)
            continue;
        Dl_info where{};
        link_map* map = nullptr;
        const void* found = ::dlsym(candidate.get(), symbol);
        if (found != nullptr && ::dladdr(found, &where) != 0 &&
            ::dlinfo(candidate.get(), RTLD_DI_LINKMAP, &map) == 0 &&
            map->l_addr == reinterpret_cast<ElfW(Addr)>(where.dli_fbase))
            return candidate;
    }
    return nullptr;
}

} // namespace

bool ucx_api::find(const void* caller, std::string& why_not) {
    Dl_info info{};
    if (::dladdr(caller, &info) == 0) {
        why_not = "the library that loads this module cannot be found";
        return false;
    }
    const auto ucs = loaded(info.dli_fname);
    const void* anchor = ucs ? ::dlsym(ucs.get(), "ucs_log_dispatch") : nullptr;
    ucs_log_dispatch = reinterpret_cast<decltype(ucs_log_dispatch)>(const_cast<void*>(anchor));
    const auto uct = anchor != nullptr ? bound_to(anchor, "uct_component_register") : nullptr;
    if (!uct) {
        why_not = fmt::format("no libuct belongs to {}", info.dli_fname);
        return false;
    }
    std::string missing;
    const auto get = [&](const char* symbol, bool required) {
        void* found = ::dlsym(uct.get(), symbol); // also searches libucs and libucm, on which libuct depends
        if (found == nullptr && required)
            missing += fmt::format(" {}", symbol);
        return found;
    };
#define GAUDI_UCX_REQUIRED(symbol) symbol = reinterpret_cast<decltype(symbol)>(get(#symbol, true));
#define GAUDI_UCX_OPTIONAL(symbol) symbol = reinterpret_cast<decltype(symbol)>(get(#symbol, false));
    GAUDI_UCX_SYMBOLS(GAUDI_UCX_REQUIRED, GAUDI_UCX_OPTIONAL)
#undef GAUDI_UCX_REQUIRED
#undef GAUDI_UCX_OPTIONAL
    if (const auto ucp = bound_to(anchor, "ucp_get_version"))
        version = version_by(::dlsym(ucp.get(), "ucp_get_version"));
    if (!missing.empty()) {
        why_not = fmt::format("UCX {} lacks{}; known are {}", version, missing, known_versions);
        return false;
    }
    if (!check(why_not))
        return false;
    const auto difference = unknown_exports(uct.get(), version);
    if (difference.empty())
        return true;
    why_not =
        fmt::format("this UCX {} is not the one that is known by that number: {}; known are the releases "
                    "1.22.0 and 1.23.0 (revision 65e342a)",
                    version, difference);
    return false;
}

bool ucx_api::check(std::string& why_not) const {
    // A program may use UCT without UCP, which alone tells the version: then the sizes decide.
    const bool known = version.empty() || is_known_version(version);
    if (known && uct_base_iface_t_class->size == sizeof(uct_base_iface_t) &&
        uct_base_ep_t_class->size == sizeof(uct_base_ep_t))
        return true;
    why_not = fmt::format(
        "UCX {} (interface of {} bytes, endpoint of {}) is not known; known are {} ({} and {})",
        version.empty() ? "of unknown version" : version, uct_base_iface_t_class->size,
        uct_base_ep_t_class->size, known_versions, sizeof(uct_base_iface_t), sizeof(uct_base_ep_t));
    return false;
}

} // namespace gaudi_ucx
