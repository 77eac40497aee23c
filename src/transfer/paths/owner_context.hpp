// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/copy/copy_core.hpp"
#include "src/ipc/lease_core.hpp"

namespace gaudi {

class device_table;

// An engine on the context of leased memory: this process's own device, if it has that context open, or an
// engine made with the descriptor that the owner passed. errc::not_granted, copies_absent.
result<std::shared_ptr<copy_core>> engine_on_context(device_table& devices,
                                                     const std::shared_ptr<lease_core>& lease);

} // namespace gaudi
