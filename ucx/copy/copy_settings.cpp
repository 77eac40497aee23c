// SPDX-License-Identifier: BSD-3-Clause
// Settings of the memory domain gaudi_copy.
#include "ucx/base/settings.hpp"
#include "ucx/copy/copy_md.hpp"

namespace gaudi_ucx {
namespace {

constexpr std::uint64_t most_queues = 4;

} // namespace

std::string apply_copy_settings(uct_gaudi_copy_md_t& md, const uct_gaudi_copy_md_config_t& config) {
    auto& module = *md.module;
    if (*config.log_level != 0 && !module.set_log_level(config.log_level))
        return fmt::format("UCX_GAUDI_COPY_LOG_LEVEL={}: use a level that UCX_LOG_LEVEL takes",
                           config.log_level);
    const auto choice = gaudi::parse_device_choice(config.device);
    if (!choice)
        return fmt::format("UCX_GAUDI_COPY_DEVICE={}: use auto, an index, a bus id, or module:<id>",
                           config.device);
    if (config.queues == 0 || config.queues > most_queues)
        return fmt::format("UCX_GAUDI_COPY_QUEUES={}: use 1 to {}", config.queues, most_queues);
    constexpr std::size_t largest = 1ULL << 40;
    const bool automatic = config.heap_chunk == auto_bytes;
    if (!automatic && (config.heap_chunk == 0 || config.heap_chunk > largest))
        return fmt::format("UCX_GAUDI_COPY_HEAP_CHUNK={}: use 1 to {} bytes, or auto", config.heap_chunk,
                           largest);
    constexpr std::size_t largest_by_nic = 1 << 20;
    if (config.nic_max > largest_by_nic)
        return fmt::format("UCX_GAUDI_COPY_NIC_MAX={}: use 0 to {} bytes", config.nic_max, largest_by_nic);
    md.choice = *choice;
    md.device_setting = config.device;
    md.heap_chunk = automatic ? 0 : config.heap_chunk;
    md.dmabuf = static_cast<ucs_ternary_auto_value_t>(config.dmabuf);
    md.copies.queues = config.queues;
    md.statistics = config.statistics != 0;
    md.share_device = config.share_device != 0;
    md.nic_max = md.dmabuf != UCS_NO ? config.nic_max : 0; // loopback needs a DMA-BUF
    return {};
}

ucs_config_field_t* copy_md_settings(const ucx_api& ucx) {
    const setting_types type(ucx);
    using config = uct_gaudi_copy_md_config_t;
    return new ucs_config_field_t[]{
        // never freed: one table per UCX, until the process ends
        {"", "", nullptr, offsetof(config, super), type.table(*ucx.uct_md_config_table)},
        {"DMABUF", "try",
         "Export Gaudi memory as DMA-BUFs to network transports, which then transfer it without a copy.\n"
         "yes - an allocation that cannot be exported is an error; try - it is staged, with a warning;\n"
         "no - everything is staged.",
         offsetof(config, dmabuf), type.ternary()},
        {"DEVICE", "auto",
         "Device to allocate memory on: an index as in /dev/accel/accelN, a PCI bus id, module:<id>,\n"
         "or auto: the one this process has open already, else the first that is free, those near to the\n"
         "processors that the process is bound to before the others.",
         offsetof(config, device), type.string()},
        {"HEAP_CHUNK", "auto",
         "How much device memory is taken from the driver at a time. auto: one page of the driver's\n"
         "(768 MB on Gaudi2).",
         offsetof(config, heap_chunk), type.bytes()},
        {"QUEUES", "2",
         "DMA queues that a large copy is spread over, 1 to 4. Between host and Gaudi2 3 and 4 use the\n"
         "other direction's engine as well.",
         offsetof(config, queues), type.unsigned_number()},
        {"LOG_LEVEL", "", "Log level of this plugin alone, gaudi_ipc included; empty: as UCX_LOG_LEVEL.",
         offsetof(config, log_level), type.string()},
        {"NIC_MAX", "32k",
         "Largest copy between host and device that goes through the nearest NIC in loopback, if it "
         "registers\n"
         "DMA-BUFs: a few bytes take a fraction of the time that the device's engines need. 0: none.",
         offsetof(config, nic_max), type.bytes()},
        {"SHARE_DEVICE", "n",
         "Let other processes of this user allocate on a device that this one has open, and join one that "
         "is\n"
         "busy where its owner allows it. The driver has one context for them all: they must trust each "
         "other.",
         offsetof(config, share_device), type.boolean()},
        {"STATISTICS", "n", "Print what was allocated, exported and copied when a memory domain is closed.",
         offsetof(config, statistics), type.boolean()},
        {nullptr, nullptr, nullptr, 0, {}}};
}

} // namespace gaudi_ucx
