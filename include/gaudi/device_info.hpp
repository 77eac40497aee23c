// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/address.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gaudi {

/// The generation of a device. It decides how memory is exported and whether programs may submit copies.
enum class generation { gaudi, gaudi2, gaudi3 };

/// "gaudi", "gaudi2" or "gaudi3".
[[nodiscard]] std::string_view name_of(generation value);
/// Whether the driver lets programs submit copies. Where it does not, SynapseAI or a NIC has to copy.
[[nodiscard]] bool has_user_queues(generation value);

/// The kernel's driver of the Gaudis, as far as /sys and /proc say.
struct kernel_driver {
    /// Whose driver it is. unknown: no driver is loaded, or /sys is hidden.
    enum class provider { unknown, vendor, upstream };

    provider provided_by = provider::unknown;
    std::string version;                         ///< of the vendor's driver
    std::string kernel;                          ///< the release of the running Linux
    unsigned kernel_major = 0, kernel_minor = 0; ///< 0: not known

    /// Whether every DMA-BUF begins where its allocation begins, whatever the offset of the export is, and
    /// has the size of the allocation's last export: upstream before Linux 6.7.
    [[nodiscard]] bool exports_whole_only() const;
};
/// Reads what is installed now.
[[nodiscard]] kernel_driver find_kernel_driver();

/// What is known of a device without opening it for compute.
struct device_info {
    unsigned index = 0;                          ///< as in /dev/accel/accelN
    std::optional<gaudi::generation> generation; ///< empty: not reported by the driver, or not known to us
    std::string product;
    std::string bus_id;
    unsigned module_id = 0;
    std::optional<int> numa_node;
    std::uint64_t memory_total = 0;
    std::uint64_t memory_free = 0;
    std::uint64_t allocation_page = 0; ///< the driver's granularity: 768 MB on Gaudi2
    bool operational = true;
    std::string status; ///< as the driver reports it
};

/// Where SynapseAI's memory lies in a device that SynapseAI has opened in this process. Programs' allocations
/// are parts of it.
struct synapse_pool {
    /// Who said so: SCAL, the library below SynapseAI, or SynapseAI's device information.
    enum class source { scal, device_info };

    device_address base;
    std::uint64_t size = 0;
    device_address mapping; ///< where the driver's mapping begins that it lies in: exports begin there
    source told_by = source::scal;
};

/// A process that has a device open, as far as /proc shows it.
struct device_holder {
    int process = 0;
    std::string command;
};

} // namespace gaudi
