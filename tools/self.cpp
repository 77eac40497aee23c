// SPDX-License-Identifier: BSD-3-Clause
#include "tools/self.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tools {

namespace fs = std::filesystem;

fs::path lab_folder() {
    std::error_code failure;
    const auto self = fs::read_symlink("/proc/self/exe", failure);
    return self.parent_path().parent_path() / "lib" / "gaudi-direct" / "lab";
}

fs::path lab_hlthunk() {
    return lab_folder() / "libhl-thunk.so";
}

std::string human_bytes(std::uint64_t bytes) {
    constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(units)) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

bool is_virtual(const std::string& library_path) {
    void* loaded = ::dlopen(library_path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr)
        return false;
    const bool found = ::dlsym(loaded, "gaudi_lab_leave") != nullptr;
    ::dlclose(loaded);
    return found;
}

} // namespace tools
