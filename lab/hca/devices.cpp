// SPDX-License-Identifier: BSD-3-Clause
#include "lab/hca/devices.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>

namespace lab::hca {
namespace {

constexpr std::uint8_t grh_required = 1; // IBV_QPF_GRH_REQUIRED

struct line_rate {
    unsigned gbps;
    std::uint8_t width, speed; // as in the port attributes
};
// Widths 1x = 1, 4x = 2, 8x = 4; speeds QDR = 4, FDR10 = 8, FDR = 16, EDR = 32, HDR = 64, NDR = 128.
constexpr line_rate rates[] = {{10, 1, 8},   {25, 1, 32},  {40, 2, 8},    {56, 2, 16},
                               {100, 2, 32}, {200, 2, 64}, {400, 2, 128}, {800, 4, 128}};

ibv_mtu mtu_code(unsigned bytes) {
    return bytes >= 4096   ? IBV_MTU_4096
           : bytes >= 2048 ? IBV_MTU_2048
           : bytes >= 1024 ? IBV_MTU_1024
           : bytes >= 512  ? IBV_MTU_512
                           : IBV_MTU_256;
}

// The first IPv4 address of this host that other hosts can use.
in_addr host_address() {
    in_addr host{htonl(INADDR_LOOPBACK)};
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0)
        return host;
    for (const auto* interface = all; interface != nullptr; interface = interface->ifa_next)
        if (interface->ifa_addr != nullptr && interface->ifa_addr->sa_family == AF_INET &&
            (interface->ifa_flags & IFF_LOOPBACK) == 0 && (interface->ifa_flags & IFF_UP) != 0) {
            sockaddr_in address{};
            std::memcpy(&address, interface->ifa_addr, sizeof(address));
            host = address.sin_addr;
            break;
        }
    ::freeifaddrs(all);
    return host;
}

void fill_gids(device& hca) {
    for (unsigned port = 0; port < hca.description.ports; ++port) {
        std::uint8_t link_local[16] = {0xfe, 0x80};
        const auto guid = guid_of(hca.index, port + 1);
        for (unsigned i = 0; i < 8; ++i)
            link_local[8 + i] = static_cast<std::uint8_t>(guid >> (56 - 8 * i));
        auto& table = hca.gids[port];
        std::memset(table, 0, sizeof(table));
        if (hca.description.link == link_layer::infiniband) {
            std::memcpy(table[0], link_local, 16);
            continue;
        }
        in_addr address = host_address();
        if (!hca.description.address.empty())
            ::inet_pton(AF_INET, hca.description.address.c_str(), &address);
        table[0][10] = table[0][11] = 0xff;
        std::memcpy(&table[0][12], &address, 4);
        std::memcpy(table[1], link_local, 16);
    }
}

device& slot_for(unsigned index) {
    static auto* all = new device[max_hcas](); // never freed
    return all[index];
}

} // namespace

std::uint64_t guid_of(unsigned device, unsigned port) {
    return 0x026764fffe000000ULL | device << 8 | port; // locally administered
}

tl::expected<std::vector<device*>, int> list_devices() {
    static std::mutex mutex;
    const std::lock_guard guard(mutex);
    const auto entered = folder::enter(selected_name(), std::nullopt);
    if (!entered) {
        std::fprintf(stderr, "gaudi-lab: %s\n", entered.error().text.c_str());
        return tl::unexpected(ENODEV);
    }
    std::vector<device*> devices;
    for (unsigned i = 0; i < entered->contents().hcas.size(); ++i) {
        auto& hca = slot_for(i);
        hca.index = i;
        const auto name = entered->contents().name_of_hca(i);
        const auto opens = (entered->path() / (name + ".opens")).string();
        if (hca.opens != opens || !(hca.description == entered->contents().hcas[i])) {
            hca.opens = opens;
            hca.description = entered->contents().hcas[i];
            hca.seen.node_type = IBV_NODE_CA;
            hca.seen.transport_type = IBV_TRANSPORT_IB;
            std::snprintf(hca.seen.name, sizeof(hca.seen.name), "%s", name.c_str());
            std::snprintf(hca.seen.dev_name, sizeof(hca.seen.dev_name), "uverbs-vhca%u", i);
            const auto base = entered->path() / "sys";
            std::snprintf(hca.seen.dev_path, sizeof(hca.seen.dev_path), "%s/class/infiniband_verbs/%s",
                          base.c_str(), hca.seen.dev_name);
            std::snprintf(hca.seen.ibdev_path, sizeof(hca.seen.ibdev_path), "%s/class/infiniband/%s",
                          base.c_str(), name.c_str());
            fill_gids(hca);
        }
        devices.push_back(&hca);
    }
    return devices;
}

