// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tools/rdma/session.hpp"

namespace tools::rdma {

// What a run cost before the steady state.
struct setup_costs {
    double open = 0, allocate = 0, export_dmabuf = 0, registration = 0, connect = 0, first_byte = 0;

    [[nodiscard]] json to_json() const;
};

// The first lines: version, real or virtual, device, nic, memory and path.
void print_head(const char* program, const endpoint& home, const char* lab_reason);
void print_results(const std::vector<operation_result>& results, const setup_costs& costs);
[[nodiscard]] json results_json(const std::vector<operation_result>& results);

} // namespace tools::rdma
