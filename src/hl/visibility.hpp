// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>
#include <gaudi/error.hpp>

#include <optional>
#include <set>

namespace gaudi {

// Which devices the vendor's environment variables allow: HABANA_VISIBLE_DEVICES (indices),
// HABANA_VISIBLE_MODULES (module ids), each a comma-separated list or "all"; HLS_MODULE_ID names this
// process's device.
struct visibility {
    std::optional<std::set<unsigned>> indices; // nullopt: all
    std::optional<std::set<unsigned>> modules;
    std::optional<unsigned> own_module;

    [[nodiscard]] bool shows(const device_info& info) const;
    // errc::selection_malformed with the variable and its text.
    static result<visibility> of_environment();
};

} // namespace gaudi
