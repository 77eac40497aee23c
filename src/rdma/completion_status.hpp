// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>
#include <string>

namespace gaudi {

// "IBV_WC_REM_ACCESS_ERR (10)".
[[nodiscard]] std::string name_of(ibv_wc_status status);

} // namespace gaudi
