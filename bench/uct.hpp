// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "bench/table.hpp"

namespace bench {

// The memory domain and the transports, call by call.
void uct_rows(table& results);

// UCX's start with and without the plugin, where there is no hl-thunk and where that finds no device.
void without_a_gaudi(table& results);
// What --load does: UCX loads its transports and asks them for devices; the microseconds are printed.
void load_ucx();

} // namespace bench
