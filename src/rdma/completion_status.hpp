// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/error.hpp>

#include <infiniband/verbs.h>
#include <string>

namespace gaudi {

// "IBV_WC_REM_ACCESS_ERR (10)".
[[nodiscard]] std::string name_of(ibv_wc_status status);

// The error for a failed completion on a connection to `peer`.
[[nodiscard]] error failed_completion(ibv_wc_status status, const std::string& peer);

} // namespace gaudi
