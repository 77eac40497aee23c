// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device_info.hpp>
#include <gaudi/nic.hpp>

#include <nlohmann/json.hpp>
#include <vector>

// The NICs of the machine and their distance to each Gaudi.
namespace tools {

// Every port, a Gaudi's own as one entry for all of them.
[[nodiscard]] nlohmann::ordered_json nics_json(const std::vector<gaudi::nic_info>& nics);
void print_nics(const nlohmann::ordered_json& nics);
// By device: each usable port with its distance, and whether the library takes it for that device.
[[nodiscard]] nlohmann::ordered_json topology_json(const std::vector<gaudi::device_info>& devices,
                                                   std::vector<gaudi::nic_info> nics);

} // namespace tools
