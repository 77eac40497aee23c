// SPDX-License-Identifier: BSD-3-Clause
// Preloaded: dlsym does not find the function that LACKING names, as in a UCX without it.
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) noexcept {
    using look_up = void* (*)(void*, const char*);
    static const auto original = reinterpret_cast<look_up>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
    const char* lacking = std::getenv("LACKING");
    return lacking != nullptr && std::strcmp(name, lacking) == 0 ? nullptr : original(handle, name);
}
