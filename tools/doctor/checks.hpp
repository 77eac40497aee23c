// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tools/doctor/finding.hpp"

#include <gaudi/device.hpp>
#include <gaudi/nic.hpp>

#include <optional>
#include <string_view>
#include <vector>

// The checks of `gaudi-direct doctor`, one function a subject. None changes anything on the machine; each
// ends in bounded time.
namespace tools::doctor {

// The first line of a file of /proc, /sys, /boot or /dev; GAUDI_DIRECT_FSROOT has other ones.
[[nodiscard]] std::string machine_path(std::string_view absolute);
[[nodiscard]] std::optional<std::string> read_line(std::string_view absolute);

inline constexpr const char* pcie_remedy =
    "PCIe does not carry the NIC's accesses to the Gaudi: switch ACS off on the bridges between them, boot "
    "with iommu=pt, and use a NIC under the same root complex";

void check_kernel(report& into, const gaudi::kernel_driver& driver);
// `works`: it has reported devices.
void check_driver(report& into, const gaudi::kernel_driver& driver, bool works);
// hl-thunk, libibverbs, SynapseAI.
void check_libraries(report& into);
void check_device(report& into, const gaudi::device_info& info, const gaudi::kernel_driver& driver);
void check_nic(report& into, const gaudi::nic_info& nic);
// Which NIC the library takes for a device, and how far it is. `nics`: the nearest first.
void check_distance(report& into, const gaudi::device_info& info, const std::vector<gaudi::nic_info>& nics);
// Whether a bridge between the two redirects what one sends to the other.
void check_acs(report& into, const gaudi::device_info& info, const gaudi::nic_info& nic);
void check_limits(report& into);
// The SCAL library that tells where SynapseAI's pool is; empty: none, or it lacks the functions.
[[nodiscard]] std::string synapse_pool_source();
// Of the UCX that the loader finds; empty: there is none, or it cannot be loaded.
[[nodiscard]] std::string ucx_version();
// The UCX and the Python packages of this environment; settings of UCX, NIXL, PyTorch and SynapseAI.
// `gaudi_ports`: a NIC is a Gaudi's own.
void check_environment(report& into, bool gaudi_ports);

// A real export, a registration with each NIC, and a transfer from the device's memory over the NIC into the
// device's memory with every byte compared. Whether one of them moved the bytes without a copy.
[[nodiscard]] bool probe(report& into, const gaudi::device_info& info,
                         const std::vector<gaudi::nic_info>& nics);

} // namespace tools::doctor
