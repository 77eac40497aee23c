// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <string_view>

namespace lab {

// Checks what one device's settings mean for the others, and places the ports of the Gaudis. `name`: of the
// text, for messages.
result<void> make_consistent(description& wanted, std::string_view name);

} // namespace lab
