// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/hca/objects.hpp"

namespace lab::hca {

// The cards of the selected lab. Each keeps its address for the life of the program. errno on failure.
[[nodiscard]] tl::expected<std::vector<device*>, int> list_devices();

[[nodiscard]] std::uint64_t guid_of(unsigned device, unsigned port); // port 0: the node
[[nodiscard]] ibv_device_attr attributes_of(const device& card);
[[nodiscard]] ibv_port_attr attributes_of(const device& card, unsigned port, bool up);
constexpr int gid_table_length = 2;

// The operations that programs reach through the context; each is defined beside its relatives.
void fill_operations(verbs_context& context);

} // namespace lab::hca
