// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "bench/table.hpp"

namespace bench {

// The memory domain and the transports, call by call.
void uct_rows(table& results);

// Start-up of UCX with and without the plugin: without hl-thunk, and with an hl-thunk that finds no device.
void without_a_gaudi(table& results);
// Implements --load: UCX loads its transports and queries their devices; prints the microseconds.
void load_ucx();

} // namespace bench
