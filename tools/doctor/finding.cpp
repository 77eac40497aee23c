// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/finding.hpp"

#include <algorithm>

namespace tools::doctor {

std::string_view name_of(verdict value) {
    constexpr std::string_view names[] = {"good", "unknown", "warning", "broken"};
    return names[static_cast<int>(value)];
}

verdict report::worst() const {
    auto worst = verdict::good;
    for (const auto& entry : findings_)
        worst = std::max(worst, entry.result);
    return worst;
}

const finding* report::first_broken_here() const {
    const auto found = std::ranges::find_if(findings_, [](const finding& entry) {
        return entry.result == verdict::broken && !entry.check.starts_with("ucx.") &&
               !entry.check.starts_with("peer.");
    });
    return found != findings_.end() ? &*found : nullptr;
}

} // namespace tools::doctor
