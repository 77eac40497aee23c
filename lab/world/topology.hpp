// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

namespace lab {

// The lab's machine for programs that ask hwloc where a device or nic is: NUMA nodes, PCI switches and what
// is attached to them, in hwloc's XML. Programs get it through HWLOC_XMLFILE.
[[nodiscard]] std::string topology_xml(const description& machine);

} // namespace lab
