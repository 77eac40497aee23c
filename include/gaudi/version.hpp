// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace gaudi {

/// The version of the library that is linked, not of this header.
[[nodiscard]] std::string_view version();

} // namespace gaudi
