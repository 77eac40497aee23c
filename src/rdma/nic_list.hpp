// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gaudi/nic.hpp>

#include "src/rdma/verbs_api.hpp"

namespace gaudi {

// Every port of every NIC, best first: nearest to the device, then active, then fastest.
struct nic_list {
    std::shared_ptr<const verbs_api> api;
    std::vector<nic_info> ports;
};
[[nodiscard]] result<nic_list> enumerate_nics(const std::optional<device_info>& near_to);

[[nodiscard]] result<context_handle> open_by_name(const std::shared_ptr<const verbs_api>& api,
                                                  const std::string& name);
// Queries a port as libibverbs does: by the context's own function, where it has one. Returns an errno value.
[[nodiscard]] int query_port(const verbs_api& api, ibv_context* context, unsigned port, ibv_port_attr& into);

} // namespace gaudi
