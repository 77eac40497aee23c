// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/device.hpp>
#include <gaudi/nic_distance.hpp>
#include <gaudi/region.hpp>
#include <gaudi/statistics.hpp>

#include <optional>
#include <string>
#include <vector>

namespace gaudi {

class nic_core;
class registration_cache;
struct internals;

/// The network that a port is attached to: InfiniBand, or Ethernet with RoCE.
enum class link_layer { infiniband, ethernet };

/// One port of a NIC.
struct nic_info {
    std::string name;
    std::string bus_id; ///< empty: the kernel does not report it
    std::optional<int> numa_node;
    unsigned port = 1;
    bool active = false;
    std::string state; ///< of the port, in words
    gaudi::link_layer link_layer = link_layer::infiniband;
    double gbps = 0;
    unsigned mtu = 0;                              ///< bytes
    bool dmabuf = false;                           ///< can register DMA-BUFs
    std::string why_no_dmabuf;                     ///< empty where it can
    std::uint64_t longest_message = 0;             ///< bytes
    bool of_gaudi = false;                         ///< the ports of a Gaudi itself: never opened
    nic_distance distance = nic_distance::unknown; ///< to the device that was named

    /// Whether it can move Gaudi memory without a copy: active, with DMA-BUFs, and no port of a Gaudi itself.
    [[nodiscard]] bool moves_device_memory() const { return active && dmabuf && !of_gaudi; }
};

/// Which port to open.
struct nic_choice {
    std::string name{};                   ///< empty: the nearest NIC with an active port
    unsigned port = 0;                    ///< 0: the first active one
    std::optional<unsigned> gid_index{};  ///< empty: RoCE v2 over IPv4, then over IPv6, then the rest
    std::optional<device_info> near_to{}; ///< the device whose memory the NIC will access
    bool needs_dmabuf = false;            ///< only a NIC that can register DMA-BUFs
};

/// Limits on the registrations that a NIC keeps while they are not in use.
struct registration_limits {
    std::uint64_t bytes = 1ULL << 40;
    std::uint64_t regions = 4096; ///< each DMA-BUF registration holds a reference to its descriptor's file
};

/// An open NIC port: the protection domain and the registrations of this process on it. Thread-safe.
class nic {
public:
    ~nic();
    nic(const nic&) = delete;
    nic& operator=(const nic&) = delete;

    /// The port, as it was when it was opened.
    [[nodiscard]] const nic_info& info() const;
    /// Why this NIC was chosen, in words.
    [[nodiscard]] const std::string& why_chosen() const;
    /// The GID in use and its index, as text.
    [[nodiscard]] std::string gid_text() const;

    /// A region of a buffer. The first buffer of a chunk registers the whole chunk; later ones cost
    /// nanoseconds. Where zero-copy is impossible the policy decides: errc::zero_copy_impossible with the
    /// reason, or a staged region.
    [[nodiscard]] result<local_region> region(device& owner, const device_buffer& buffer,
                                              path_policy policy = path_policy::prefer_zero_copy);
    /// A region of a range of one live buffer, by its address; zero-copy or an error.
    [[nodiscard]] result<local_region> region(device& owner, device_address address, std::uint64_t length);
    /// A region of host memory. Regions of the same memory share a registration, which ends with the last of
    /// them: a library is not notified when memory is unmapped, so none is kept longer.
    [[nodiscard]] result<local_region> region(std::span<std::byte> memory);
    /// A region of any DMA-BUF: of a GPU, of an FPGA, udmabuf. `iova` is the address by which requests and
    /// peers name its first byte; it must be congruent to the offset modulo 4096 (errc::alignment_invalid).
    /// The caller owns the descriptor and may close it at once. A region of a descriptor that came from one
    /// of this library's own buffers does not end with that buffer: drop it, and its keys, before the buffer
    /// is freed. errc::dmabuf_unsupported, registration_refused.
    [[nodiscard]] result<local_region> region(int dmabuf, std::uint64_t offset, std::uint64_t length,
                                              std::uint64_t iova);
    /// Counts of the registrations of this NIC.
    [[nodiscard]] registration_statistics statistics() const;
    /// Ends the registrations that are not in use.
    void trim();

private:
    friend struct internals;
    nic(std::shared_ptr<nic_core> core, const registration_limits& limits);
    [[nodiscard]] const std::shared_ptr<nic_core>& core() const { return core_; }

    std::shared_ptr<nic_core> core_;
    std::shared_ptr<registration_cache> cache_;
};

/// The path of the libibverbs in use, which is loaded if necessary. errc::verbs_missing.
[[nodiscard]] result<std::string> loaded_verbs();
/// Every port of every NIC; where a device is named, the nearest first.
[[nodiscard]] result<std::vector<nic_info>> list_nics(const std::optional<device_info>& near_to = {});
/// Puts NICs that were listed into the order that list_nics(near_to) has, without opening them again.
void sort_nics(std::vector<nic_info>& nics, const device_info& near_to);
/// Opens a port. errc::verbs_missing, no_nic, nic_unknown, dmabuf_unsupported, port_down, gid_invalid.
[[nodiscard]] result<std::shared_ptr<nic>> open_nic(const nic_choice& choice = {},
                                                    const registration_limits& limits = {});

} // namespace gaudi
