// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace gaudi {

/// The distance of a NIC from a device, nearest first.
enum class nic_distance { same_switch, same_numa_node, other_numa_node, unknown };
/// The distance in words, as in "on the NUMA node of the Gaudi".
[[nodiscard]] std::string_view name_of(nic_distance distance);

} // namespace gaudi