ibv_device_attr attributes_of(const device& hca) {
    const auto& limits = hca.description;
    ibv_device_attr attributes{};
    std::snprintf(attributes.fw_ver, sizeof(attributes.fw_ver), "0.1.0");
    attributes.node_guid = __builtin_bswap64(guid_of(hca.index, 0));
    attributes.sys_image_guid = attributes.node_guid;
    attributes.max_mr_size = UINT64_MAX;
    attributes.page_size_cap = 0xfffffffffffff000;
    attributes.vendor_id = limits.vendor_id;
    attributes.vendor_part_id = limits.vendor_part_id;
    attributes.max_qp = static_cast<int>(limits.max_qp);
    attributes.max_qp_wr = static_cast<int>(limits.max_qp_wr);
    attributes.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                                  IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN;
    attributes.max_sge = attributes.max_sge_rd = attributes.max_srq_sge = static_cast<int>(limits.max_sge);
    attributes.max_cq = static_cast<int>(limits.max_cq);
    attributes.max_cqe = static_cast<int>(limits.max_cqe);
    attributes.max_mr = static_cast<int>(limits.max_mr);
    attributes.max_pd = static_cast<int>(max_pds);
    attributes.max_qp_rd_atom = attributes.max_qp_init_rd_atom = static_cast<int>(limits.max_rd_atomic);
    attributes.max_res_rd_atom = static_cast<int>(limits.max_rd_atomic * limits.max_qp);
    attributes.atomic_cap = IBV_ATOMIC_HCA;
    attributes.max_ah = static_cast<int>(max_ahs);
    attributes.max_srq = static_cast<int>(limits.max_srq);
    attributes.max_srq_wr = static_cast<int>(limits.max_qp_wr);
    attributes.max_pkeys = 1;
    attributes.local_ca_ack_delay = 15;
    attributes.phys_port_cnt = static_cast<std::uint8_t>(limits.ports);
    return attributes;
}

ibv_port_attr attributes_of(const device& hca, unsigned port, bool up) {
    ibv_port_attr attributes{};
    const bool ethernet = hca.description.link == link_layer::ethernet;
    attributes.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attributes.max_mtu = attributes.active_mtu = mtu_code(hca.description.mtu);
    attributes.gid_tbl_len = gid_table_length;
    attributes.port_cap_flags =
        ethernet ? IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS : IBV_PORT_CM_SUP | IBV_PORT_SYS_IMAGE_GUID_SUP;
    attributes.max_msg_sz = 1U << 31;
    attributes.pkey_tbl_len = 1;
    attributes.lid = ethernet ? std::uint16_t{0} : lid_of(hca.index, port);
    attributes.sm_lid = ethernet ? 0 : 1;
    attributes.max_vl_num = 1;
    for (const auto& rate : rates)
        if (rate.gbps == hca.description.speed_gbps) {
            attributes.active_width = rate.width;
            attributes.active_speed = rate.speed;
        }
    attributes.phys_state = up ? 5 : 3; // link up, disabled
    attributes.link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    attributes.flags = ethernet ? grh_required : std::uint8_t{0};
    return attributes;
}

} // namespace lab::hca
