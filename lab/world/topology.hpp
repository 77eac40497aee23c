// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

namespace lab {

// The lab's machine for programs that ask hwloc where a card sits: NUMA nodes, PCI switches and the cards
// behind them, in hwloc's XML. Given to them by HWLOC_XMLFILE.
[[nodiscard]] std::string topology_xml(const description& machine);

} // namespace lab
