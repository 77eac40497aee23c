// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hl_device.hpp"

namespace gaudi {

// Joins the context of the process that has the device open, if that process offers it. errc::peer_gone: no
// process offers it. src/ipc, a layer above this one, provides the function when the library is loaded.
using context_joiner = result<std::shared_ptr<hl_device>> (*)(const std::shared_ptr<const hlthunk_api>& api,
                                                              const device_info& info);
void set_context_joiner(context_joiner joiner);

} // namespace gaudi
