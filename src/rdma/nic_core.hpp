// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/dmabuf.hpp>
#include <gaudi/nic.hpp>

#include "src/rdma/verbs_api.hpp"

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
    [[nodiscard]] const nic_info& info() const { return info_; }
    [[nodiscard]] const std::string& why_chosen() const { return why_chosen_; }
    [[nodiscard]] const ibv_device_attr& limits() const { return limits_; }
    [[nodiscard]] const ibv_port_attr& port() const { return port_; }
    [[nodiscard]] const ibv_gid& gid() const { return gid_; }
    [[nodiscard]] unsigned gid_index() const { return gid_index_; }
    // Whether the NIC has atomic operations.
    [[nodiscard]] bool atomics() const { return limits_.atomic_cap != IBV_ATOMIC_NONE; }
    [[nodiscard]] int access_flags() const;
    // A child of fork has no part in it.
    [[nodiscard]] bool ours() const;
    [[nodiscard]] error forked_error() const;

    // errc::registration_refused
    [[nodiscard]] result<mr_handle> register_host(std::span<std::byte> memory) const;
    // errc::dmabuf_unsupported, registration_refused
    [[nodiscard]] result<mr_handle> register_dmabuf(const dmabuf_export& window) const;

private:
    nic_core() = default;
    result<void> choose_gid(const std::optional<unsigned>& wanted);

    // Order of members is order of tear-down, last first.
    std::shared_ptr<const verbs_api> api_;
    context_handle context_;
    pd_handle pd_;
    nic_info info_;
    std::string why_chosen_;
    ibv_device_attr limits_{};
    ibv_port_attr port_{};
    ibv_gid gid_{};
    unsigned gid_index_ = 0;
    unsigned forks_ = 0;
};

} // namespace gaudi
