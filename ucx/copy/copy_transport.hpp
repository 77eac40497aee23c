// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ucx/base/module.hpp"

namespace gaudi_ucx {

// The first transport on the memory domain gaudi_copy.
void fill_copy_tl(uct_gaudi_module& module);

} // namespace gaudi_ucx
