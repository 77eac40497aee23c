// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/dmabuf.hpp>
#include <gaudi/nic.hpp>

#include "src/rdma/verbs_api.hpp"

#include <mutex>
#include <span>

namespace gaudi {

// One port of one NIC: context, protection domain, address. Shared by the connections and registrations on
// it, each of which must go first.
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
    // A protection domain for the NIC's transfers to itself: what is registered here no peer's queue pair can
    // reach, whatever key it guesses. Made when it is first needed. errc::registration_refused.
    [[nodiscard]] result<ibv_pd*> loopback_pd() const;
    [[nodiscard]] const nic_info& info() const { return info_; }
    [[nodiscard]] const std::string& why_chosen() const { return why_chosen_; }
    [[nodiscard]] const ibv_device_attr& limits() const { return limits_; }
    [[nodiscard]] const ibv_port_attr& port() const { return port_; }
    [[nodiscard]] const ibv_gid& gid() const { return gid_; }
    [[nodiscard]] unsigned gid_index() const { return gid_index_; }
    // Whether the NIC has atomic operations.
    [[nodiscard]] bool atomics() const { return limits_.atomic_cap != IBV_ATOMIC_NONE; }
    // The flags of a registration or queue pair. A NIC without atomic operations may refuse their flag.
    [[nodiscard]] int access_flags(remote_access rights) const;
    // A child of fork has no part in it.
    [[nodiscard]] bool valid_in_this_process() const;
    [[nodiscard]] error forked_error() const;

    // Without a domain: in that of the connections. errc::registration_refused
    [[nodiscard]] result<mr_handle> register_host(std::span<std::byte> memory,
                                                  remote_access rights = remote_access::none,
                                                  ibv_pd* domain = nullptr) const;
    // Host memory that is only read, also where it cannot be written: for the NIC's transfers to itself.
    [[nodiscard]] result<mr_handle> register_source(std::span<const std::byte> memory, ibv_pd* domain) const;
    // errc::dmabuf_unsupported, registration_refused
    [[nodiscard]] result<mr_handle> register_dmabuf(const dmabuf_export& window,
                                                    remote_access rights = remote_access::none,
                                                    ibv_pd* domain = nullptr) const;

private:
    nic_core() = default;
    result<void> choose_gid(const std::optional<unsigned>& wanted);
    [[nodiscard]] result<mr_handle> register_range(void* begin, std::size_t length, int flags,
                                                   ibv_pd* domain) const;

    // Order of members is order of tear-down, last first.
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
