// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/ipc.hpp>

namespace gaudi {

// Parses GAUDI_DIRECT_IPC_GIVE and GAUDI_DIRECT_IPC_ALLOW. errc::setting_malformed.
[[nodiscard]] result<ipc_settings> ipc_of_environment();

} // namespace gaudi
