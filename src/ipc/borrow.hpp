// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/hl/hl_device.hpp"

namespace gaudi {

// Joins the context of the process that has the device open, if it offers that. errc::peer_gone: nobody does.
[[nodiscard]] result<std::shared_ptr<hl_device>> borrow_device(const std::shared_ptr<const hlthunk_api>& api,
                                                               const device_info& info);

} // namespace gaudi
