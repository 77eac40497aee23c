// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/dmabuf.hpp>
#include <gaudi/nic.hpp>

#include "src/rdma/verbs_api.hpp"

#include <mutex>
#include <span>

namespace gaudi {

// One port of one NIC: context, protection domain, address. Connections and registrations share it; each of
// them must be destroyed first.
class nic_core {
public:
    static result<std::shared_ptr<nic_core>> open(const nic_choice& choice);
    ~nic_core();
    nic_core(const nic_core&) = delete;
    nic_core& operator=(const nic_core&) = delete;

    [[nodiscard]] const verbs_api& api() const { return *api_; }
    [[nodiscard]] const std::shared_ptr<const verbs_api>& table() const { return api_; }
    [[nodiscard]] ibv_context* context() const { return context_.get(); }
    [[nodiscard]] ibv_pd* pd() const { return pd_.get(); }
    // A protection domain for the NIC's transfers to itself: no peer's queue pair can access what is
    // registered in it, whatever key the peer guesses. Allocated on first use. errc::registration_refused.
    [[nodiscard]] result<ibv_pd*> loopback_pd() const;
    [[nodiscard]] const nic_info& info() const { return info_; }
    [[nodiscard]] const std::string& why_chosen() const { return why_chosen_; }
    [[nodiscard]] const ibv_device_attr& limits() const { return limits_; }
    [[nodiscard]] const ibv_port_attr& port() const { return port_; }
    [[nodiscard]] const ibv_gid& gid() const { return gid_; }
    [[nodiscard]] unsigned gid_index() const { return gid_index_; }
    // Whether the NIC supports atomic operations.
    [[nodiscard]] bool atomics() const { return limits_.atomic_cap != IBV_ATOMIC_NONE; }
    // Access flags of a registration or queue pair. The atomic flag is left out for a NIC without atomic
    // operations, which may refuse it.
    [[nodiscard]] int access_flags(remote_access rights) const;
    // False in a child of fork.
    [[nodiscard]] bool valid_in_this_process() const;
    [[nodiscard]] error forked_error() const;

    // Without a domain: in the connections' protection domain. errc::registration_refused
    [[nodiscard]] result<mr_handle> register_host(std::span<std::byte> memory,
                                                  remote_access rights = remote_access::none,
                                                  ibv_pd* domain = nullptr) const;
    // Host memory that the NIC only reads, also where it cannot be written, for the NIC's transfers to
    // itself: their remote end in the loopback domain, or without a domain their local end.
    [[nodiscard]] result<mr_handle> register_source(std::span<const std::byte> memory,
                                                    ibv_pd* loopback = nullptr) const;
    // errc::dmabuf_unsupported, registration_refused
    [[nodiscard]] result<mr_handle> register_dmabuf(const dmabuf_export& window,
                                                    remote_access rights = remote_access::none,
                                                    ibv_pd* domain = nullptr) const;

private:
    nic_core() = default;
    result<void> choose_gid(const std::optional<unsigned>& wanted);
    [[nodiscard]] result<mr_handle> register_range(void* begin, std::size_t length, int flags,
                                                   ibv_pd* domain) const;

    // Members are destroyed in reverse order: this order is required.
    std::shared_ptr<const verbs_api> api_;
    context_handle context_;
    pd_handle pd_;
    mutable std::mutex loopback_mutex_;
    mutable pd_handle loopback_pd_;
    nic_info info_;
    std::string why_chosen_;
    ibv_device_attr limits_{};
    ibv_port_attr port_{};
    ibv_gid gid_{};
    unsigned gid_index_ = 0;
    unsigned forks_ = 0;
};

} // namespace gaudi
