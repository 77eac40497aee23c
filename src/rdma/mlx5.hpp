// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "src/rdma/verbs_api.hpp"

namespace gaudi {

// Creates a queue pair whose receives may lie in device memory. libmlx5 lets the NIC put receives of up to 64
// bytes into the completion, from which the processor that polls copies them ("scatter to CQE"): a
// segmentation fault on device memory (gotcha 31). This forbids it for the queue pair, where libmlx5 drives
// the NIC; other drivers do no such thing. nullptr with errno. `wanted.cap`: what was granted.
[[nodiscard]] ibv_qp* create_qp_without_scatter(const verbs_api& api, ibv_pd* domain,
                                                ibv_qp_init_attr& wanted);

} // namespace gaudi
