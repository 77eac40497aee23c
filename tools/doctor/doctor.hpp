// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace tools::doctor {

// Every check but the transfers, as `doctor --json --no-probe` prints it.
[[nodiscard]] nlohmann::ordered_json examine_without_probes();

} // namespace tools::doctor
