// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/objects.hpp"

namespace lab::hca {

// The nics of the selected lab. Each object keeps its address for the life of the program. errno on failure.
[[nodiscard]] tl::expected<std::vector<device*>, int> list_devices();

[[nodiscard]] std::uint64_t guid_of(unsigned device, unsigned port); // port 0: the node GUID
[[nodiscard]] ibv_device_attr attributes_of(const device& hca);
[[nodiscard]] ibv_port_attr attributes_of(const device& hca, unsigned port, bool up);
constexpr int gid_table_length = 2;

// The operations that programs call through the context; each group is defined in the file of its verbs.
void fill_operations(verbs_context& context);

} // namespace lab::hca
