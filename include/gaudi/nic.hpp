// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>
#include <gaudi/nic_distance.hpp>
#include <gaudi/region.hpp>

#include <optional>
#include <string>
#include <vector>

namespace gaudi {

class nic_core;
class registration_cache;

enum class link_layer { infiniband, ethernet };

struct nic_info {
    std::string name;
    std::string bus_id; // empty: the kernel does not say
    std::optional<int> numa_node;
    unsigned port = 1;
    bool active = false;
    std::string state; // the port's, in words
    gaudi::link_layer link_layer = link_layer::infiniband;
    double gbps = 0;
    unsigned mtu = 0;          // bytes
    bool dmabuf = false;       // registers DMA-BUFs
    std::string why_no_dmabuf; // empty where it does
    std::uint64_t longest_message = 0;
    bool of_gaudi = false;                         // a port of a Gaudi itself, as its driver lists it
    nic_distance distance = nic_distance::unknown; // to the device that was asked for
};

struct nic_choice {
    std::string name{};                   // empty: the nearest with an active port
    unsigned port = 0;                    // 0: the first active one
    std::optional<unsigned> gid_index{};  // none: RoCE v2 over IPv4 before IPv6 before the rest
    std::optional<device_info> near_to{}; // the device whose memory it shall move
    bool needs_dmabuf = false;            // only one that registers DMA-BUFs
};

struct registration_statistics {
    std::uint64_t hits = 0, misses = 0, evictions = 0;
    std::uint64_t regions = 0, bytes = 0; // alive
};

// Bounds of the registrations that a NIC keeps although nobody uses them at the moment.
struct registration_limits {
    std::uint64_t bytes = 1ULL << 40;
    std::uint64_t regions = 4096; // each DMA-BUF region keeps a reference on its descriptor's file
};

// An open NIC port: the one protection domain and the registrations of this process on it. Thread-safe.
class nic {
public:
    explicit nic(std::shared_ptr<nic_core> core, const registration_limits& limits);
    ~nic();
    nic(const nic&) = delete;
    nic& operator=(const nic&) = delete;

    [[nodiscard]] const nic_info& info() const;
    // Why this one and not another, in words.
    [[nodiscard]] const std::string& why_chosen() const;
    // The GID in use and its index; empty for InfiniBand without a global route.
    [[nodiscard]] std::string gid_text() const;

    // A buffer of a device's heap. The first of a chunk registers the whole chunk; later ones cost
    // nanoseconds. Where zero-copy is impossible the policy decides: errc::zero_copy_impossible with the
    // reason, or a staged region.
    [[nodiscard]] result<local_region> region(device& owner, const device_buffer& buffer,
                                              path_policy policy = path_policy::prefer_zero_copy);
    // A range of one live buffer by its address; zero-copy or an error.
    [[nodiscard]] result<local_region> region(device& owner, device_address address, std::uint64_t length);
    // Host memory. Registrations are shared while somebody holds one and end with the last: nothing tells a
    // library that memory was unmapped, so that none is kept beyond.
    [[nodiscard]] result<local_region> region(std::span<std::byte> memory);
    // Any DMA-BUF: a GPU's, an FPGA's, udmabuf. `iova` is by which address its first byte is known to
    // requests and peers; it is congruent to the offset modulo 4096 (errc::alignment_invalid). The descriptor
    // stays the caller's, who may close it at once. errc::dmabuf_unsupported, registration_refused.
    [[nodiscard]] result<local_region> region(int dmabuf, std::uint64_t offset, std::uint64_t length,
                                              std::uint64_t iova);
    [[nodiscard]] registration_statistics registrations() const;
    // Ends the registrations that nobody uses.
    void trim();

    [[nodiscard]] const std::shared_ptr<nic_core>& core() const { return core_; }

private:
    std::shared_ptr<nic_core> core_;
    std::shared_ptr<registration_cache> cache_;
};

// Which libibverbs was loaded. errc::verbs_missing.
[[nodiscard]] result<std::string> loaded_verbs();
// Every port of every NIC, nearest to the device first where one is named.
[[nodiscard]] result<std::vector<nic_info>> list_nics(const std::optional<device_info>& near_to = {});
// errc::verbs_missing, no_nic, nic_unknown, dmabuf_unsupported, port_down, gid_invalid.
[[nodiscard]] result<std::shared_ptr<nic>> open_nic(const nic_choice& choice = {},
                                                    const registration_limits& limits = {});

} // namespace gaudi
