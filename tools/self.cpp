// SPDX-License-Identifier: BSD-3-Clause
#include "tools/self.hpp"

#include <gaudi/nic.hpp>

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>
#include <vector>

namespace tools {

namespace fs = std::filesystem;

namespace {

// The path of this program; empty if it is unknown.
fs::path own_path() {
    std::error_code failure;
    return fs::read_symlink("/proc/self/exe", failure);
}

} // namespace

fs::path lab_folder() {
    return own_path().parent_path().parent_path() / "lib" / "gaudi-direct" / "lab";
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
    const bool is_lab = ::dlsym(loaded, "gaudi_lab_leave") != nullptr ||          // the virtual Gaudi
                        ::dlsym(loaded, "gaudi_lab_hca_faults_fired") != nullptr; // the virtual NIC
    ::dlclose(loaded);
    return is_lab;
}

namespace {

// Passed on through the re-execution.
constexpr const char* reason_variable = "GAUDI_DIRECT_LAB_REASON";

} // namespace

void enter_lab(const std::string& reason) {
    ::setenv("GAUDI_DIRECT_HLTHUNK", lab_hlthunk().c_str(), 1);
    ::setenv("GAUDI_DIRECT_VERBS", (lab_folder() / "libvhca.so").c_str(), 1);
    ::setenv(reason_variable, reason.c_str(), 1);
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::vector<char*> arguments;
    for (std::size_t at = 0; at < text.size(); at += std::strlen(&text[at]) + 1)
        arguments.push_back(&text[at]);
    arguments.push_back(nullptr);
    // Under its own name, which other programs show as the holder of a device.
    ::execv(own_path().c_str(), arguments.data());
    ::execv("/proc/self/exe", arguments.data());
}

const char* lab_reason_of_environment() {
    return std::getenv(reason_variable);
}

const char* go_to_lab_without_hardware(bool forbidden) {
    if (forbidden || lab_reason_of_environment() != nullptr ||
        std::getenv("GAUDI_DIRECT_HLTHUNK") != nullptr || std::getenv("GAUDI_DIRECT_VERBS") != nullptr ||
        !fs::exists(lab_hlthunk()))
        return lab_reason_of_environment();
    const auto devices = gaudi::list_devices();
    const auto nics = gaudi::list_nics();
    if ((!devices || devices->empty()) && (!nics || nics->empty()))
        enter_lab("there is neither a Gaudi nor an RDMA NIC here");
    return nullptr;
}

} // namespace tools
