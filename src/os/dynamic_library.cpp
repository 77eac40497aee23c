// SPDX-License-Identifier: BSD-3-Clause
#include "src/os/dynamic_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <string_view>
#include <unistd.h>

namespace gaudi {

result<std::shared_ptr<dynamic_library>> dynamic_library::open_first(std::span<const std::string> candidates,
                                                                     std::vector<std::string>& tried) {
    bool unusable = false;
    for (const auto& candidate : candidates) {
        if (void* handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
            std::shared_ptr<dynamic_library> opened(new dynamic_library(handle));
            tried.push_back(fmt::format("{}: loaded", candidate));
            return opened;
        }
        const char* text = ::dlerror();
        std::string_view reason = text != nullptr ? text : "cannot be loaded";
        if (reason.starts_with(candidate + ": ")) // the loader names the file itself
            reason.remove_prefix(candidate.size() + 2);
        tried.push_back(fmt::format("{}: {}", candidate, reason));
        // A file that exists but does not load (wrong architecture, missing dependency) has another remedy
        // than a missing file.
        unusable =
            unusable || (candidate.find('/') != candidate.npos && ::access(candidate.c_str(), F_OK) == 0);
    }
    return tl::unexpected(error(unusable ? errc::library_unusable : errc::library_missing,
                                fmt::format("tried {}", fmt::join(tried, "; "))));
}

dynamic_library::~dynamic_library() {
    ::dlclose(handle_);
}

void* dynamic_library::symbol(const char* name) const {
    return ::dlsym(handle_, name);
}

std::string dynamic_library::path() const {
    link_map* map = nullptr;
    if (::dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr)
        return {};
    return map->l_name;
}

} // namespace gaudi
