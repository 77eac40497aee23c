// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/problem.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lab {

enum class generation { gaudi, gaudi2, gaudi3 };

[[nodiscard]] std::string_view name_of(generation value);
[[nodiscard]] result<generation> parse_generation(std::string_view text);

// Whose driver a device has. Upstream has no Gaudi3 and no import of DMA-BUFs, and tests whether a NIC can
// reach the device over PCIe. Before Linux 6.7 it exports from the start of the allocation whatever the
// offset is, and the size of the last export of an allocation is that of all.
enum class driver { vendor, upstream, upstream_6_6 };

// One virtual device, as described by its lines in the lab description.
struct gaudi_description {
    lab::generation generation = lab::generation::gaudi2;
    std::string bus_id;
    unsigned module_id = 0;
    unsigned numa_node = 0;
    unsigned pci_switch = 0; // devices and nics with the same number share a switch; 0: none
    lab::driver driver = lab::driver::vendor;
    bool dmabuf_import = false;     // the vendor driver's REG_DMABUF_FD
    bool peer_to_peer = true;       // false: PCIe does not carry a NIC's reads and writes to the device
    bool small_bar = false;         // HBM not reachable through the PCI BAR: every export is refused
    bool broken = false;            // the driver reports the device as malfunctioning: open returns EPERM
    unsigned cs_timeout_ms = 0;     // 0: the default of the generation
    unsigned hbm_pages = 0;         // allocation pages of HBM; 0: the default of the generation
    unsigned reset_grace_ms = 1000; // without a notifier the process is killed this long after a reset
    unsigned watchdog_ms = 30000;   // with a notifier, this long after

    bool operator==(const gaudi_description&) const = default;
};

enum class link_layer { infiniband, ethernet };

// One virtual RDMA nic.
struct hca_description {
    // The ports of that Gaudi, as its driver registers them with the verbs: at the Gaudi's bus id, of the
    // Gaudi's vendor, for one opener at a time.
    std::optional<unsigned> of_gaudi;
    lab::link_layer link = lab::link_layer::infiniband;
    std::string bus_id;
    std::string
        address; // IPv4, for link_layer ethernet; empty: the first one of this host that is not loopback
    unsigned numa_node = 0;
    unsigned pci_switch = 0; // as for a device
    unsigned ports = 1;
    unsigned speed_gbps = 400;
    unsigned mtu = 4096;
    bool dmabuf = true; // false: a driver without DMA-BUF registration, EOPNOTSUPP
    // As libmlx5: it copies receives of a few bytes by the processor, unless MLX5_SCATTER_TO_CQE=0 or
    // mlx5dv_create_qp() forbids it.
    bool scatter_to_cqe = true;
    bool port_up = true;
    bool hidden = false;         // its node is not in this container: it is listed and cannot be opened
    unsigned max_contexts = 0;   // of all processes together; 0: no limit
    unsigned vendor_id = 0x6764; // no vendor's id: no program takes it for a NIC that it knows
    unsigned vendor_part_id = 1;
    unsigned max_qp = 16383; // limits that the nic reports and enforces
    unsigned max_cq = 16383;
    unsigned max_mr = 65535;
    unsigned max_srq = 4095;
    unsigned max_qp_wr = 32768;
    unsigned max_cqe = 4194303;
    unsigned max_sge = 32;
    unsigned max_inline = 1024;
    unsigned max_rd_atomic = 16;

    bool operator==(const hca_description&) const = default;
};

// The contents of a lab. Text form: `key = value` lines, `#` comments, `[gaudi N]` and `[hca N]` for one
// device or nic.
struct description {
    std::vector<gaudi_description> gaudis;
    std::vector<hca_description> hcas;

    bool operator==(const description&) const = default;
    // A text that parses to this description.
    [[nodiscard]] std::string text() const;
    // vhcaN, or hbl_G for the ports of Gaudi G.
    [[nodiscard]] std::string name_of_hca(unsigned index) const;
};

constexpr unsigned max_gaudis = 64;
constexpr unsigned max_hcas = 16;
constexpr unsigned max_ports = 2, ports_of_gaudi = 24, vendor_of_gaudi = 0x1da3;

[[nodiscard]] std::string_view name_of(link_layer value);
[[nodiscard]] std::string_view name_of(driver value);
[[nodiscard]] description make_description(unsigned gaudis, generation kind, unsigned hcas = 1);

// `name` is how problems refer to the text: a file name.
[[nodiscard]] result<description> parse_description(std::string_view text, std::string_view name);
[[nodiscard]] result<description> read_description(const std::string& path);

} // namespace lab
