// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>

// The releases of UCX whose private structures are declared here.
namespace gaudi_ucx {

constexpr const char* known_versions = "1.22 and 1.23";

inline bool is_known_version(std::string_view version) {
    return version.starts_with("1.22.") || version.starts_with("1.23.");
}

// The version that libucp reports, by its ucp_get_version.
inline std::string version_by(void* ucp_get_version) {
    unsigned major = 0, minor = 0, release = 0;
    reinterpret_cast<void (*)(unsigned*, unsigned*, unsigned*)>(ucp_get_version)(&major, &minor, &release);
    return fmt::format("{}.{}.{}", major, minor, release);
}

} // namespace gaudi_ucx
