// SPDX-License-Identifier: BSD-3-Clause
#include "tools/lab/lab.hpp"

#include "lab/hca/segment.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <fmt/format.h>

namespace tools {

int complain(const lab::problem& what, int status) {
    fmt::print(stderr, "gaudi-direct lab: {}\n", what.text);
    return status;
}

lab::problem no_such_lab(const std::string& name) {
    return {fmt::format("there is no lab '{}'; `gaudi-direct lab list` names those there are", name)};
}

void reclaim_memory(const lab::folder& where, const std::string& name) {
    ::unsetenv("GAUDI_LAB_FAULTS"); // the tool's own calls must not count
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

std::string default_lab() {
    return lab::selected_name();
}

} // namespace tools
